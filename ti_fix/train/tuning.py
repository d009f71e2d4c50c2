"""Finds settings by short runs, one question at a time: the rate, then the start, then the rate again, finely.

Every trial is an ordinary run with the same seed, judged by the best fixed loss, so its numbers can be compared. What
is asked later starts from what was found before; nothing is changed together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ti_fix.errors import TiFixError, WrongUse
from ti_fix.protocols import DiffusionModel
from ti_fix.train.config import TrainConfig
from ti_fix.train.dataset import Dataset
from ti_fix.train.events import ValidationEvent
from ti_fix.train.loop import Convert, train

RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
"""First rates, in multiples of the vocabulary's RMS: from hardly moving to a word's length a step."""

FINE = (0.5, 0.71, 1.0, 1.41, 2.0)
"""Factors around the best of them."""

STARTS = ("words", "mean", "random")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEvent:
    """One short run is done.

    Attributes:
        question: ``rate``, ``start`` or ``fine rate``.
        changes: the settings that were tried.
        loss: its best fixed loss, None where it failed.
        done, total: trials so far and in all.
        reason: why it failed.
    """

    question: str
    changes: Mapping[str, Any]
    loss: float | None
    done: int
    total: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedEvent:
    """The end.

    Attributes:
        config: the settings to train with: as given, with what was found.
        changes: what was found.
        loss: the best fixed loss of the trials.
    """

    config: TrainConfig
    changes: Mapping[str, Any]
    loss: float


Loss = Callable[[TrainConfig], float]


def tune(
    config: TrainConfig,
    model: DiffusionModel,
    samples: Dataset,
    *,
    steps: int = 60,
    fine_steps: int = 150,
    stop: Callable[[], bool] = lambda: False,
    fit: Convert = lambda embedding: embedding,
) -> Iterator[TrialEvent | TunedEvent]:
    """Try rates, then starts, then rates around the best one.

    Args:
        config: what to start from; nothing is written by the trials.
        model: the loaded model.
        samples: the pictures.
        steps: of each trial of the first two questions.
        fine_steps: of each trial of the last one.
        stop: asked before each trial and each step.
        fit: brings a start file to the model's widths.

    Yields:
        One `TrialEvent` a trial and a `TunedEvent` at the end, unless it was stopped.

    Raises:
        WrongUse: no trial at all succeeded.
    """

    def loss(trial: TrainConfig) -> float:
        return best_fixed_loss(trial, model, samples, stop, fit)

    base = replace(
        config,
        out="",
        resume=False,
        preview_every=0,
        rate_unit="rms",
        learning_rate_g="",  # one rate is asked for, in multiples of each encoder's own RMS
        schedule="constant",
        patience=0,
    )
    yield from ask(config, base, loss, steps=steps, fine_steps=fine_steps, stop=stop)


def best_fixed_loss(
    config: TrainConfig,
    model: DiffusionModel,
    samples: Dataset,
    stop: Callable[[], bool] = lambda: False,
    fit: Convert = lambda embedding: embedding,
) -> float:
    """Train and give the smallest fixed loss after the first step."""
    found = [
        event.loss
        for event in train(config, model, samples, stop=stop, fit=fit)
        if isinstance(event, ValidationEvent) and event.step > 0
    ]
    if not found:
        raise WrongUse("The trial was stopped before its first fixed loss.")
    return min(found)


def ask(
    config: TrainConfig, base: TrainConfig, loss: Loss, *, steps: int, fine_steps: int, stop: Callable[[], bool]
) -> Iterator[TrialEvent | TunedEvent]:
    """The three questions in their order; `loss` judges one trial."""
    short = replace(base, steps=steps, warmup=min(base.warmup, steps // 4), validate_every=max(1, steps // 4))
    long = replace(short, steps=fine_steps, validate_every=max(1, fine_steps // 6))
    starts = [base.start] if base.start in ("file", "slerp") else list(STARTS)
    total = len(RATES) + len(starts) - 1 + len(FINE)
    best: dict[str, Any] = {}
    best_loss = float("inf")
    done = 0
    questions: list[tuple[str, TrainConfig, Callable[[], list[dict[str, Any]]]]] = [
        ("rate", short, lambda: [{"learning_rate": f"{rate:g}"} for rate in RATES]),
        ("start", short, lambda: [{"start": start} for start in starts if start != base.start]),
        ("fine rate", long, lambda: [{"learning_rate": f"{float(best['learning_rate']) * f:.4g}"} for f in FINE]),
    ]
    for question, settings, choices in questions:
        if question == "fine rate":  # longer runs, so earlier losses do not count
            best_loss = float("inf")
        for changes in choices():
            if stop():
                return
            done += 1
            found, reason = _judged(loss, replace(settings, **{**best, **changes}))
            yield TrialEvent(question=question, changes=changes, loss=found, done=done, total=total, reason=reason)
            if found is not None and found < best_loss:
                best_loss, best = found, {**best, **changes}
        if not best:
            raise WrongUse("No trial succeeded; see their reasons.")
        if stop():
            return
    changes = {**best, "rate_unit": "rms", **({"learning_rate_g": ""} if config.learning_rate_g else {})}
    yield TunedEvent(config=replace(config, **changes), changes=changes, loss=best_loss)


def _judged(loss: Loss, trial: TrainConfig) -> tuple[float | None, str]:
    try:
        return loss(trial), ""
    except TiFixError as error:
        return None, str(error)
