"""Steps that suddenly take long, and the free memory of a card."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from ti_fix.train import checks
from ti_fix.train.monitor import Pace


def told(seconds, on_card=True):
    pace = Pace(on_card=on_card)
    return [event for step, each in enumerate(seconds, 1) for event in pace.watch(step, each)]


def test_steps_that_stay_slow_are_told_once_with_both_durations():
    (event,) = told([1.0] * 20 + [6.0] * 30)
    assert event.step == 25
    assert event.finding.code == "slow-steps" and event.remedy == {"checkpointing": "on"}
    assert "6 times" in event.finding.message and "6 s instead of 1 s" in event.finding.message


def test_without_a_card_slow_steps_say_nothing_of_its_memory():
    assert told([1.0] * 20 + [6.0] * 30, on_card=False) == []


@pytest.mark.parametrize(
    "seconds",
    [
        [1.0] * 40,
        [1.0] * 20 + [30.0] + [1.0] * 4 + [30.0] * 4 + [1.0] * 10,
        [5.0] * 3 + [1.0] * 40,
        [1.0] * 4 + [9.0] * 40,
        [1.0, 3.0] * 30,
    ],
    ids=["steady", "single ones", "slow start", "too early to know", "uneven"],
)
def test_what_is_no_slowdown_is_not_told(seconds):
    assert told(seconds) == []


def test_memory_that_is_free_on_the_card(monkeypatch):
    unet = SimpleNamespace(parameters=lambda: iter([SimpleNamespace(device=torch.device("cuda", 0))]))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (3, 8))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 4)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 2)
    assert checks.free_memory(unet) == 5, "what torch holds and does not use counts as free"
    assert checks.free_memory(torch.nn.Linear(1, 1)) is None
