"""What a training run tells, as it happens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ti_fix.embedding import Embedding, Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareEvent:
    """Work before the first step: `done` of `total` pictures encoded, for instance."""

    what: str
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvent:
    """One update of the vectors.

    Attributes:
        step: counted from 1; equal to the number of updates so far.
        steps: of the whole run.
        loss: mean over the batch, weighted as trained.
        smooth_loss: moving average of it.
        rates: encoder key -> raw learning rate of this step.
        gradients: encoder key -> length of the gradient before clipping.
        lengths: encoder key -> mean length of the vectors as a multiple of the vocabulary's.
        seconds: that the step took.
    """

    step: int
    steps: int
    loss: float
    smooth_loss: float
    rates: Mapping[str, float]
    gradients: Mapping[str, float]
    lengths: Mapping[str, float]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationEvent:
    """The fixed loss: same pictures, crops, captions, noise and timesteps every time.

    Attributes:
        loss: what is left of the loss of captions without the name, 1 where the embedding is no use.
        best_step, best_loss: the best so far, this one included.
        words: encoder key -> for each vector the words that are nearest to it now.
    """

    step: int
    loss: float
    best_step: int
    best_loss: float
    words: Mapping[str, list[list[str]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreviewEvent:
    """A picture made with the vectors of this step; `image` is what `generate` returned."""

    step: int
    prompt: str
    image: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEvent:
    """A file was written: ``state`` to resume from, ``step`` and ``final`` for use in prompts."""

    step: int
    kind: Literal["state", "step", "final"]
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingEvent:
    """Something to know, in words.

    Attributes:
        remedy: setting -> value that would put it right; what a button or a flag can apply.
    """

    step: int
    finding: Finding
    remedy: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DoneEvent:
    """The end of a run.

    Attributes:
        step: updates made in all.
        reason: ``finished`` all steps, ``stopped`` by the user, ``plateau``: the fixed loss got no better.
        embedding: the vectors to use: those of the best fixed loss, or the last where there is none.
        best_step: the step that they are from.
        path: where they were written, None without an output folder.
    """

    step: int
    reason: Literal["finished", "stopped", "plateau"]
    embedding: Embedding
    best_step: int
    path: Path | None = None


Event = PrepareEvent | StepEvent | ValidationEvent | PreviewEvent | CheckpointEvent | FindingEvent | DoneEvent


def as_json(event: Event) -> dict[str, Any]:
    """An event as values that JSON has: numbers that are not finite become null; pictures and vectors stay out."""
    kind = type(event).__name__.removesuffix("Event").lower()
    if isinstance(event, PreviewEvent):
        return {"event": kind, "step": event.step, "prompt": event.prompt}
    if isinstance(event, DoneEvent):
        path = None if event.path is None else str(event.path)
        return {"event": kind, "step": event.step, "reason": event.reason, "best_step": event.best_step, "path": path}
    if isinstance(event, CheckpointEvent):
        return {"event": kind, "step": event.step, "kind": event.kind, "path": str(event.path)}
    return {"event": kind, **finite(asdict(event))}


def finite(value: Any) -> Any:
    """The same with None in place of numbers that are not finite, in mappings and lists too."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    return value
