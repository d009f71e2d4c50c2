"""A concept that the small SDXL has no word for: pictures to learn it from, and its error in pictures of new scenes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ti_fix.embedding import Embedding
from ti_fix.protocols import ImageRequest
from ti_fix.small import captions, load
from ti_fix.small.concepts import Concept, concepts
from ti_fix.small.scenes import render
from ti_fix.train import DoneEvent, TrainConfig, gather, train

NAME = "zqxheld"
SIDE, STEPS, CFG = 128, 10, 4.0
"""Of the pictures that are measured."""

SETTINGS: dict[str, Any] = {
    "resolution": SIDE, "steps": 40, "batch_size": 4, "learning_rate": "0.0015", "schedule": "cosine", "warmup": 5,
    "validate_every": 20,
}  # fmt: skip
"""What is entered on the page; the rate is a tenth of the vocabulary's RMS."""


def concept() -> Concept:
    """The one that is learned."""
    return concepts("shape")[0]


def put(folder: Path, count: int = 5) -> list[Path]:
    """Pictures and, in text files beside them, captions that call the concept by `NAME`."""
    folder.mkdir(parents=True, exist_ok=True)
    chance, wanted = random.Random("shown"), concept()
    files = []
    for number in range(count):
        drawn = wanted.draw(chance, NAME)
        files += [folder / f"{number}.png", folder / f"{number}.txt"]
        Image.fromarray(render(drawn.scene)).save(files[-2])
        files[-1].write_text(captions.plain_caption(drawn, chance), encoding="utf-8")
    return files


def prompts(word: str, count: int) -> list[str]:
    """New scenes; the same ones for every word."""
    chance, wanted = random.Random("new"), concept()
    scenes = [wanted.draw(chance, word) for _ in range(count)]
    return [captions.plain_caption(each, random.Random(f"caption {i}")) for i, each in enumerate(scenes)]


def error(pixels: Any) -> float:
    """Of one picture; 0 is exact, about 1 is missed."""
    return concept().errors(np.asarray(pixels, dtype=np.uint8))["error"]


def standalone(folder: Path, count: int) -> list[float]:
    """Errors of the pictures of the standalone host, trained with the same settings on the same files."""
    from ti_fix.hosts.standalone import StandaloneHost, StandaloneModel, parts_of_small

    host = StandaloneHost(StandaloneModel(parts_of_small(load("sdxl"))))
    config = TrainConfig(name=NAME, start_text=concept().class_word, folders=(str(folder),), **SETTINGS)
    learned: tuple[Embedding, ...] = ()
    for event in train(config, host.model(), gather(config)):
        if isinstance(event, DoneEvent):
            learned = (event.embedding,)
    asked = [
        ImageRequest(prompt=p, width=SIDE, height=SIDE, steps=STEPS, cfg_scale=CFG, seed=i, embeddings=learned)
        for i, p in enumerate(prompts(NAME, count))
    ]
    return [error(image) for image in host.generate_many(asked)]


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """95 % of the means of 2,000 samples with replacement (percentile bootstrap)."""
    values = np.asarray(differences)
    chosen = np.random.default_rng(0).integers(0, len(values), (2000, len(values)))
    low, high = np.quantile(values[chosen].mean(axis=1), (0.025, 0.975))
    return float(low), float(high)
