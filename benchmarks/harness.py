"""What every benchmark shares: its two flags, the machine it ran on, and the last line that scripts read."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """The outcome of a benchmark.

    Attributes:
        name: the benchmark.
        figure: the number that counts.
        unit: of the number.
        better: ``lower`` or ``higher``.
        goal: what was aimed at.
        n: how many measurements stand behind it.
    """

    name: str
    figure: float
    unit: str
    better: str
    goal: float
    n: int


def arguments(about: str) -> argparse.Namespace:
    """`--quick` and `--json`; also sets one torch thread."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--quick", action="store_true", help="under a minute: fewer repetitions")
    parser.add_argument("--json", action="store_true", help="the last line is a JSON object")
    torch.set_num_threads(1)
    return parser.parse_args()


def close(figure: Figure, flags: argparse.Namespace) -> None:
    """Print the figure for people, and for scripts if they asked."""
    relation = "at most" if figure.better == "lower" else "at least"
    print(f"{figure.name}: {figure.figure:.3f} {figure.unit} (goal {relation} {figure.goal}, n={figure.n})")
    print(f"machine: {machine()}")
    if flags.json:
        print(json.dumps(asdict(figure)))


def run_benchmark(main: Callable[[], object]) -> None:
    """Run a benchmark; exit with 3 where a small model that it needs has not been trained yet."""
    try:
        main()
    except FileNotFoundError as missing:
        if "packs" not in str(missing):
            raise
        print(
            f"not measured: the small model {Path(str(missing).rpartition(':')[2].strip()).stem!r} is not trained yet"
        )
        sys.exit(3)


def machine() -> str:
    """Processor, cores and versions, for the docs."""
    return f"{processor()}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}"


def processor() -> str:
    """The processor's name where the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def paired(one: Callable[[], float], other: Callable[[], float], repetitions: int) -> list[tuple[float, float]]:
    """Seconds of both, taken in turn so that a drift of the machine hits both; the first pair warms up."""
    pairs = [(one(), other()) for _ in range(repetitions + 1)]
    return pairs[1:]


def median_ratio(pairs: Sequence[tuple[float, float]]) -> float:
    """Median of one / other over the pairs."""
    return statistics.median(a / b for a, b in pairs)
