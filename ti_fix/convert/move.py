"""From one checkpoint to another: `realign` as a `Conversion`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from ti_fix.convert.check import checked
from ti_fix.convert.confidence import CERTAIN, Confidence
from ti_fix.convert.config import KEPT, MATCH, ConvertConfig
from ti_fix.convert.matching import Matched, MatchEvent
from ti_fix.convert.realign import realign
from ti_fix.convert.result import Conversion, Row, noted
from ti_fix.embedding import CLIP_L, Embedding, Finding
from ti_fix.errors import WrongUse
from ti_fix.protocols import DiffusionModel


def moved(
    embedding: Embedding, old: DiffusionModel, new: DiffusionModel, config: ConvertConfig, stop: Callable[[], bool]
) -> Iterator[MatchEvent | Conversion]:
    """An embedding of the old checkpoint for the new one.

    Raises:
        WrongUse: they do not fit each other, or the embedding is broken.
    """
    if not all(bool(torch.isfinite(block).all()) for block in embedding.vectors.values()):
        raise WrongUse(f"{embedding.name!r} holds NaN or infinite numbers; use an earlier step of its training.")
    for event in realign(embedding, old, new, config.steps, stop, config.keep):
        yield _conversion(embedding, event) if isinstance(event, Matched) else event


def _conversion(embedding: Embedding, event: Matched) -> Conversion:
    if event.gap >= 1:
        same = event.steps == 0
        told = "both checkpoints read it alike" if same else f"nothing better was found; {_apart(event)}"
        return Conversion(
            embedding=embedding,
            rows=_rows(embedding, KEPT, CERTAIN),
            message=f"Kept as it is: {told}.",
        )
    message = (
        f"Moved to the new checkpoint: {_apart(event)}, {1 - event.gap:.0%} of that is gone, in sentences that were "
        f"not trained on ({event.steps} steps)."
    )
    left = Confidence(expected=max(0.0, 1 - event.gap * event.apart), low=0.0, high=1.0)
    vectors = {key: block.cpu() for key, block in event.vectors.items()}
    note = Finding(
        code="realigned",
        severity="note",
        message="It now says to the new text encoders what it said to the old ones. Whether the new UNet draws the "
        "same from that, only pictures show; try the original beside it.",
    )
    return checked(
        Conversion(
            embedding=noted(embedding, vectors, "another checkpoint, realigned"),
            rows=_rows(embedding, MATCH, left),
            message=message,
            findings=(note,),
        )
    )


def _apart(event: Matched) -> str:
    return f"the checkpoints' readings were {event.apart:.2f} of the outputs' spread apart"


def _rows(embedding: Embedding, method: str, confidence: Confidence) -> tuple[Row, ...]:
    first = embedding.vectors.get(CLIP_L.key, next(iter(embedding.vectors.values())))
    return tuple(Row(method=method, words=(), confidence=confidence) for _ in first)
