"""Textual Inversion training that knows no host: `train` yields events, `TrainConfig` holds every setting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ti_fix.on_demand import on_demand

if TYPE_CHECKING:
    from ti_fix.train.config import TrainConfig
    from ti_fix.train.dataset import Dataset, Sample, from_images, gather
    from ti_fix.train.events import (
        CheckpointEvent,
        DoneEvent,
        Event,
        FindingEvent,
        PrepareEvent,
        PreviewEvent,
        StepEvent,
        ValidationEvent,
    )
    from ti_fix.train.log import Log
    from ti_fix.train.loop import look, train
    from ti_fix.train.tuning import TrialEvent, TunedEvent, tune
else:
    __getattr__ = on_demand(
        __name__,
        {
            "config": "TrainConfig",
            "dataset": "Dataset Sample from_images gather",
            "events": (
                "CheckpointEvent DoneEvent Event FindingEvent PrepareEvent PreviewEvent StepEvent ValidationEvent"
            ),
            "log": "Log",
            "loop": "look train",
            "tuning": "TrialEvent TunedEvent tune",
        },
    )

__all__ = [
    "CheckpointEvent",
    "Dataset",
    "DoneEvent",
    "Event",
    "FindingEvent",
    "Log",
    "PrepareEvent",
    "PreviewEvent",
    "Sample",
    "StepEvent",
    "TrainConfig",
    "TrialEvent",
    "TunedEvent",
    "ValidationEvent",
    "from_images",
    "gather",
    "look",
    "train",
    "tune",
]
