"""What the tests of training share: a tiny model, pictures, settings, and a run as a list of events."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image

from tests.hosts.tiny_models import tiny_sd15, tiny_sdxl
from ti_fix.hosts.standalone import StandaloneModel
from ti_fix.train import Dataset, DoneEvent, Event, FindingEvent, StepEvent, TrainConfig, from_images, train

TRIGGER = "zqx-one"


@cache
def model(prediction: str = "epsilon") -> StandaloneModel:
    return StandaloneModel(tiny_sdxl(prediction))


@cache
def sd15() -> StandaloneModel:
    return StandaloneModel(tiny_sd15())


def config(**changes: Any) -> TrainConfig:
    """A short run without the checks that cost time, at the tiny model's size."""
    settings: dict[str, Any] = {
        "name": TRIGGER,
        "start_text": "red tower",
        "vectors": 2,
        "resolution": 64,
        "steps": 3,
        "batch_size": 2,
        "warmup": 0,
        "weighting": "none",
        "learning_rate": "1e-2",
        "validate_every": 0,
        "validation_timesteps": 1,
        "self_test": False,
    }
    return TrainConfig(**{**settings, **changes})


def image(seed: int, size: tuple[int, int] = (64, 64)) -> Image.Image:
    """Coloured noise, (width, height)."""
    levels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3))
    return Image.fromarray(levels.astype(np.uint8))


def pictures(count: int = 3, captions: Sequence[str | None] | None = None) -> Dataset:
    return from_images([image(i) for i in range(count)], captions)


def run(settings: TrainConfig, data: Dataset | None = None, on: Any = None, **more: Any) -> list[Event]:
    return list(train(settings, on or model(), data or pictures(), **more))


def done(events: Sequence[Event]) -> DoneEvent:
    assert isinstance(events[-1], DoneEvent)
    return events[-1]


def losses(events: Sequence[Event]) -> list[float]:
    return [e.loss for e in events if isinstance(e, StepEvent)]


def codes(events: Sequence[Event]) -> list[str]:
    return [e.finding.code for e in events if isinstance(e, FindingEvent)]


def severity(events: Sequence[Event], code: str) -> str:
    """Of the only finding with this code."""
    (found,) = (e.finding.severity for e in events if isinstance(e, FindingEvent) and e.finding.code == code)
    return found


def said(events: Sequence[Event], code: str) -> str:
    return " ".join(e.finding.message for e in events if isinstance(e, FindingEvent) and e.finding.code == code)


def fingerprint(loaded: Any) -> str:
    """Hash of every weight and buffer of a standalone model."""
    parts = loaded._parts
    digest = hashlib.sha256()
    for module in (parts.unet, parts.vae, *parts.text_encoders.values()):
        for name, tensor in module.state_dict().items():
            digest.update(name.encode())
            digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def same(one: DoneEvent, other: DoneEvent) -> bool:
    """Whether two runs ended with the same bits."""
    a, b = one.embedding.vectors, other.embedding.vectors
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
