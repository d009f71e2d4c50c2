"""SDXL to SD1.5: the CLIP-L half stays, the rest is dropped; and how far two checkpoints' CLIP-L tables are apart."""

from __future__ import annotations

import torch
from torch import Tensor

from ti_fix.convert.check import checked
from ti_fix.convert.confidence import CERTAIN
from ti_fix.convert.config import KEPT
from ti_fix.convert.result import Conversion, Row, is_for, noted
from ti_fix.convert.tables import BLOCK
from ti_fix.embedding import CLIP_L, VOCABULARY_SIZE, Embedding, Finding
from ti_fix.errors import WrongUse

DRIFTED = 0.05
"""Mean change of a word, in lengths of a word, from which on the half is said to be made for another vocabulary."""


def to_sd15(embedding: Embedding, made_on: Tensor | None = None, used_on: Tensor | None = None) -> Conversion:
    """The CLIP-L half of an SDXL embedding, bit for bit; SD1.5 has the same encoder.

    Args:
        embedding: with a CLIP-L half; T5 and bigG parts are dropped.
        made_on: CLIP-L table of the SDXL checkpoint that it was made on, (tokens, width).
        used_on: CLIP-L table of the SD1.5 checkpoint that it is for; with both tables their difference is told.

    Raises:
        WrongUse: there is no CLIP-L half.
    """
    if CLIP_L.key not in embedding.vectors:
        raise WrongUse(
            f"{embedding.name!r} {is_for(embedding)}: it has no CLIP-L half, which is all that SD1.5 could use."
        )
    dropped = [key for key in embedding.vectors if key != CLIP_L.key]
    left = embedding.vectors[CLIP_L.key]
    done = checked(
        Conversion(
            embedding=noted(embedding, {CLIP_L.key: left}, "SDXL, clip_l kept"),
            rows=tuple(Row(method=KEPT, words=(), confidence=CERTAIN) for _ in left),
            message=f"Kept clip_l as it is and dropped {' and '.join(dropped) or 'nothing'}; what the dropped part "
            "added to pictures is lost.",
        )
    )
    return done if made_on is None or used_on is None else done.noticed(drift(made_on, used_on))


def drift(made_on: Tensor, used_on: Tensor) -> Finding:
    """How far the words of two CLIP-L tables, (tokens, width) each, are apart.

    Raises:
        WrongUse: the tables are not of one width.
    """
    if made_on.shape[1] != used_on.shape[1]:
        raise WrongUse(
            f"the token tables are {made_on.shape[1]} and {used_on.shape[1]} wide; give two checkpoints with CLIP-L."
        )
    words = min(len(made_on), len(used_on), VOCABULARY_SIZE - 2)
    moved = [
        _moved(made_on[i : min(i + BLOCK, words)], used_on[i : min(i + BLOCK, words)]) for i in range(0, words, BLOCK)
    ]
    share = float(torch.cat(moved).mean())
    if share < DRIFTED:
        message = f"Both checkpoints' CLIP-L words are the same within {share:.1%} of their length."
        return Finding(code="same-vocabulary", severity="note", message=message, encoder=CLIP_L.key)
    message = (
        f"CLIP-L's words differ by {share:.0%} of their length between the two checkpoints: the half was made for "
        "another vocabulary, so expect a weaker likeness."
    )
    return Finding(code="drifted-vocabulary", severity="warning", message=message, encoder=CLIP_L.key)


def _moved(one: Tensor, other: Tensor) -> Tensor:
    one, other = one.detach().float().cpu(), other.detach().float().cpu()
    lengths = torch.linalg.vector_norm(one, dim=1)
    usable = (lengths > 0) & torch.isfinite(lengths)
    moved: Tensor = torch.linalg.vector_norm(one - other, dim=1)[usable] / lengths[usable]
    return torch.nan_to_num(moved, nan=1.0, posinf=1.0)
