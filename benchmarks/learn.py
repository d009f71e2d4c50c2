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
from collections.abc import Iterator, Sequence
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
    """Sizes of a measurement: one value of each kind is one seed."""

    kinds: tuple[str, ...] = KINDS
    values: int = 5
    steps: int = 100
    made: int = 16
    starts: tuple[str, ...] = ("words", "mean", "random")


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


def settings(concept: Concept, start: str, plan: Plan, flags: argparse.Namespace) -> TrainConfig:
    """As a user would set them for five pictures of 128 pixels."""
    return TrainConfig(
        name=TRIGGER,
        start=start,
        start_text=f"{concept.class_word}:1 thing:.5" if start == "mean" else concept.class_word,
        resolution=128,
        steps=plan.steps,
        batch_size=4,
        warmup=5,
        learning_rate=flags.rate,
        rate_unit="rms",
        schedule="cosine",
        optimiser=flags.optimiser,
        weighting=flags.weighting,
        validate_every=25,
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
class Row:
    """One run."""

    kind: str
    index: int
    start: str
    class_word: float
    twin: float
    ours: float
    best_step: int
    seconds: float


def measure(concept: Concept, plan: Plan, flags: argparse.Namespace, known: Sequence[Row]) -> Iterator[Row]:
    """All starts of one concept; `known` are those that an earlier call has measured."""
    done = {row.start: row for row in known if (row.kind, row.index) == (concept.kind, concept.index)}
    yield from (done[start] for start in plan.starts if start in done)
    missing = [start for start in plan.starts if start not in done]
    if not missing:
        return
    some = next(iter(done.values()), None)
    class_word = some.class_word if some else error(host("sdxl"), concept, concept.class_word, plan.made)
    named = some.twin if some else error(host(flags.twin), concept, concept.name, plan.made)
    for start in missing:
        embedding, step, seconds = learned(concept, settings(concept, start, plan, flags))
        ours = error(host("sdxl"), concept, TRIGGER, plan.made, embedding)
        print(f"{concept.kind} {concept.index} from {start}: class word {class_word:.3f}, twin {named:.3f}, "
              f"ours {ours:.3f} (step {step}, {seconds:.0f} s)", file=sys.stderr, flush=True)  # fmt: skip
        yield Row(kind=concept.kind, index=concept.index, start=start, class_word=class_word, twin=named, ours=ours,
                  best_step=step, seconds=seconds)  # fmt: skip


def kept(file: Path | None) -> list[Row]:
    """The rows that an interrupted call has noted."""
    if file is None or not file.exists():
        return []
    return [Row(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]


def rows_of(plan: Plan, flags: argparse.Namespace) -> list[Row]:
    """All rows; each new one is noted in the file to keep."""
    known = kept(flags.keep)
    found = []
    for kind in plan.kinds:
        for concept in concepts(kind)[: plan.values]:
            for row in measure(concept, plan, flags, known):
                found.append(row)
                if flags.keep is not None and row not in known:
                    with flags.keep.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(asdict(row)) + "\n")
    return found


def score(rows: Sequence[Row]) -> float:
    """Share of the way from the class word to the twin, by the means over the values."""
    word, twin, ours = (statistics.mean(getattr(r, name) for r in rows) for name in ("class_word", "twin", "ours"))
    return (word - ours) / (word - twin)


def admitted(rows: Sequence[Row]) -> bool:
    """Whether the twin shows that the kind can be expressed."""
    return statistics.mean(r.twin for r in rows) < ADMISSION * statistics.mean(r.class_word for r in rows)


def interval(rows: Sequence[Row]) -> tuple[float, float]:
    """95 % of 2000 resamplings of the values."""
    chance = random.Random(0)
    found = sorted(score([chance.choice(rows) for _ in rows]) for _ in range(2000))
    return found[50], found[1949]


def report(rows: Sequence[Row], plan: Plan) -> float | None:
    """Print the table; the mean over the admitted kinds for the first start, None where none is admitted."""
    print("| kind | start | class word | twin | ours | score | 95 % | steps | s |")
    print("|---|---|---|---|---|---|---|---|---|")
    scores = []
    for kind in plan.kinds:
        for start in plan.starts:
            some = [r for r in rows if (r.kind, r.start) == (kind, start)]
            word, twin, ours = (statistics.mean(getattr(r, n) for r in some) for n in ("class_word", "twin", "ours"))
            if not admitted(some):
                print(f"| {kind} | {start} | {word:.3f} | {twin:.3f} | {ours:.3f} | not admitted | | | |")
                continue
            low, high = interval(some)
            steps, seconds = statistics.mean(r.best_step for r in some), statistics.mean(r.seconds for r in some)
            print(f"| {kind} | {start} | {word:.3f} | {twin:.3f} | {ours:.3f} | {score(some):.2f} | {low:.2f} to "
                  f"{high:.2f} | {steps:.0f} | {seconds:.0f} |")  # fmt: skip
            if start == plan.starts[0]:
                scores.append(score(some))
    return statistics.mean(scores) if scores else None


def main() -> None:
    flags, plan = _flags()
    rows = rows_of(plan, flags)
    figure = report(rows, plan)
    if figure is None:
        print("No kind is admitted: the twin is no better than the class word. Nothing can be said.")
        figure = 0.0
    close(
        Figure(name="learn", figure=figure, unit="of the way from the class word to the twin", better="higher",
               goal=GOAL, n=plan.values * len(plan.kinds)), flags)  # fmt: skip


def _flags() -> tuple[argparse.Namespace, Plan]:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--optimiser", default="adamw")
    own.add_argument("--rate", default="0.1")
    own.add_argument("--weighting", default="debiased")
    own.add_argument("--steps", type=int)
    own.add_argument("--kinds", nargs="*")
    own.add_argument("--twin", default="sdxl-twin")
    own.add_argument("--keep", type=Path)
    extra, rest = own.parse_known_args()
    sys.argv[1:] = rest
    flags = arguments(__doc__ or "")
    for name, value in vars(extra).items():
        setattr(flags, name, value)
    plan = QUICK if flags.quick else FULL
    plan = replace(plan, steps=flags.steps or plan.steps, kinds=tuple(flags.kinds or plan.kinds))
    return flags, plan


if __name__ == "__main__":
    run_benchmark(main)
