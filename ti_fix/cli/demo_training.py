"""The demo's training: a concept that the small model has no word for, with pictures from before and after."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from ti_fix.cli.demo_report import Section, strip
from ti_fix.cli.output import show
from ti_fix.embedding import Embedding
from ti_fix.hosts.standalone import StandaloneHost, StandaloneModel, parts_of_small
from ti_fix.protocols import ImageRequest
from ti_fix.small import captions, load
from ti_fix.small.concepts import Concept, concepts
from ti_fix.small.expand import fold, unfold
from ti_fix.small.scenes import render
from ti_fix.train import DoneEvent, FindingEvent, StepEvent, TrainConfig, ValidationEvent, from_images, train

NAME = "zqx-demo"
KIND = "hue"
STEPS = 120
_SHOWN, _MADE = 5, 8
_TOLD_EVERY = 20


def small_host() -> StandaloneHost:
    """The small SDXL; files of published widths are folded to its own."""
    return StandaloneHost(StandaloneModel(parts_of_small(load("sdxl"))), fit=fold)


def described(concept: Concept, word: str, count: int, what: str) -> tuple[list[Image.Image], list[str]]:
    """Pictures of the concept with captions that call it by a word; `what` is their seed."""
    chance = random.Random(f"{what} {concept.name}")
    scenes = [concept.draw(chance, word) for _ in range(count)]
    texts = [captions.plain_caption(each, random.Random(f"{what} {i}")) for i, each in enumerate(scenes)]
    return [Image.fromarray(render(each.scene)) for each in scenes], texts


def pictures(host: StandaloneHost, prompts: Sequence[str], embedding: Embedding | None = None) -> list[Image.Image]:
    """What the model draws, always from the same noises."""
    given = () if embedding is None else (embedding,)
    return host.generate_many(
        [
            ImageRequest(prompt=prompt, width=128, height=128, steps=12, cfg_scale=4.0, seed=50 + i, embeddings=given)
            for i, prompt in enumerate(prompts)
        ]
    )


def run_training(root: Path) -> Section:
    """Train, and draw the same new scenes with the nearest word and with what was learned."""
    host, concept = small_host(), concepts(KIND)[0]
    shown, texts = described(concept, NAME, _SHOWN, "shown")
    photos = _kept(shown, texts, root / "photos")
    config = TrainConfig(
        name=NAME,
        start_text=concept.class_word,
        resolution=128,
        steps=STEPS,
        warmup=5,
        learning_rate="0.1",
        rate_unit="rms",
        schedule="cosine",
        validate_every=_TOLD_EVERY,
        out=str(root / "learned"),
        overwrite=True,
    )
    show(f"{_SHOWN} pictures of a colour that the model has no word for; the nearest one is {concept.class_word!r}.")
    started = time.monotonic()
    end = _trained(config, host, shown, list(texts))
    seconds = time.monotonic() - started
    before = pictures(host, described(concept, concept.class_word, _MADE, "new")[1])
    after = pictures(host, described(concept, NAME, _MADE, "new")[1], end.embedding)
    was, now = (statistics.mean(concept.errors(np.asarray(each))["error"] for each in some) for some in (before, after))
    trained = (
        f"Trained for {end.step} steps in {seconds:.0f} s on {_SHOWN} pictures; the vectors are those of step "
        f"{end.best_step}, in {end.path}."
    )
    measured = (
        f"Error of {_MADE} new pictures, measured from their pixels (0 is exact, 1 is missed): {was:.2f} with the word "
        f"{concept.class_word!r}, {now:.2f} with {NAME!r}."
    )
    return Section(
        title="Train: a colour that words cannot name",
        lines=[trained, measured, f"The pictures and their captions are in {photos}, to train on them yourself."],
        pictures={
            strip(shown, root / "pictures" / "shown.png"): "what was shown to the training",
            strip(before, root / "pictures" / "before.png"): f"before: new scenes with the word {concept.class_word!r}",
            strip(after, root / "pictures" / "after.png"): f"after: the same scenes with {NAME!r}",
        },
    )


def _kept(images: Sequence[Image.Image], texts: Sequence[str], folder: Path) -> Path:
    """Pictures with captions beside them, as folders for training are made."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (image, text) in enumerate(zip(images, texts, strict=True), 1):
        image.save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text(text, encoding="utf-8")
    return folder


def _trained(config: TrainConfig, host: StandaloneHost, shown: list[Image.Image], texts: list[str]) -> DoneEvent:
    """Run to the end, telling every now and then how far it is."""
    data = from_images(shown, list(texts))
    for event in train(config, host.model(), data, fit=fold, publish=unfold):
        if isinstance(event, StepEvent) and event.step % _TOLD_EVERY == 0:
            show(f"  step {event.step} of {event.steps}, {event.seconds:.2f} s a step")
        elif isinstance(event, ValidationEvent):
            show(f"  validation loss {event.loss:.5f}")
        elif isinstance(event, FindingEvent) and event.finding.severity != "note":
            show(f"  {event.finding.message}")
        elif isinstance(event, DoneEvent):
            return event
    raise AssertionError("a run ends with a DoneEvent")
