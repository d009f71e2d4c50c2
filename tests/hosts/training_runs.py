"""Short runs on tiny pictures, and what the tests of training in WebUIs ask for."""

from __future__ import annotations

from typing import Any

from PIL import Image

from ti_fix.protocols import ImageRequest, Sizes
from ti_fix.train import Dataset, TrainConfig, from_images

SIZE = Sizes(original=(64, 64), target=(64, 64))
REQUEST = ImageRequest(prompt="a lighthouse", width=64, height=64, steps=2, seed=3)


def config(**changes: Any) -> TrainConfig:
    """Settings of a run of three steps."""
    values: dict[str, Any] = {
        "name": "zqxl", "start_text": "red tower", "vectors": 2, "resolution": 64, "steps": 3, "batch_size": 1,
        "validate_every": 1, "validation_timesteps": 2, "checkpoint_every": 0, "warmup": 0,
    }  # fmt: skip
    return TrainConfig(**{**values, **changes})


def pictures() -> Dataset:
    """Two plain ones with captions."""
    return from_images([Image.new("RGB", (64, 64), colour) for colour in ("red", "blue")], ["a zqxl", "the zqxl"])
