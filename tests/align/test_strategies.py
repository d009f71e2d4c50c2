"""Injection, rebinding and remapping side by side, on transformers' own encoder."""

from __future__ import annotations

import pytest
import torch

from tests.align import models
from ti_fix.align import strategies
from ti_fix.align.strategies import Situation, compare
from ti_fix.embedding import CLIP_G, SDXL_REFINER, Embedding
from ti_fix.hosts.text_modules import encoder_of, tokenizer_of
from ti_fix.text_model import TextModel

PROMPT = "a photo of mytoy on red grass"


@pytest.fixture(scope="module")
def module():
    return models.text_encoder(CLIP_G)


def situation(module, prompt=PROMPT, rows=None, remap=None):
    rows = module.get_input_embeddings().weight[[2368, 1125]].detach() * 1.3 if rows is None else rows
    model = TextModel(
        name="loaded",
        family=SDXL_REFINER,
        encoders=(encoder_of("text_encoder", CLIP_G, module, tokenizer_of(models.tokenizer(CLIP_G))),),
    )
    embedding = Embedding(name="mytoy", vectors={"clip_g": rows})
    return Situation(model=model, place="text_encoder", prompt=prompt, embedding=embedding, remap=remap)


def by_name(measured):
    assert [m.strategy for m in measured] == ["injection", "rebinding", "remapping"]
    return {m.strategy: m for m in measured}


def test_on_a_sound_model_all_are_exact_and_leave_nothing_behind(module):
    found = by_name(compare(situation(module)))
    for each in found.values():
        assert each.fidelity == pytest.approx(1, abs=1e-5)
        assert each.pooled == pytest.approx(1, abs=1e-5)
        assert each.reversible
        assert each.prepare_ms >= 0
    assert found["remapping"].once


@pytest.mark.parametrize(("taken", "more"), [(5.0, 3.0), (2.0, 0.0), (1.5, 0.0)])
def test_time_beyond_the_plain_encoder_is_never_below_zero_and_a_slow_moment_does_not_count(monkeypatch, taken, more):
    now, runs = [0.0], []

    def takes(milliseconds):
        runs.append(milliseconds)
        now[0] += milliseconds * (10 if len(runs) in (3, 4) else 1) / 1000

    monkeypatch.setattr(strategies.time, "perf_counter", lambda: now[0])
    found = strategies._median_more_ms(lambda: takes(taken), lambda: takes(2.0), repeats=5)
    assert found == pytest.approx(more)
    assert runs == [taken, 2.0] * 5


def test_only_rebinding_finds_a_trigger_with_a_character_that_nobody_sees(module):
    found = by_name(compare(situation(module, prompt="a photo of my\u200btoy on red grass")))
    assert found["rebinding"].fidelity == pytest.approx(1, abs=1e-5)
    assert found["injection"].fidelity < 0.98
    assert found["remapping"].fidelity < 0.98


def test_only_remapping_helps_where_the_tables_differ(module):
    """The embedding was made on a checkpoint whose table is turned against the loaded one."""
    turn = torch.linalg.qr(torch.randn(32, 32, generator=torch.Generator().manual_seed(1)))[0]
    right = module.get_input_embeddings().weight[[2368, 1125]].detach() * 1.3
    here = situation(module, rows=right @ turn, remap=lambda rows: rows @ turn.T)
    with torch.no_grad(), here.encoder.inject({4: right[0], 5: right[1]}):
        ids = [49406, 320, 1125, 539, 0, 0, 525, 736, 5922, 49407]
        assert here.encoder.tokenizer.encode("on red grass") == [525, 736, 5922]
        hidden, pooled = here.encoder.encode(torch.tensor([ids + [0] * 67]))
    found = by_name(compare(here, (hidden[0], pooled[0])))
    assert found["remapping"].fidelity == pytest.approx(1, abs=1e-5)
    assert max(found["injection"].fidelity, found["rebinding"].fidelity) < 0.98
