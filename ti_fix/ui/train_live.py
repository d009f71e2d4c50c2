"""What a page knows of a run that goes on: its events, gathered into what is drawn."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ti_fix.jobs import Progress
from ti_fix.train import (
    CheckpointEvent,
    DoneEvent,
    Event,
    FindingEvent,
    PrepareEvent,
    PreviewEvent,
    StepEvent,
    TrainConfig,
    ValidationEvent,
)

if TYPE_CHECKING:
    from ti_fix.align.tokens import TokenView

KEPT_POINTS = 400
"""Points of a curve that are kept; a long run's are thinned."""

KEPT_PREVIEWS = 24
STAGES = MappingProxyType(
    {
        "pictures": "Encoding the pictures",
        "model": "Looking at what the model predicts",
        "self-test": "Testing the gradient",
        "loss": "Measuring the loss before the first step",
    }
)
"""What a `PrepareEvent` is about, in words."""

THUMBNAIL = 192
"""Pixels along the longer side of a preview or picture on the page."""


@dataclass(slots=True, kw_only=True)
class Live:
    """One run.

    Attributes:
        config: its settings.
        look: whether this is a look before a run, and no run.
        step: updates so far.
        losses: (step, smoothed training loss).
        fixed: (step, fixed loss).
        lengths: encoder key -> mean length as a multiple of the vocabulary's.
        words: encoder key -> nearest words of each vector.
        best_step: of the fixed loss.
        previews: (step, picture as a data address).
        findings: in order, errors included.
        saved: the newest file for prompts and the step that it is of.
        done: the end, None before.
        paused: whether the user stopped it to go on later.
        tokens: of a look, a caption as the text encoders will be given it.
    """

    config: TrainConfig
    look: bool = False
    step: int = 0
    losses: list[tuple[int, float]] = field(default_factory=list)
    fixed: list[tuple[int, float]] = field(default_factory=list)
    lengths: dict[str, float] = field(default_factory=dict)
    words: dict[str, list[list[str]]] = field(default_factory=dict)
    best_step: int = -1
    previews: list[tuple[int, str]] = field(default_factory=list)
    findings: list[FindingEvent] = field(default_factory=list)
    saved: tuple[int, Path] | None = None
    done: DoneEvent | None = None
    paused: bool = False
    tokens: TokenView | None = None

    def go_on(self, config: TrainConfig) -> Live:
        """A record of the next part of the run, whose curves and pictures begin with those of this one."""
        return Live(config=config, losses=list(self.losses), fixed=list(self.fixed), previews=list(self.previews))

    def add(self, event: Event) -> None:
        """Take up one event."""
        if isinstance(event, StepEvent):
            self.step, self.lengths = event.step, dict(event.lengths)
            self.losses.append((event.step, event.smooth_loss))
            if len(self.losses) > KEPT_POINTS:
                self.losses = self.losses[::2]
        elif isinstance(event, ValidationEvent):
            self.fixed.append((event.step, event.loss))
            self.best_step, self.words = event.best_step, dict(event.words)
        elif isinstance(event, PreviewEvent):
            self.previews = [*self.previews, (event.step, thumbnail(event.image))][-KEPT_PREVIEWS:]
        elif isinstance(event, FindingEvent):
            self.findings.append(event)
        elif isinstance(event, CheckpointEvent) and event.kind != "state":
            self.saved = event.step, event.path
        elif isinstance(event, DoneEvent):
            self.done = event


def progress_of(event: Event) -> Progress | None:
    """How far a run is after an event, None where it tells nothing of that."""
    if isinstance(event, StepEvent):
        rest = f"loss {event.smooth_loss:.4f} · {event.seconds:.2g} s a step"
        return Progress(done=event.step, total=event.steps, note=rest)
    if isinstance(event, PrepareEvent):
        count = f": {event.done} of {event.total}" if event.total > 1 else ""
        return Progress(done=0, total=0, note=f"{STAGES[event.what]}{count}")
    return None


def thumbnail(image: Any, size: int = THUMBNAIL) -> str:
    """A PIL picture as a small data address."""
    small = image.convert("RGB")
    small.thumbnail((size, size))
    made = io.BytesIO()
    small.save(made, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(made.getvalue()).decode("ascii")
