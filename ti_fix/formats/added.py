"""Layouts that other extensions read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from ti_fix.additions import Added
from ti_fix.embedding import ENCODERS
from ti_fix.formats.concepts import Leaf
from ti_fix.formats.stored import StoredTensor

MAX_ROWS = 4096
"""Rows that are still read (to be split); more are a whole token table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A way of storing embeddings.

    Attributes:
        name: for people.
        read: dotted name -> tensor, not yet read, to encoder key -> (rows, width); None: not this layout.
    """

    name: str
    read: Callable[[Mapping[str, StoredTensor]], Mapping[str, Tensor] | None]


LAYOUTS: Added[Layout] = Added()


def read_added(leaves: Iterable[Leaf]) -> tuple[str, dict[str, Tensor]] | None:
    """Name and blocks by the first layout that knows these tensors; None where none does, or gives no usable blocks."""
    tensors = {leaf.dotted: leaf.tensor for leaf in leaves} if LAYOUTS else {}
    for layout in LAYOUTS:
        blocks = layout.read(tensors)
        if blocks and all(map(_is_block, blocks, blocks.values())):
            return layout.name, {key: block.detach().float().cpu().contiguous() for key, block in blocks.items()}
    return None


def _is_block(key: object, block: object) -> bool:
    spec = ENCODERS.get(key) if isinstance(key, str) else None
    return (
        spec is not None
        and isinstance(block, Tensor)
        and block.is_floating_point()
        and block.ndim == 2
        and block.shape[1] == spec.width
        and 0 < block.shape[0] <= MAX_ROWS
    )
