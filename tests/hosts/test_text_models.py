"""The text side of WebUIs' models, in objects built like theirs; `check-host --parts align` asks the real ones."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tests.hosts import encoders_of_webuis as webuis
from ti_fix.align import CHECKS, AtLoad, align
from ti_fix.align.strategies import measure
from ti_fix.embedding import SD15, SDXL
from ti_fix.hosts.text_models import Surroundings, text_model_of


@pytest.fixture(params=["a1111", "forge"])
def loaded(request, monkeypatch):
    """A host's model."""
    return webuis.a1111_sdxl(monkeypatch) if request.param == "a1111" else webuis.forge_sdxl()


@pytest.fixture
def text(loaded):
    return text_model_of(loaded)


def test_a_healthy_model_is_read_as_a_whole_and_nothing_is_said_of_it(text):
    assert (text.name, text.family) == ("my.safetensors", SDXL)
    assert [(e.spec.key, e.table.shape, e.layer, e.final_norm) for e in text.encoders] == [
        ("clip_l", (49408, 768), 2, False),
        ("clip_g", (49408, 1280), 2, False),
    ]
    report = align(text)
    assert report.light == "green"
    checked = {(o.code, o.place) for o in report.outcomes}
    for code in ("vocabulary", "merges", "special-ids", "id-lists", "agreement", "layer", "chunks", "table-values"):
        assert {place for c, place in checked if c == code} == {e.place for e in text.encoders}, code
    assert ("pooled-position", text.encoders[1].place) in checked


def test_prompts_are_cut_by_the_host_and_padded_as_each_encoder_gets_them(text):
    cut = text.chunks("word " * 80)
    assert {key: [len(ids) for ids in lists] for key, lists in cut.items()} == {"clip_l": [77, 77], "clip_g": [77, 77]}
    assert cut["clip_l"][1][7:] == [49407] * 70 and cut["clip_g"][1][7:] == [0] * 70


def test_a_table_that_was_moved_outside_inference_mode_can_be_read():
    model = webuis.forge_sdxl()
    module = webuis.transformer(webuis.CLIP_L)
    table = getattr(module, "text_model", module).embeddings.token_embedding.wrapped
    before = table.weight
    with torch.inference_mode():
        moved = torch.nn.Parameter(torch.empty(0))
    moved.data = before.detach()  # as `Module.to` does it
    table.weight = moved
    try:
        with pytest.raises(RuntimeError, match="version counter"):
            moved[:2, :2]
        read = text_model_of(model).encoders[0].table.read()
        assert read.data_ptr() == before.data_ptr() and torch.equal(read[:2, :2], before[:2, :2])
    finally:
        table.weight = before


def test_what_a_host_computes_in_inference_mode_comes_out_as_ordinary_tensors(loaded):
    ids = torch.full((1, 77), 49407)
    for encoder in text_model_of(loaded, Surroundings(around=torch.inference_mode)).encoders:
        assert not any(each.is_inference() for each in encoder.encode(ids) if each is not None)


def test_rounded_positions_and_a_nan_row_are_repaired_at_load_and_given_back(loaded, text):
    module = webuis.transformer(webuis.CLIP_L)
    embeddings = getattr(module, "text_model", module).embeddings
    table = embeddings.token_embedding.wrapped
    before = embeddings.position_ids, table.weight
    wrong = torch.tensor([[0, *range(76)]])
    embeddings.position_ids = wrong
    with torch.no_grad():
        kept = table.weight[2368, 1].item()
        table.weight[2368, 1] = float("nan")
    judge = AtLoad(CHECKS)
    try:
        seen = judge.loaded(text_model_of(loaded), loaded)
        assert len(seen.lines) == 2 and all("(CLIP-L)" in line and "repaired" in line for line in seen.lines)
        assert {o.code for o in seen.mended} == {"position-ids", "table-values"}
        assert torch.equal(embeddings.position_ids, torch.arange(77)[None])
        assert torch.isfinite(table.weight).all()
        assert align(text_model_of(loaded)).light == "green"
        judge.give_back()
        assert embeddings.position_ids is wrong and table.weight is before[1]
        assert torch.isnan(table.weight[2368, 1])
    finally:
        embeddings.position_ids = before[0]
        with torch.no_grad():
            table.weight[2368, 1] = kept


def test_strategies_are_measured_on_both_encoders_and_leave_nothing_behind(text):
    found = measure(text)
    assert set(found) == {e.place for e in text.encoders}
    for rows in found.values():
        assert all(row.reversible for row in rows)
        assert next(r for r in rows if r.strategy == "injection").fidelity == pytest.approx(1, abs=1e-4)


def test_open_clip_pools_at_rows_of_its_own_and_injection_does_not(monkeypatch):
    rows = {r.strategy: r for r in measure(text_model_of(webuis.a1111_sdxl(monkeypatch)))["conditioner.embedders.1"]}
    assert rows["injection"].pooled == pytest.approx(1, abs=1e-4)
    assert rows["rebinding"].pooled < 0.999  # the highest id is then the added one, not the end token


def test_another_tokenizer_is_put_in_and_taken_out_again(monkeypatch):
    loaded = webuis.a1111_sdxl(monkeypatch)
    member = loaded.cond_stage_model.embedders[1]
    member.id_pad = 49407
    judge = AtLoad(CHECKS)
    (outcome,) = judge.loaded(text_model_of(loaded), loaded).mended
    assert (outcome.code, member.id_pad) == ("special-ids", 0)
    assert member.tokenize(["a cat\u200b"]) == [[320, 2368]]
    judge.give_back()
    assert member.id_pad == 49407 and "tokenize" not in vars(member)


def test_clip_skip_of_sd15_is_the_setting(monkeypatch):
    stage = webuis.a1111_sdxl(monkeypatch).cond_stage_model.embedders[0]
    model = text_model_of(SimpleNamespace(cond_stage_model=stage), Surroundings(clip_skip=2))
    assert model.family is SD15
    assert (model.encoders[0].place, model.encoders[0].layer, model.encoders[0].final_norm) == (
        "cond_stage_model",
        2,
        True,
    )


@pytest.mark.parametrize("nothing", [None, SimpleNamespace(), SimpleNamespace(cond_stage_model=None), object()])
def test_what_has_no_text_encoder_gives_none(nothing):
    assert text_model_of(nothing) is None


def test_tables_that_were_found_sound_are_not_read_again(text, loaded):
    judge = AtLoad(CHECKS)
    first = judge.loaded(text, loaded, stamp=("my", 1))
    reads = []

    def unread(encoder):
        table = replace(encoder.table, read=lambda: reads.append(encoder.place))
        return replace(encoder, table=table)

    second = judge.loaded(replace(text, encoders=tuple(map(unread, text.encoders))), loaded, stamp=("my", 1))
    assert first.lines == second.lines == () and not reads
    assert judge.looked(loaded) is second
