"""What happens when a stand-in WebUI loads a model: silence, lines, repairs, and tables that are cut to size."""

from __future__ import annotations

import logging

import pytest
import torch

from tests.hosts.standin import table
from ti_fix.align import AtLoad

SDXL_TABLES = {
    "clip_l": "conditioner.embedders.0.transformer.text_model.embeddings.token_embedding.weight",
    "clip_g": "conditioner.embedders.1.model.token_embedding.weight",
}


def read(webui, name):
    """Read a checkpoint as the host does before it builds the model."""
    if webui.kind == "a1111":
        record = type("Record", (), {"filename": name})()
        return webui.modules["modules.sd_models"].get_checkpoint_state_dict(record, None)
    return webui.modules["backend.loader"].load_torch_file(name)


def longer(key):
    return torch.cat([table(key, 1), torch.full((2, table(key, 1).shape[1]), 0.02)])


def test_a_healthy_model_passes_as_the_same_objects_and_in_silence(start, kind, caplog):
    webui, host = start(kind)
    weights = {name: table(key, 1) for key, name in SDXL_TABLES.items()}
    webui.weights["good"] = weights
    assert all(given is weights[name] for name, given in read(webui, "good").items())
    with caplog.at_level(logging.INFO):
        webui.switch("sdxl", checkpoint="good")
    assert not caplog.records
    assert host.seen_at_load().lines == ()
    assert host.text_model().name == "good"
    assert host.extra_rows() == []


def test_a_table_with_added_tokens_is_cut_and_its_rows_are_embeddings(start, kind, caplog):
    webui, host = start(kind)
    webui.weights["wide"] = {name: longer(key) for key, name in SDXL_TABLES.items()}
    given = read(webui, "wide")
    assert {value.shape[0] for value in given.values()} == {49408}
    assert all(value.shape[0] == 49410 for value in webui.weights["wide"].values())
    webui.switch("sdxl", checkpoint="wide")
    assert sum("49410 rows" in record.message for record in caplog.records) == 2  # one for each encoder
    assert [each.name for each in host.extra_rows()] == ["extra-1", "extra-2"]
    plain, _ = webui.generate("a photo")
    assert webui.generate("a photo extra-1")[0] != plain
    assert {"extra-1", "extra-2"} <= set(webui.model.all[0].embeddings.word_embeddings)
    host.refresh_embeddings()  # the host reads its folder anew; the rows come back
    assert "extra-2" in webui.model.all[0].embeddings.word_embeddings


def test_the_next_model_does_not_have_the_rows_of_the_last(start, kind):
    webui, host = start(kind)
    webui.weights |= {"wide": {name: longer(key) for key, name in SDXL_TABLES.items()}, "good": {}}
    read(webui, "wide")
    webui.switch("sdxl", checkpoint="wide")
    read(webui, "good")
    webui.switch("sdxl", checkpoint="good")
    assert host.extra_rows() == []
    assert "extra-1" not in webui.model.all[0].embeddings.word_embeddings


def test_other_weights_in_the_same_model_take_its_rows_away(start):
    webui, host = start("a1111")
    webui.weights |= {"wide": {name: longer(key) for key, name in SDXL_TABLES.items()}, "good": {}}
    read(webui, "wide")
    webui.switch("sdxl", checkpoint="wide")
    read(webui, "good")
    webui.switch("sdxl", checkpoint="good", in_place=True)  # the host reads no embeddings then
    assert host.extra_rows() == []
    assert "extra-1" not in webui.database.word_embeddings


@pytest.mark.parametrize("setting", ["ti_fix_model", "ti_fix_enabled"])
def test_switched_off_nothing_is_cut_or_looked_at(start, kind, setting):
    webui, host = start(kind)
    webui.modules["modules.shared"].opts.data[setting] = False
    webui.weights["wide"] = {name: longer(key) for key, name in SDXL_TABLES.items()}
    assert {value.shape[0] for value in read(webui, "wide").values()} == {49410}
    webui.switch("sdxl", checkpoint="wide")
    assert host.seen_at_load() is None


def test_what_fails_in_us_does_not_reach_the_host(start, kind, monkeypatch, caplog):
    webui, _ = start(kind)
    monkeypatch.setattr(AtLoad, "loaded", lambda *_: 1 / 0)
    webui.switch("sdxl")
    assert "ZeroDivisionError" in caplog.text
    assert webui.model is not None


def test_a_wrong_padding_is_named_once_and_given_back_on_unloading(start, caplog):
    webui, host = start("a1111")
    webui.switch("sdxl")
    member = webui.model.all[1]
    member.id_pad = 49407
    for loaded in webui.callbacks["on_model_loaded"]:
        loaded(webui.model)
    assert member.id_pad == 0
    (record,) = caplog.records
    assert "Start, end and pad token (OpenCLIP bigG)" in record.message and "repaired" in record.message
    for unloaded in webui.callbacks["on_script_unloaded"]:
        unloaded()
    assert member.id_pad == 49407
    host.install()  # the page was reloaded: looked at again
    assert member.id_pad == 0
