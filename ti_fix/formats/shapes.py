"""From the shapes that tools write to rows of vectors: 1-D, 3-D, transposed, flattened, both halves side by side."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ti_fix.embedding import BY_WIDTH, CLIP_G, CLIP_L, ENCODERS, MAX_VECTORS
from ti_fix.formats.stored import StoredTensor

PAIR_WIDTH = CLIP_L.width + CLIP_G.width
"""Both SDXL halves in one row, CLIP-L first (what A1111's own "create embedding" writes for SDXL)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orientation:
    """How to read one stored tensor as rows.

    Attributes:
        width: numbers per row; `PAIR_WIDTH` for both halves side by side.
        rows: number of rows.
        mend: what has to be done: empty, ``1-D``, ``3-D``, ``transposed`` or ``flattened``.
    """

    width: int
    rows: int
    mend: str = ""

    def read(self, stored: StoredTensor) -> Tensor:
        """The values as float32 of shape (rows, width)."""
        values = stored.read()
        if self.mend == "transposed":
            return values.reshape(self.width, self.rows).T.contiguous()
        return values.reshape(self.rows, self.width)


def orient(shape: tuple[int, ...], label: str | None = None) -> Orientation | None:
    """How a tensor of this shape holds vectors, None where it cannot.

    Args:
        shape: as stored.
        label: the encoder key that its name claims.
    """
    widths = {*BY_WIDTH, PAIR_WIDTH}
    if len(shape) == 2 and shape[1] in widths and not _lies_on_its_side(shape, label):
        return Orientation(width=shape[1], rows=shape[0])
    core = [n for n in shape if n != 1] or [1]
    depth = "3-D" if len(shape) > 2 else ""
    if len(core) == 1:
        return _single(shape, core[0], label, widths, depth)
    if len(core) == 2:
        rows, width = core
        if width in widths and not _lies_on_its_side((rows, width), label):
            return Orientation(width=width, rows=rows, mend=depth)
        if rows in widths:
            return Orientation(width=rows, rows=width, mend="transposed")
    return None


def _lies_on_its_side(shape: tuple[int, ...], label: str | None) -> bool:
    """Both sides are widths, as in (1280, 1024): the label tells which one is."""
    return label is not None and shape[0] == ENCODERS[label].width and shape[1] != shape[0]


def _single(shape: tuple[int, ...], length: int, label: str | None, widths: set[int], depth: str) -> Orientation | None:
    if length in widths:
        mend = depth or ("1-D" if len(shape) == 1 else "transposed" if shape[0] == length else "")
        return Orientation(width=length, rows=1, mend=mend)
    possible = [ENCODERS[label].width] if label else sorted(BY_WIDTH)
    fitting = [w for w in possible if length and length % w == 0 and length // w <= MAX_VECTORS]
    if len(shape) == 1 and len(fitting) == 1:
        return Orientation(width=fitting[0], rows=length // fitting[0], mend="flattened")
    return None
