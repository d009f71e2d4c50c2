"""The steps that a training run has kept, as sides of a comparison; its curves, and the way of its vector."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ti_fix import tokenizer
from ti_fix.embedding import Embedding
from ti_fix.errors import WrongUse
from ti_fix.evaluate import plots
from ti_fix.evaluate.config import Candidate

NEIGHBOURS = 6
MOST = 12
"""Steps that are compared when a run has kept more: the last one and others evenly before it."""


def kept(folder: Path) -> list[tuple[int, Path]]:
    """Step and file of the embeddings in a run's folder, by step.

    Raises:
        WrongUse: there are none.
    """
    pattern = re.compile(r".+-(\d+)\.safetensors")
    found = sorted((int(m[1]), p) for p in folder.glob("*.safetensors") if (m := pattern.fullmatch(p.name)))
    if not found:
        raise WrongUse(
            f"{folder} holds no embeddings of steps (NAME-100.safetensors); give the run's .training folder."
        )
    return found


def sides_of_steps(saved: Sequence[tuple[int, Path]], load: Callable[[Path], Embedding]) -> list[Candidate]:
    """A side for each step.

    Args:
        saved: from `kept`.
        load: reads an embedding that the model can use.
    """
    sides = []
    for step, path in thinned(saved):
        embedding = load(path)
        sides.append(Candidate(label=f"step {step}", word=embedding.name, embeddings=(embedding,), step=step))
    return sides


def thinned(saved: Sequence[tuple[int, Path]], most: int = MOST) -> list[tuple[int, Path]]:
    """At most so many of them, the last always."""
    count = len(saved)
    places = range(count) if count <= most else sorted({round((i + 1) * count / most) - 1 for i in range(most)})
    return [saved[place] for place in places]


def run_figures(log: Path, sides: Sequence[Candidate], vocabulary: Any) -> dict[str, bytes]:
    """Training curves, and the way of the first vector among its neighbours: heading -> PNG.

    Args:
        log: a run's log.csv; left out where there is none.
        sides: steps in their order.
        vocabulary: the model's token tables.
    """
    if not plots.available():
        return {}
    figures = {}
    if log.is_file():
        with log.open(newline="", encoding="utf-8") as file:
            figures["Training"] = plots.training([_numbers(row) for row in csv.DictReader(file)])
    for key, table in vocabulary.tables.items():
        steps = [
            (side.label, side.embeddings[0].vectors[key][0]) for side in sides if key in side.embeddings[0].vectors
        ]
        if len(steps) > 1 and steps[0][1].shape[0] == table.shape[1]:
            words = _neighbours(steps[-1][1], table, vocabulary.trained)
            figures[f"Way of the first vector ({key})"] = plots.way(steps, words, key)
    return figures


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The columns of a line that hold numbers; the last line of a run that was cut off may lack some."""
    return {name: number for name, value in row.items() if (number := _number(value)) is not None}


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _neighbours(vector: Tensor, table: Tensor, trained: Tensor | None) -> list[tuple[str, Tensor]]:
    """The words whose rows are nearest by cosine."""
    rows = table.detach().float().cpu()
    cosines = torch.nn.functional.cosine_similarity(rows, vector.float()[None])
    if trained is not None:
        cosines[: len(trained)][~trained] = -1
    best = cosines.topk(NEIGHBOURS).indices.tolist()
    return [(tokenizer.decode([i]).strip() or str(i), rows[i]) for i in best]
