"""Watches a run: what is wrong, in words, with the settings that would put it right."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ti_fix.embedding import VOCABULARY_SIZE, Finding, Severity, Vocabulary, norms
from ti_fix.protocols import DiffusionModel, Sizes
from ti_fix.tokenizer import decode
from ti_fix.train.config import TrainConfig
from ti_fix.train.engine import Outcome
from ti_fix.train.events import FindingEvent
from ti_fix.train.initial import Statistics
from ti_fix.train.state import Numbers, State

REMEMBERED = 100
"""Steps over which the usual gradient is known."""

_ALARM = 10.0
"""Times the 95th percentile at which a gradient is worth a word."""

_LONG = 3.0
"""Times the vocabulary's length from which vectors are worth a note; many good files are longer."""

SLOW = 4.0
"""Times the usual duration of a step from which it counts as slow."""

SLOW_STEPS = 5
"""Slow steps in a row that are worth a word; a single one may have waited for something else."""

BAD_STEPS = 5
"""Steps in a row without a finite loss after which a run ends."""


def event(step: int, severity: Severity, code: str, message: str, **remedy: Any) -> FindingEvent:
    """A finding with the settings that would put it right."""
    return FindingEvent(step=step, finding=Finding(code=code, severity=severity, message=message), remedy=remedy)


def watch_gradient(numbers: Numbers, outcome: Outcome, names: Sequence[str]) -> Iterator[FindingEvent]:
    """Tell when a gradient is far longer than the usual one, and remember this one."""
    length = math.sqrt(sum(each**2 for each in outcome.gradients.values()))
    known = sorted(numbers.gradients)
    if len(known) >= 20:
        usual = known[math.ceil(0.95 * len(known)) - 1]
        quiet = not numbers.told or not numbers.told[-1].startswith("gradient@")
        if length > _ALARM * usual and (quiet or numbers.step - int(numbers.told[-1].partition("@")[2]) >= 50):
            numbers.told.append(f"gradient@{numbers.step}")
            picture, timestep, loss = max(outcome.rows, key=lambda row: row[2])
            message = (
                f"The gradient is {length / usual:.0f} times as long as 95 % of the last ones; the largest loss, "
                f"{loss:.3g}, is from {names[picture]} at timestep {timestep}. If this comes back, lower the rate."
            )
            yield event(numbers.step, "warning", "gradient-alarm", message)
    numbers.gradients = [*numbers.gradients, length][-REMEMBERED:]


class Pace:
    """Notices when steps suddenly take far longer, as when a driver moves the card's memory into main memory.

    Args:
        on_card: whether the steps run on a graphics card; elsewhere other programs are the cause, and nothing is told.
    """

    def __init__(self, *, on_card: bool) -> None:
        self._usual: deque[float] = deque(maxlen=REMEMBERED)
        self._slow: list[float] = []
        self._told = not on_card

    def watch(self, step: int, seconds: float) -> Iterator[FindingEvent]:
        """Tell once."""
        if self._told:
            return
        usual = statistics.median(self._usual) if len(self._usual) >= 10 else math.inf
        if seconds <= SLOW * usual:
            self._usual.append(seconds)
            self._slow.clear()
            return
        self._slow.append(seconds)
        if len(self._slow) >= SLOW_STEPS:
            self._told = True
            now = statistics.median(self._slow)
            message = (
                f"Steps take {now / usual:.0f} times as long as before ({now:.2g} s instead of {usual:.2g} s). If no "
                "other program is at work, the graphics card is full and its memory spills into main memory, as "
                "drivers on Windows do: close what else uses the card, or stop and train with checkpointing or smaller "
                "batches."
            )
            yield event(step, "warning", "slow-steps", message, checkpointing="on")


def not_finite(config: TrainConfig, numbers: Numbers, outcome: Outcome, names: Sequence[str]) -> FindingEvent:
    """What to say about a loss or gradient that is NaN or infinite."""
    bad = [(names[p], t) for p, t, loss in outcome.rows if not math.isfinite(loss)]
    blamed = bad or [(names[p], t) for p, t, _ in outcome.rows]
    where = ", ".join(f"{name} at timestep {timestep}" for name, timestep in dict.fromkeys(blamed))
    what = "loss" if not math.isfinite(outcome.loss) else "gradient"
    message = (
        f"The {what} of step {numbers.step} is not finite ({where}). The vectors are back at their last good state and "
        f"the rate is lowered to {numbers.rate_factor:g} of what was set."
    )
    return event(numbers.step, "warning", "not-finite", message, learning_rate=_lower(config.learning_rate))


def _lower(text: str) -> str:
    """A rate text with a tenth of each rate."""
    parts = [part.strip().partition(":") for part in text.split(",") if part.strip()]
    return ", ".join(f"{float(rate) / 10:g}{colon}{end}" for rate, colon, end in parts)


def watch_vectors(state: State, about: Mapping[str, Statistics], steps: int) -> Iterator[FindingEvent]:
    """Vectors that do not move, and vectors far longer than words; each told once."""
    numbers = state.numbers
    due = max(20, steps // 5)
    if numbers.step >= due and "no-change" not in numbers.told:
        still = {key: rows for key in state.vectors if (rows := _unmoved(state.vectors[key], state.start[key]))}
        for key, rows in still.items():
            listed = ", ".join(str(row + 1) for row in rows)
            message = f"After {numbers.step} steps these vectors for {key} have hardly moved: {listed}. Raise the rate."
            finding = Finding(code="learns-nothing", severity="warning", message=message, encoder=key, rows=rows)
            yield FindingEvent(step=numbers.step, finding=finding, remedy={"learning_rate": "0.005"})
        numbers.told.append("no-change")
    for key, block in state.vectors.items():
        multiple = sum(norms(block.detach())) / len(block) / about[key].length
        if multiple > _LONG and f"long {key}" not in numbers.told:
            numbers.told.append(f"long {key}")
            message = (
                f"The vectors for {key} are {multiple:.1f} times as long as words. They may work, but long vectors can "
                "drown the rest of a prompt; the direction optimiser keeps them at length 1."
            )
            yield event(numbers.step, "note", "long-vectors", message, optimiser="direction")


def _unmoved(block: Tensor, start: Tensor) -> tuple[int, ...]:
    """Rows that have moved by less than a thousandth of their length."""
    moved = torch.linalg.vector_norm(block.detach() - start, dim=1)
    length = torch.linalg.vector_norm(start, dim=1).clamp_min(1e-6)
    return tuple(torch.nonzero(moved < 0.001 * length).flatten().tolist())


def watch_progress(numbers: Numbers, steps: int) -> Iterator[FindingEvent]:
    """Tell once when the fixed loss has not become better than before training."""
    if numbers.step >= max(50, steps // 2) and numbers.best_step == 0 and "no-progress" not in numbers.told:
        numbers.told.append("no-progress")
        message = (
            f"After {numbers.step} steps the validation loss is no better than before training "
            f"({numbers.first_loss:.4f}). The rate may be too high or too low, or the captions may not fit; "
            "try another start text."
        )
        yield event(numbers.step, "warning", "no-progress", message)


def nearest_words(vectors: Mapping[str, Tensor], vocabulary: Vocabulary, count: int = 3) -> dict[str, list[list[str]]]:
    """Encoder key -> for each vector the trained words of the vocabulary with the highest cosine.

    Tables are read in pieces, so nothing of their size is copied.
    """
    found: dict[str, list[list[str]]] = {}
    for key, block in vectors.items():
        unit = torch.nn.functional.normalize(block.detach().float().cpu(), dim=1)
        table = vocabulary.tables[key][: VOCABULARY_SIZE - 2].detach()
        scores = torch.cat(
            [
                unit @ torch.nn.functional.normalize(piece.to("cpu", torch.float32), dim=1).T
                for piece in torch.split(table, 4096)
            ],
            dim=1,
        )
        if vocabulary.trained is not None:
            scores[:, ~vocabulary.trained[: scores.shape[1]].cpu()] = -1.0
        found[key] = [[decode([i]) for i in row] for row in scores.topk(count, dim=1).indices.tolist()]
    return found


SCENES = ("on a beach", "in a forest", "in a city at night", "in the snow")


@torch.no_grad()
def order_probe(
    model: DiffusionModel, name: str, vectors: Mapping[str, Tensor], start: Mapping[str, Tensor], size: int
) -> float:
    """How much of a prompt's other words still comes through beside the vectors: 1 as with the start's words, 0 none.

    "a photo of NAME on a beach" and "... in a forest" must differ as they differ with the start vectors: the cosine of
    the two differences in the UNet's context, times the ratio of their lengths where it is below 1; mean over pairs of
    scenes.
    """
    prompts = [f"a photo of {name} {scene}" for scene in SCENES]
    sizes = [Sizes(original=(size, size), target=(size, size))] * len(prompts)
    now = model.encode_prompts(prompts, {name: vectors}, sizes).context.float().flatten(1)
    before = model.encode_prompts(prompts, {name: start}, sizes).context.float().flatten(1)
    scores = []
    for i in range(len(prompts)):
        for j in range(i):
            a, b = now[i] - now[j], before[i] - before[j]
            cosine = torch.nn.functional.cosine_similarity(a, b, dim=0)
            scores.append(float(cosine * (a.norm() / b.norm().clamp_min(1e-12)).clamp(max=1)))
    return sum(scores) / len(scores)
