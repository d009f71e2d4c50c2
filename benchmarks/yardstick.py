"""Can the small models tell methods of Textual Inversion apart? ``python benchmarks/yardstick.py [--quick] [--json]``

For each concept kind, eight held-out values are learned twice, by a sound variant and by a deliberately slow one, and
their error is measured from pixels after 10, 25, 50 and 150 steps on the same captions and noises. Figure: the share
of concept kinds on which the two are separated (paired t-test over the values, 5 %) at one or more of these points.
A kind takes part only when the twin, which knows the values by name, beats the class word clearly.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from harness import Figure, arguments, close, run_benchmark
from ti_fix.small import captions, load
from ti_fix.small.concepts import KINDS, Concept, concepts
from ti_fix.small.inversion import MARK, Inverter, Job
from ti_fix.small.judges import read
from ti_fix.small.scenes import BACKGROUNDS

RATES = {"sound": 1e-3, "slow": 2e-4}
GOAL, LEVEL, ADMISSION = 0.75, 0.05, 0.7  # the twin's error must be below this share of the class word's


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Sizes of a run."""

    kinds: tuple[str, ...] = KINDS
    values: int = 8
    pictures: int = 25  # per value and point
    points: tuple[int, ...] = (10, 25, 50, 150)
    probe: int = 40


FULL = Plan()
QUICK = Plan(kinds=("hue", "two-tone", "shape"), values=4, pictures=4, points=(25,), probe=0)


def prompts(concept: Concept, count: int, word: str) -> tuple[list[str], list[captions.Described]]:
    """Captions of new scenes of the concept, said with ``word``."""
    rng = random.Random(f"prompts{concept.name}")
    described = [concept.draw(rng, word) for _ in range(count)]
    return [captions.plain_caption(d, rng) for d in described], described


def errors(
    inverter: Inverter, values: list[Concept], plan: Plan, vectors: dict[str, Tensor], jobs: list[int], words: list[str]
) -> NDArray[np.float64]:
    """Mean error per value, (values,), with job ``jobs[i]``'s vector or plain ``words[i]`` for value i."""
    texts, owner = [], []
    for concept, job, word in zip(values, jobs, words, strict=True):
        texts += prompts(concept, plan.pictures, word)[0]
        owner += [job] * plan.pictures
    seeds = [7000 + k for _ in values for k in range(plan.pictures)]
    pictures = inverter.generate(texts, owner, vectors, 1, seeds)
    pixels = ((pictures.permute(0, 2, 3, 1).numpy() + 1) * 127.5).reshape(len(values), plan.pictures, 128, 128, 3)
    return np.array([np.mean([c.errors(p)["error"] for p in row]) for c, row in zip(values, pixels, strict=True)])


def paired_p(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Two-sided p of a paired t-test (t by its normal approximation of Wallace 1959; exact enough from n = 4 on)."""
    difference = a - b
    n, spread = len(difference), float(difference.std(ddof=1))
    if spread == 0:
        return 1.0
    t, df = abs(float(difference.mean())) / (spread / math.sqrt(n)), n - 1
    z = (8 * df + 1) / (8 * df + 3) * math.sqrt(df * math.log1p(t * t / df))
    return 2 * (1 - NormalDist().cdf(z))


def measure_kind(kind: str, plan: Plan, base: Inverter, twin: Inverter) -> dict[str, object]:
    """All figures of one concept kind."""
    values = list(concepts(kind))[: plan.values]
    none = {k: t.new for k, t in base.tables.items()}
    zeros = [0] * len(values)
    class_word = errors(base, values, plan, none, zeros, [c.class_word for c in values])
    named = errors(twin, values, plan, {k: t.new for k, t in twin.tables.items()}, zeros, [c.name for c in values])
    jobs = [Job(concept=c, seed=c.index, rate=rate) for rate in RATES.values() for c in values]
    history = base.train(jobs, plan.points[-1])
    rows = []
    for point in plan.points:
        first = errors(base, values, plan, history[point], list(range(len(values))), [MARK] * len(values))
        second = errors(base, values, plan, history[point], list(range(len(values), len(jobs))), [MARK] * len(values))
        rows.append(
            {
                "steps": point,
                "sound": round(float(first.mean()), 4),
                "slow": round(float(second.mean()), 4),
                "spread": round(float((first - second).std(ddof=1)), 4),
                "p": round(paired_p(first, second), 5),
            }
        )
    admitted = float(named.mean()) < ADMISSION * float(class_word.mean())
    separated = any(r["p"] < LEVEL and r["sound"] < r["slow"] for r in rows)
    result: dict[str, object] = {
        "kind": kind,
        "class_word": round(float(class_word.mean()), 4),
        "twin": round(float(named.mean()), 4),
        "admitted": admitted,
        "separated": separated,
        "points": rows,
    }
    if plan.probe:
        result["probe"] = probe(base, values[0], history[-1], plan.probe)
    return result


def probe(inverter: Inverter, concept: Concept, vectors: dict[str, Tensor], count: int) -> dict[str, float]:
    """Background obedience with one vector, with the vector four times, and with filler words (the control)."""
    texts, described = prompts(concept, count, MARK)
    wanted = np.array([BACKGROUNDS.index(d.background) for d in described])
    forms = {
        "one": texts,
        "four": [t.replace(MARK, " ".join([MARK] * 4)) for t in texts],
        "filler": [f"a a a {t}" for t in texts],
    }
    out = {}
    for name, lines in forms.items():
        pictures = inverter.generate(lines, [0] * count, vectors, 1, list(range(900, 900 + count)))
        out[name] = round(float((read(pictures)["background"] == wanted).mean()), 3)
    return out


def table(results: list[dict[str, object]]) -> str:
    """Markdown of all points."""
    lines = ["| kind | class word | twin | steps | sound | slow | spread | p |", "|---|---|---|---|---|---|---|---|"]
    for result in results:
        lines += [
            f"| {result['kind']} | {result['class_word']} | {result['twin']} | {row['steps']} | {row['sound']} | "
            f"{row['slow']} | {row['spread']} | {row['p']} |"
            for row in result["points"]
        ]  # type: ignore[attr-defined]
    return "\n".join(lines)


def main() -> None:
    """Measure every kind and print the table."""
    flags = arguments(__doc__ or "")
    plan, start = (QUICK if flags.quick else FULL), time.time()
    base, twin = Inverter(load("sdxl")), Inverter(load("sdxl-twin"))
    results = [measure_kind(kind, plan, base, twin) for kind in plan.kinds]
    good = sum(bool(r["admitted"] and r["separated"]) for r in results)
    print(table(results))
    for result in results:
        print(
            result["kind"],
            "admitted" if result["admitted"] else "not admitted (the twin is no better)",
            result.get("probe", ""),
        )
    print(f"{time.time() - start:.0f} s")
    close(
        Figure(
            name="yardstick",
            figure=good / len(results),
            unit="of the concept kinds separated",
            better="higher",
            goal=GOAL,
            n=plan.values * plan.pictures,
        ),
        flags,
    )


if __name__ == "__main__":
    run_benchmark(main)
