"""The order of the questions, and that the answer is near the best, on losses whose optimum is known."""

from __future__ import annotations

import math
import sys

import pytest

from tests.train.making import config, model, pictures
from ti_fix.errors import TiFixError, WrongUse
from ti_fix.train.config import TrainConfig
from ti_fix.train.tuning import RATES, TrialEvent, TunedEvent, ask, best_fixed_loss, tune

module = sys.modules[tune.__module__]


def bowl(best_rate, starts):
    """A loss with its optimum at a rate, shifted by the start."""
    return lambda c: 0.1 + 0.01 * math.log(float(c.learning_rate) / best_rate) ** 2 + starts[c.start]


def asked(loss, base=None, stop=lambda: False):
    base = base or TrainConfig(name="x", rate_unit="rms")
    return list(ask(base, base, loss, steps=60, fine_steps=150, stop=stop))


@pytest.mark.parametrize("best_rate", [0.012, 0.05, 0.16, 0.9])
@pytest.mark.parametrize("best_start", ["words", "mean", "random"])
def test_rate_and_start_are_found(best_rate, best_start):
    starts = {name: 0.0 if name == best_start else 0.02 for name in ("words", "mean", "random")}
    *trials, end = asked(bowl(best_rate, starts))
    assert isinstance(end, TunedEvent) and end.config.start == best_start
    assert abs(math.log2(float(end.config.learning_rate) / best_rate)) < 0.51  # half a step of the fine grid, and less
    assert [t.question for t in trials] == ["rate"] * 5 + ["start"] * 2 + ["fine rate"] * 5
    assert trials[-1].done == trials[-1].total == len(trials)
    first = [t.changes for t in trials[:5]]
    assert first == [{"learning_rate": f"{rate:g}"} for rate in RATES]


def test_one_thing_is_changed_at_a_time():
    tried = []

    def loss(trial):
        tried.append((trial.learning_rate, trial.start, trial.steps))
        return abs(float(trial.learning_rate) - 0.1) + (trial.start == "mean")

    asked(loss)
    assert {start for _, start, _ in tried[:5]} == {"words"}
    assert tried[5:7] == [("0.1", "mean", 60), ("0.1", "random", 60)]
    assert {(start, steps) for _, start, steps in tried[7:]} == {("words", 150)}


def test_failed_trials_are_told_and_passed_over():
    def loss(trial):
        if float(trial.learning_rate) > 0.2:
            raise TiFixError("it fell apart.")
        return -float(trial.learning_rate)

    *trials, end = asked(loss)
    assert [t.reason for t in trials[:5]] == ["", "", "", "it fell apart.", "it fell apart."]
    assert float(end.config.learning_rate) <= 0.2

    def never(trial):
        raise TiFixError("it fell apart.")

    with pytest.raises(WrongUse, match="No trial succeeded"):
        asked(never)


def test_a_stop_ends_it_without_an_answer():
    assert not asked(lambda c: 1.0, stop=lambda: True)
    done = []
    *_, last = asked(lambda c: done.append(c) or 1.0, stop=lambda: len(done) == 12)
    assert isinstance(last, TrialEvent) and last.done == last.total


def test_a_raw_rate_of_the_second_encoder_is_not_taken_for_one_in_multiples_of_the_rms(monkeypatch):
    """0.005 of the RMS would teach bigG nothing."""
    tried = []
    monkeypatch.setattr(module, "best_fixed_loss", lambda trial, *_: tried.append(trial) or float(trial.learning_rate))
    *_, end = tune(config(learning_rate_g="0.005"), model(), pictures(1))
    assert {trial.learning_rate_g for trial in tried} == {""}
    assert end.config.learning_rate_g == "" == end.changes["learning_rate_g"]


def test_real_trials_run_and_write_nothing(tmp_path):
    settings = config(out=str(tmp_path), learning_rate="1e-2")
    found = []
    for event in tune(settings, model(), pictures(1), steps=2, fine_steps=2):
        found.append(event)
        if len(found) == 2:
            break
    assert all(isinstance(e, TrialEvent) and e.loss is not None for e in found)
    assert not list(tmp_path.iterdir())
    with pytest.raises(WrongUse, match="before its first fixed loss"):
        best_fixed_loss(config(validate_every=0), model(), pictures(1))
