"""Files that hold a whole token table with rows added at its end: those rows are the embedding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from ti_fix.embedding import VOCABULARY_SIZE, Finding
from ti_fix.formats.concepts import Leaf
from ti_fix.formats.shapes import Orientation
from ti_fix.formats.stored import StoredTensor

Block = list[tuple[Leaf, Orientation]]


def without_vocabulary(blocks: Mapping[str, Block]) -> tuple[dict[str, Block], list[Finding]]:
    """Of each table that is longer than CLIP's vocabulary only the rows beyond it.

    Args:
        blocks: encoder key -> its tensors.

    Returns:
        The blocks; where there was such a table, those that are no more than a vocabulary are left out.
    """
    extra = {key: _beyond(members[0]) for key, members in blocks.items() if len(members) == 1 and _is_resized(members)}
    if not extra:
        return dict(blocks), []
    rows = max(shape.rows for _, shape in extra.values())
    message = (
        f"It holds a whole token table with {rows} row{'s' * (rows != 1)} beyond CLIP's {VOCABULARY_SIZE:,}; the "
        "embedding is what was added."
    )
    how = f"Took the {rows} added row{'s' * (rows != 1)}."
    rest = {key: members for key, members in blocks.items() if sum(s.rows for _, s in members) != VOCABULARY_SIZE}
    found = Finding(code="resized-table", severity="note", message=f"{message} {how}", repaired=how)
    return {**rest, **{key: [member] for key, member in extra.items()}}, [found]


def _is_resized(members: Block) -> bool:
    ((_, shape),) = members
    return shape.rows > VOCABULARY_SIZE and shape.mend in ("", "3-D")


def _beyond(member: tuple[Leaf, Orientation]) -> tuple[Leaf, Orientation]:
    leaf, shape = member
    stored, rows = leaf.tensor, shape.rows - VOCABULARY_SIZE

    def load() -> Tensor:
        return stored.load().reshape(shape.rows, shape.width)[VOCABULARY_SIZE:]

    tail = StoredTensor(shape=(rows, shape.width), dtype=stored.dtype, load=load)
    return replace(leaf, tensor=tail), replace(shape, rows=rows, mend="")
