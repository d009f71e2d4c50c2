"""A1111's text for learning rates, and the shapes, against torch's own schedulers."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases import folder
from ti_fix.errors import WrongUse
from ti_fix.train.schedule import last_step, parse_stages, scheduled, staged

CASES = json.loads((folder() / "handover" / "SCHED" / "schedules.json").read_text())


@pytest.mark.parametrize("case", [c for c in CASES if "pairs" in c], ids=lambda c: c["text"])
def test_reported_texts_mean_what_they_mean_in_a1111(case):
    stages = parse_stages(case["text"], case["steps"], start=case.get("start", 0))
    assert [[s.rate, s.until] for s in stages] == case["pairs"]


@pytest.mark.parametrize("case", [c for c in CASES if "error" in c], ids=lambda c: c["text"] or "empty")
def test_reported_mistakes_are_named(case):
    with pytest.raises(WrongUse) as caught:
        parse_stages(case["text"], case["steps"])
    assert case["error"] in str(caught.value)


@pytest.mark.parametrize(
    "text", ["0.1:5000, 0.2:4000", "0.1:10, 0.2:10", "0.1:-1, 0.2:5", "0.1:0", "1e999", "inf", "0.1:1.5"]
)
def test_other_mistakes_are_refused(text):
    with pytest.raises(WrongUse):
        parse_stages(text, 3000)


@given(st.lists(st.tuples(st.floats(1e-8, 1), st.integers(1, 50)), min_size=1, max_size=6), st.integers(1, 400))
@settings(max_examples=60, deadline=None)
def test_each_step_has_the_rate_of_its_stage(parts, step):
    ends, end = [], 0
    for _, length in parts:
        end += length
        ends.append(end)
    text = ", ".join(f"{rate!r}:{until}" for (rate, _), until in zip(parts, ends, strict=True))
    expected = next((rate for (rate, _), until in zip(parts, ends, strict=True) if step <= until), parts[-1][0])
    assert staged(text, 10_000)(step) == expected
    assert last_step([text], 10_000) == ends[-1]


def _torch(scheduler, steps, **options):
    weight = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([weight], lr=0.1)
    made = scheduler(optimiser, **options)
    rates = []
    for _ in range(steps):
        rates.append(made.get_last_lr()[0])
        optimiser.step()
        made.step()
    return rates


def test_cosine_is_torchs_cosine():
    ours = scheduled("0.1", shape="cosine", steps=40, floor=0.1)
    theirs = _torch(torch.optim.lr_scheduler.CosineAnnealingLR, 41, T_max=40, eta_min=0.01)
    assert [ours(step) for step in range(1, 41)] == pytest.approx(theirs[1:])


def test_linear_is_torchs_linear():
    ours = scheduled("0.1", shape="linear", steps=40, floor=0.25)
    theirs = _torch(torch.optim.lr_scheduler.LinearLR, 41, start_factor=1.0, end_factor=0.25, total_iters=40)
    assert [ours(step) for step in range(1, 41)] == pytest.approx(theirs[1:])


def test_restarts_are_torchs_warm_restarts():
    ours = scheduled("0.1", shape="restarts", steps=40, floor=0.1, cycles=4)
    theirs = _torch(torch.optim.lr_scheduler.CosineAnnealingWarmRestarts, 40, T_0=10, eta_min=0.01)
    assert [ours(step) for step in range(1, 40)] == pytest.approx(theirs[1:])
    assert ours(40) == pytest.approx(0.01)


def test_one_cycle_rises_and_falls():
    rate = scheduled("0.1", shape="one-cycle", steps=100)
    values = [rate(step) for step in range(1, 101)]
    assert values[:10] == pytest.approx([0.01 * n for n in range(1, 11)])
    assert values[9:] == sorted(values[9:], reverse=True)
    assert values[-1] == pytest.approx(1e-5)


def test_warm_up_rises_in_a_line_and_leaves_stages_where_they_are():
    rate = scheduled("0.1:6, 0.01", shape="constant", steps=20, warmup=4)
    assert [rate(step) for step in (1, 2, 4, 6, 7, 20)] == pytest.approx([0.025, 0.05, 0.1, 0.1, 0.01, 0.01])
