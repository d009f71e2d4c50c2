"""The Model page and its routes, over a stand-in host with a model made of real tokenizers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tests.ui.folders import StandIn, fill
from ti_fix.align import CHECKS, AtLoad
from ti_fix.align.selftest import FAULTS, healthy_model
from ti_fix.ui import desk as desks
from ti_fix.ui import model_handlers, model_report, mount_api
from ti_fix.ui.desk import Desk
from ti_fix.ui.model_words import LIGHTS, TEXTS


@pytest.fixture
def host(tmp_path):
    return StandIn(fill(tmp_path))


@pytest.fixture
def desk(host):
    return Desk(host)


def fault(name):
    return next(f for f in FAULTS if f.name == name).inject(healthy_model())


def shown(desk):
    *_, last = model_handlers.opened(desk)
    return last


def test_without_a_model_the_page_says_so_and_what_to_do(desk):
    new = shown(desk)
    assert TEXTS["no_model"] in new.report and TEXTS["no_model_do"] in new.report
    assert "PyTorch" in new.environment and TEXTS["ways_none"] in new.ways
    *_, last = model_handlers.check(desk)
    assert "No model is loaded yet" in last.status


def test_a_healthy_model_has_a_green_light_and_a_row_for_each_check(desk, host):
    host.text = healthy_model()
    html = shown(desk).report
    assert 'header class="green"' in html and LIGHTS["green"] in html
    assert html.count('<tr class="ok">') >= 12 and '<tr class="error">' not in html


def test_what_is_wrong_comes_first_with_expected_found_and_words(desk, host):
    host.text = fault("rounded position_ids")
    html = shown(desk).report
    assert 'header class="red"' in html
    first = html.index('<tr class="error">')
    assert first < html.index('<tr class="ok">')
    assert "0 to 76" in html and "another one&#x27;s place" in html


def test_what_was_repaired_at_load_is_shown_as_it_was_found(desk, host):
    judge, owner = AtLoad(CHECKS), type("Model", (), {})()
    written = []
    model = fault("rounded position_ids")
    encoder = model.encoders[0]
    living = replace(encoder, write={"position_ids": written.append})
    judge.loaded(replace(model, encoders=(living, model.encoders[1])), owner)
    assert len(written) == 1
    host.text, host.seen = healthy_model(), judge.looked(owner)
    html = shown(desk).report
    assert '<tr class="mended">' in html and TEXTS["mended"] in html and 'header class="green"' in html


def test_the_thorough_look_reads_tables_too_and_is_found_again_by_a_new_page(desk, host):
    host.text = fault("NaN row")
    assert "not finite" not in shown(desk).report
    *_, last = model_handlers.check(desk)
    assert "row 2368 is not finite" in last.report
    assert "row 2368 is not finite" in shown(desk).report
    host.text = replace(healthy_model(), name="other")
    assert "row 2368" not in shown(desk).report


def test_a_prompt_taken_apart_shows_ids_chunks_and_places(desk, host):
    host.text = healthy_model()
    html = model_handlers.tokens(desk, "a ready-xq (cat:1.3) BREAK [dog:<b>:0.5] <lora:x:1>", 10)
    assert html.count('class="token vector"') == 2 * 2 * 3  # two texts, two encoders, three vectors
    assert "2368" in html and "<sup>1.3</sup>" in html and "lora: x:1" in html
    assert "<b></bdi>" not in html and "&lt;" in html
    assert TEXTS["padding"] in html


def test_a_prompt_with_an_embedding_for_one_encoder_shows_what_is_missing(desk, host, tmp_path):
    host.text = healthy_model()
    assert 'class="token vector missing"' not in model_handlers.tokens(desk, "a old-xq", 10)  # completed at use


def test_strangers_texts_are_escaped(host):
    found = {
        "model": "<script>", "light": "green", "encoders": [], "at_load": None,
        "checks": [{"code": "x", "title": "<i>", "place": None, "severity": "error", "expected": "<b>", "found": "<u>",
                    "repaired": None, "message": "<img>"}],
    }  # fmt: skip
    html = model_report.report(found)
    assert not any(sign in html for sign in ("<script>", "<i>", "<u>", "<img>"))


@pytest.fixture
def client(host, monkeypatch):
    monkeypatch.setattr(desks, "_desk", None)
    app = FastAPI()
    mount_api(app, host)
    return TestClient(app)


def test_the_routes(client, host):
    nothing = client.get("/ti_fix/v1/model").json()
    assert nothing["loaded"] is False and "torch" in nothing["environment"]
    host.text = fault("NaN row")
    assert client.get("/ti_fix/v1/model").json()["light"] == "green"
    assert client.get("/ti_fix/v1/model?full=1").json()["light"] == "red"
    answer = client.post("/ti_fix/v1/tokens", json={"prompt": "a [cat:dog:5]", "steps": 10}).json()
    assert [text["steps"] for text in answer["texts"]] == [[1, 5], [6, 10]]
    assert answer["encoders"][0]["chunks"][0]["ids"][:4] == [49406, 320, 2368, 49407]
    for wrong in ({"prompt": 3}, {"prompt": "a", "steps": "x"}, {}, {"prompt": "a" * 30_000}):
        assert client.post("/ti_fix/v1/tokens", json=wrong).status_code == 400


def test_the_routes_ask_for_the_password_and_change_nothing(client, host):
    host.credentials = [("me", "secret")]
    assert client.get("/ti_fix/v1/model").status_code == 401
    assert client.post("/ti_fix/v1/tokens", json={"prompt": "a"}).status_code == 401
    host.credentials, host.is_exposed = [], True
    assert client.post("/ti_fix/v1/tokens", json={"prompt": "a"}).status_code == 200
