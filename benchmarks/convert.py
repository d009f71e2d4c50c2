"""SD1.5 embeddings on SDXL: what does each way to convert them come to? ``benchmarks/convert.py [--quick] [--json]``

Embeddings of held-out concepts are trained on the small SD1.5 and, natively, on the small SDXL, from the same pictures.
Each way makes the bigG half of the SD1.5 ones, and the SDXL pictures are judged from pixels: error 0 is the concept, 1
a miss. Five seeds, each with other values of the concepts; intervals are 95 % bootstrap over embeddings. A kind of
concept takes part only where training beats the class word clearly on both models: what the SD1.5 embedding has not
learned cannot be converted, and where SDXL learns nothing there is no gain to have a share of. What can be reached at
all with the SD1.5 half as it is shows the bigG half that is trained beside it on SDXL. Figure: the share of the
native gain (class word's error minus native error) that ``auto`` reaches.

The whole takes about 30 minutes of one processor.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harness import Figure, arguments, close, run_benchmark
from ti_fix.convert import MATCH, Conversion, ConvertConfig, Converter
from ti_fix.embedding import CLIP_G, CLIP_L, Embedding, Vocabulary
from ti_fix.hosts.standalone import StandaloneModel, parts_of_small
from ti_fix.small import captions, load
from ti_fix.small.concepts import KINDS, Concept, concepts
from ti_fix.small.inversion import MARK, Inverter, Job
from ti_fix.small.models import SmallModel

GOAL = 0.80
RATE = 2e-3
NONE, PLAIN, ZERO, LEFT, NATIVE = "no embedding (class word)", "name as plain text", "zero bigG", "L only", "native"
WAYS = {
    "vocabulary": "nearest word",
    "sparse": "sparse",
    "linear": "linear",
    "sparse+linear": "sparse and linear",
    "local": "map and words around",
}
BESIDE = "bigG trained beside it"
OLD_NONE, OLD_NATIVE = "class word on SD1.5", "native on SD1.5"

Errors = NDArray[np.float64]
Vectors = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Sizes of a run."""

    kinds: tuple[str, ...] = KINDS
    values: int = 2  # of each kind a seed
    seeds: int = 5
    steps: int = 120
    pictures: int = 3  # for each embedding and way
    match_steps: int = 40
    match_words: int = 256


FULL = Plan()
QUICK = Plan(kinds=("hue", "two-tone"), values=1, seeds=2, steps=8, pictures=2, match_steps=4, match_words=32)


def jobs_of(plan: Plan) -> list[Job]:
    """The embeddings to train: each seed other values."""
    picked = [
        (concepts(kind)[(seed * plan.values + k) % len(concepts(kind))], seed)
        for seed in range(plan.seeds)
        for kind in plan.kinds
        for k in range(plan.values)
    ]
    return [Job(concept=concept, seed=seed, rate=RATE) for concept, seed in picked]


def converted(lefts: Tensor, model: SmallModel, plan: Plan) -> dict[str, Tensor]:
    """Way -> bigG vectors (jobs, width)."""
    tables = {key: encoder.get_input_embeddings().weight.detach() for key, encoder in model.text_encoders.items()}
    words = Vocabulary(tables=tables, tokenize=lambda _: [0], trained=model.trained_rows[CLIP_G.key])
    converter = Converter(words)
    embedding = Embedding(name="benchmark-xq", vectors={CLIP_L.key: lefts})
    found: dict[str, Tensor] = {}
    for method, said in {**WAYS, "auto": "auto"}.items():
        done = converter.to_sdxl(embedding, ConvertConfig(method=method))
        found[said] = done.embedding.vectors[CLIP_G.key]
        if method == "auto":
            expected = [row.confidence.expected for row in done.rows]
            print(f"auto: {done.message} expected {min(expected):.2f} to {max(expected):.2f}")
    found["output matching"] = matched(lefts, words, model, plan)
    return found


def matched(lefts: Tensor, words: Vocabulary, model: SmallModel, plan: Plan) -> Tensor:
    """Output matching, one embedding after the other."""
    converter = Converter(words, model=StandaloneModel(parts_of_small(load(model.name))))
    config = ConvertConfig(method=MATCH, steps=plan.match_steps, words=plan.match_words)
    rows = []
    for left in lefts:
        *_, last = converter.events(
            Embedding(name="benchmark-xq", vectors={CLIP_L.key: left[None]}), config, lambda: False
        )
        assert isinstance(last, Conversion)
        rows.append(last.embedding.vectors[CLIP_G.key][0])
    return torch.stack(rows)


def errors(sdxl: Inverter, jobs: list[Job], vectors: Vectors, word: Callable[[Concept], str], plan: Plan) -> Errors:
    """Mean error of each job's pictures, (jobs,), on the same captions and noises for all ways."""
    texts, owners, seeds = [], [], []
    for number, job in enumerate(jobs):
        rng = random.Random(f"judge{job.concept.name}{job.seed}")
        for k in range(plan.pictures):
            texts.append(captions.plain_caption(job.concept.draw(rng, word(job.concept)), rng))
            owners.append(number)
            seeds.append(9000 + 50 * job.seed + k)
    pictures = sdxl.generate(texts, owners, dict(vectors), 1, seeds)
    pixels = (pictures.permute(0, 2, 3, 1).numpy() + 1) * 127.5
    found = [jobs[owner].concept.errors(picture)["error"] for owner, picture in zip(owners, pixels, strict=True)]
    return np.array(found).reshape(len(jobs), plan.pictures).mean(1)


def measure(plan: Plan) -> dict[str, Errors]:
    """Way -> errors (jobs,)."""
    jobs, start = jobs_of(plan), time.time()
    lefts = Inverter(load("sd15")).train(jobs, plan.steps)[-1][CLIP_L.key]
    print(f"{len(jobs)} embeddings trained on the small SD1.5, {time.time() - start:.0f} s", flush=True)
    native = Inverter(load("sdxl")).train(jobs, plan.steps)[-1]
    print(f"and on the small SDXL, {time.time() - start:.0f} s", flush=True)
    beside = Inverter(load("sdxl")).train(jobs, plan.steps, fixed={CLIP_L.key: lefts})[-1][CLIP_G.key]
    print(f"and bigG halves beside the SD1.5 ones, {time.time() - start:.0f} s", flush=True)
    found = judged(jobs, lefts, native, beside, plan)
    print(f"converted and judged, {time.time() - start:.0f} s")
    return found


def judged(jobs: list[Job], lefts: Tensor, native: Vectors, beside: Tensor, plan: Plan) -> dict[str, Errors]:
    """The same for vectors that are trained.

    Args:
        jobs: what they were trained for.
        lefts: (jobs, width) on SD1.5.
        native: on SDXL.
        beside: (jobs, bigG width) on SDXL, with `lefts` as they are.
        plan: sizes.
    """
    old, sdxl = Inverter(load("sd15")), Inverter(load("sdxl"))
    plain = {key: table.weight[sdxl.mark].expand(len(jobs), -1) for key, table in sdxl.tables.items()}
    ways: dict[str, Vectors] = {
        PLAIN: plain,
        ZERO: {CLIP_L.key: lefts, CLIP_G.key: torch.zeros_like(native[CLIP_G.key])},
        LEFT: {CLIP_L.key: lefts, CLIP_G.key: plain[CLIP_G.key]},
        **{
            said: {CLIP_L.key: lefts, CLIP_G.key: right} for said, right in converted(lefts, load("sdxl"), plan).items()
        },
        BESIDE: {CLIP_L.key: lefts, CLIP_G.key: beside},
        NATIVE: native,
    }
    own = {CLIP_L.key: lefts}
    found = {
        OLD_NONE: errors(old, jobs, own, lambda concept: concept.class_word, plan),
        OLD_NATIVE: errors(old, jobs, own, lambda _: MARK, plan),
        NONE: errors(sdxl, jobs, native, lambda concept: concept.class_word, plan),
    }
    return found | {said: errors(sdxl, jobs, vectors, lambda _: MARK, plan) for said, vectors in ways.items()}


def admitted(found: Mapping[str, Errors]) -> bool:
    """Whether training beats the class word on both models, by the lower end of the interval."""
    gains = [found[none] - found[native] for none, native in ((OLD_NONE, OLD_NATIVE), (NONE, NATIVE))]
    return all(interval(lambda rows, g=gain: float(g[rows].mean()), len(gain))[0] > 0 for gain in gains)  # type: ignore[misc]


def of_kinds(found: Mapping[str, Errors], kinds: Sequence[str], wanted: Sequence[str]) -> dict[str, Errors]:
    """Only the embeddings of the wanted kinds."""
    rows = np.isin(np.array(kinds), wanted)
    return {way: values[rows] for way, values in found.items()}


def share(found: Mapping[str, Errors], way: str, rows: NDArray[np.int64] | None = None) -> float:
    """Of the native gain that a way reaches; NaN where training on the SDXL itself gained nothing."""
    none, here, native = (found[k] if rows is None else found[k][rows] for k in (NONE, way, NATIVE))
    gain = float(none.mean() - native.mean())
    return float(none.mean() - here.mean()) / gain if gain > 0 else float("nan")


def interval(values: Callable[[NDArray[np.int64]], float], count: int) -> tuple[float, float]:
    """95 % bootstrap over embeddings."""
    rng = np.random.default_rng(0)
    drawn = [values(rng.integers(0, count, count)) for _ in range(2000)]
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def table(found: Mapping[str, Errors]) -> str:
    """Markdown of all ways."""
    lines = ["| way | error | 95 % | share of the native gain | 95 % |", "|---|---|---|---|---|"]
    for way, values in found.items():
        low, high = interval(lambda rows, v=values: float(v[rows].mean()), len(values))  # type: ignore[misc]
        first, last = interval(lambda rows, w=way: share(found, w, rows), len(values))  # type: ignore[misc]
        lines.append(
            f"| {way} | {values.mean():.3f} | {low:.3f} to {high:.3f} | {share(found, way):.2f} | "
            f"{first:.2f} to {last:.2f} |"
        )
    return "\n".join(lines)


def against_the_best(found: Mapping[str, Errors]) -> str:
    """Whether ``auto`` is worse than the best single rung."""
    best = min(WAYS.values(), key=lambda way: float(found[way].mean()))
    difference = found["auto"] - found[best]
    low, high = interval(lambda rows: float(difference[rows].mean()), len(difference))
    return f"auto minus the best single rung ({best}): {difference.mean():+.3f} ({low:+.3f} to {high:+.3f})"


def report(found: Mapping[str, Errors], kinds: Sequence[str]) -> tuple[float, int]:
    """Print all tables; the share that ``auto`` reaches on the admitted kinds, 0 where there are none, and how many."""
    by_kind = {kind: of_kinds(found, kinds, [kind]) for kind in dict.fromkeys(kinds)}
    good = [kind for kind, values in by_kind.items() if admitted(values)]
    shown = (OLD_NONE, OLD_NATIVE, NONE, "auto", NATIVE)
    print(f"| kind | {' | '.join(shown)} | admitted |\n" + "|---" * 7 + "|")
    for kind, values in by_kind.items():
        cells = " | ".join(f"{values[way].mean():.3f}" for way in shown)
        print(f"| {kind} | {cells} | {'yes' if kind in good else 'no'} |")
    if not good:
        print("No kind is admitted: training gained nothing clear over the class word. Nothing can be said.")
        return 0.0, 0
    here = of_kinds(found, kinds, good)
    print(table({way: values for way, values in here.items() if way not in (OLD_NONE, OLD_NATIVE)}))
    print(against_the_best(here))
    return share(here, "auto"), len(here["auto"])


def main() -> None:
    """Measure and print the tables."""
    flags = arguments(__doc__ or "")
    plan = QUICK if flags.quick else FULL
    reached, count = report(measure(plan), [job.concept.kind for job in jobs_of(plan)])
    close(
        Figure(
            name="convert",
            figure=reached,
            unit="of the native gain reached by auto",
            better="higher",
            goal=GOAL,
            n=count,
        ),
        flags,
    )


if __name__ == "__main__":
    run_benchmark(main)
