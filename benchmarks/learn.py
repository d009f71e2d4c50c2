"""How well a held-out concept is learned: ``python benchmarks/learn.py [--quick] [--json] [--optimiser NAME]``.

Each run shows five pictures of a concept that the small SDXL has no word for to `ti_fix.train.train`, and measures the
concept's error from the pixels of pictures that are then made in new scenes. Figure: the mean over the kinds of concept
of (error of the class word - ours) / (error of the class word - error of the twin, which was trained on the concepts by
name): 0 is no better than the nearest word, 1 as good as a model that knows the concept. A kind takes part only where
the twin beats the class word clearly. Beside it: other starts, steps and seconds.

The whole takes about 20 minutes of one processor. With ``--keep FILE`` each run is noted there when it is done, and the
command goes on from there when it is started again.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from harness import Figure, arguments, close, run_benchmark
from ti_fix.embedding import Embedding
from ti_fix.hosts.standalone import StandaloneHost, StandaloneModel, parts_of_small
from ti_fix.protocols import ImageRequest
from ti_fix.small import captions, load
from ti_fix.small.concepts import KINDS, Concept, concepts
from ti_fix.small.scenes import render
from ti_fix.train import DoneEvent, TrainConfig, from_images, train

TRIGGER = "zqx-one"
GOAL, ADMISSION = 0.90, 0.7
PICTURES = 5
"""Shown to a run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Sizes of a measurement: one value of each kind is one seed. Settings are tuned on the values from 5 on."""

    kinds: tuple[str, ...] = KINDS
    first: int = 0
    values: int = 5
    steps: int = 400
    batch: int = 4
    vectors: int = 3
    rate: str = "0.2"
    optimiser: str = "adamw"
    weighting: str = "debiased"
    made: int = 16
    starts: tuple[str, ...] = ("words", "random")


SIZES = ("first", "values", "steps", "batch", "vectors", "made")
CHOICES = ("rate", "optimiser", "weighting")
FULL = Plan()
QUICK = Plan(kinds=("hue",), values=1, steps=20, made=4, starts=("words",))


@cache
def host(name: str) -> StandaloneHost:
    """A small model as a host."""
    return StandaloneHost(StandaloneModel(parts_of_small(load(name))))


def scenes(concept: Concept, word: str, count: int, what: str) -> list[captions.Described]:
    """New scenes of a concept, described with a word."""
    chance = random.Random(f"{what} {concept.name}")
    return [concept.draw(chance, word) for _ in range(count)]


def texts(described: Sequence[captions.Described], what: str) -> list[str]:
    """A caption for each scene."""
    chance = random.Random(what)
    return [captions.plain_caption(each, chance) for each in described]


def error(on: StandaloneHost, concept: Concept, word: str, count: int, embedding: Embedding | None = None) -> float:
    """Mean error of pictures of new scenes; the same scenes, captions and noises for every word."""
    prompts = texts(scenes(concept, word, count, "made"), f"prompts {concept.name}")
    given = () if embedding is None else (embedding,)
    requests = [
        ImageRequest(prompt=p, width=128, height=128, steps=10, cfg_scale=4.0, seed=7000 + i, embeddings=given)
        for i, p in enumerate(prompts)
    ]
    return statistics.mean(concept.errors(np.asarray(image))["error"] for image in on.generate_many(requests))


def settings(concept: Concept, start: str, plan: Plan) -> TrainConfig:
    """As a user would set them for five pictures of 128 pixels."""
    return TrainConfig(
        name=TRIGGER,
        start=start,
        start_text=concept.class_word,
        start_noise=0.1,
        resolution=128,
        steps=plan.steps,
        batch_size=plan.batch,
        vectors=plan.vectors,
        warmup=5,
        learning_rate=plan.rate,
        rate_unit="rms",
        schedule="cosine",
        optimiser=plan.optimiser,
        weighting=plan.weighting,
        validate_every=50,
        seed=concept.index,
    )


def learned(concept: Concept, config: TrainConfig) -> tuple[Embedding, int, float]:
    """The embedding, the step that it is from, and seconds of processor time in steps."""
    described = scenes(concept, TRIGGER, PICTURES, "shown")
    images = [Image.fromarray(render(each.scene)) for each in described]
    data = from_images(images, list(texts(described, f"captions {concept.name}")))
    start, end = time.process_time(), None
    for event in train(config, host("sdxl").model(), data):
        if isinstance(event, DoneEvent):
            end = event
    assert end is not None
    return end.embedding, end.best_step, time.process_time() - start


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """What the nearest word and the twin reach for one concept."""

    kind: str
    index: int
    class_word: float
    twin: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Row(Bounds):
    """One run."""

    start: str
    ours: float
    best_step: int
    seconds: float


class Notebook:
    """What an interrupted call has measured, and where to note more; without a file nothing is kept."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        lines = file.read_text(encoding="utf-8").splitlines() if file is not None and file.exists() else []
        self._found: list[Bounds] = [(Row if "start" in line else Bounds)(**json.loads(line)) for line in lines]

    def bounds(self, concept: Concept) -> Bounds | None:
        """Of a concept."""
        return next((each for each in self._of(concept) if type(each) is Bounds), None)

    def row(self, concept: Concept, start: str) -> Row | None:
        """The run of a concept from a start."""
        return next((each for each in self._of(concept) if isinstance(each, Row) and each.start == start), None)

    def _of(self, concept: Concept) -> list[Bounds]:
        return [each for each in self._found if (each.kind, each.index) == (concept.kind, concept.index)]

    def note(self, found: Bounds) -> None:
        """Keep a measurement."""
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(found)) + "\n")


def bounds_of(concept: Concept, plan: Plan, twin: str, notes: Notebook) -> Bounds:
    """Measured, or as noted."""
    if known := notes.bounds(concept):
        return known
    found = Bounds(
        kind=concept.kind,
        index=concept.index,
        class_word=error(host("sdxl"), concept, concept.class_word, plan.made),
        twin=error(host(twin), concept, concept.name, plan.made),
    )
    notes.note(found)
    return found


def row_of(concept: Concept, start: str, plan: Plan, bounds: Bounds) -> Row:
    """Train and measure."""
    embedding, step, seconds = learned(concept, settings(concept, start, plan))
    ours = error(host("sdxl"), concept, TRIGGER, plan.made, embedding)
    print(f"{concept.kind} {concept.index} from {start}: class word {bounds.class_word:.3f}, twin {bounds.twin:.3f}, "
          f"ours {ours:.3f} (step {step}, {seconds:.0f} s)", file=sys.stderr, flush=True)  # fmt: skip
    return Row(**asdict(bounds), start=start, ours=ours, best_step=step, seconds=seconds)


def rows_of(plan: Plan, flags: argparse.Namespace) -> tuple[dict[str, list[Bounds]], list[Row]]:
    """Bounds of every kind, and the runs of those that are admitted, all of one start before the next."""
    notes = Notebook(flags.keep)
    chosen = {kind: concepts(kind)[plan.first : plan.first + plan.values] for kind in plan.kinds}
    bounds = {kind: [bounds_of(each, plan, flags.twin, notes) for each in some] for kind, some in chosen.items()}
    rows = []
    for start in plan.starts:
        for kind in plan.kinds:
            if not admitted(bounds[kind]):
                continue
            for concept, each in zip(chosen[kind], bounds[kind], strict=True):
                row = notes.row(concept, start)
                if row is None:
                    notes.note(row := row_of(concept, start, plan, each))
                rows.append(row)
    return bounds, rows


def score(rows: Sequence[Row]) -> float:
    """Share of the way from the class word to the twin, by the means over the values."""
    word, twin, ours = (statistics.mean(getattr(r, name) for r in rows) for name in ("class_word", "twin", "ours"))
    return (word - ours) / (word - twin)


def admitted(rows: Sequence[Bounds]) -> bool:
    """Whether the twin shows that the kind can be expressed."""
    return statistics.mean(r.twin for r in rows) < ADMISSION * statistics.mean(r.class_word for r in rows)


def interval(rows: Sequence[Row]) -> tuple[float, float]:
    """95 % of 2000 resamplings of the values."""
    chance = random.Random(0)
    found = sorted(score([chance.choice(rows) for _ in rows]) for _ in range(2000))
    return found[50], found[1949]


def report(bounds: dict[str, list[Bounds]], rows: Sequence[Row], plan: Plan) -> float | None:
    """Print the table; the mean over the admitted kinds for the first start, None where none is admitted."""
    print("| kind | start | class word | twin | ours | score | 95 % | best step | s |")
    print("|---|---|---|---|---|---|---|---|---|")
    scores = []
    for kind in plan.kinds:
        word, twin = (statistics.mean(getattr(each, n) for each in bounds[kind]) for n in ("class_word", "twin"))
        if not admitted(bounds[kind]):
            print(f"| {kind} | | {word:.3f} | {twin:.3f} | not admitted | | | | |")
            continue
        for start in plan.starts:
            some = [r for r in rows if (r.kind, r.start) == (kind, start)]
            (low, high), ours = interval(some), statistics.mean(r.ours for r in some)
            steps, seconds = statistics.mean(r.best_step for r in some), statistics.mean(r.seconds for r in some)
            print(f"| {kind} | {start} | {word:.3f} | {twin:.3f} | {ours:.3f} | {score(some):.2f} | {low:.2f} to "
                  f"{high:.2f} | {steps:.0f} | {seconds:.0f} |")  # fmt: skip
            if start == plan.starts[0]:
                scores.append(score(some))
    return statistics.mean(scores) if scores else None


def main() -> None:
    flags, plan = _flags()
    bounds, rows = rows_of(plan, flags)
    figure = report(bounds, rows, plan)
    if figure is None:
        print("No kind is admitted: the twin is no better than the class word. Nothing can be said.")
        figure = 0.0
    close(
        Figure(name="learn", figure=figure, unit="of the way from the class word to the twin", better="higher",
               goal=GOAL, n=sum(r.start == plan.starts[0] for r in rows)), flags)  # fmt: skip


def _flags() -> tuple[argparse.Namespace, Plan]:
    own = argparse.ArgumentParser(add_help=False)
    for size in SIZES:
        own.add_argument(f"--{size}", type=int)
    for name in CHOICES:
        own.add_argument(f"--{name}")
    own.add_argument("--kinds", nargs="*")
    own.add_argument("--starts", nargs="*")
    own.add_argument("--twin", default="sdxl-twin")
    own.add_argument("--keep", type=Path)
    extra, rest = own.parse_known_args()
    sys.argv[1:] = rest
    flags = arguments(__doc__ or "")
    for name, value in vars(extra).items():
        setattr(flags, name, value)
    plan = QUICK if flags.quick else FULL
    given = {name: getattr(flags, name) for name in (*SIZES, *CHOICES)}
    given |= {name: tuple(getattr(flags, name)) for name in ("kinds", "starts") if getattr(flags, name)}
    return flags, replace(plan, **{name: value for name, value in given.items() if value is not None})


if __name__ == "__main__":
    run_benchmark(main)
