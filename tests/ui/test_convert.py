"""The Convert page's handlers and the API route, over a stand-in host with small tables."""

from __future__ import annotations

import pytest
import safetensors.torch
import torch
from fastapi import FastAPI
from fastapi.testclient import TestClient
from PIL import Image

from tests.ui.folders import StandIn, fill, save, vectors
from ti_fix.embedding import SD15, Vocabulary
from ti_fix.errors import TiFixError
from ti_fix.ui import api, convert_desk, convert_handlers
from ti_fix.ui import desk as desk_module
from ti_fix.ui.convert_desk import convert_desk_of
from ti_fix.ui.convert_table import MOST_ROWS, bar, results
from ti_fix.ui.desk import Desk


def words():
    left, right = vectors(400, seed=5)
    return Vocabulary(tables={"clip_l": left, "clip_g": right}, tokenize=lambda _: [0])


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """What is learned of the words is learned once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def host(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(desk_module, "_desk", None)
    monkeypatch.setattr(convert_desk, "CACHE", cache)
    monkeypatch.setattr(convert_handlers, "WATCH", 0.01)
    host = StandIn(fill(tmp_path / "embeddings"))
    host.words = words()
    return host


@pytest.fixture
def room(host):
    room = convert_desk_of(Desk(host))
    last(convert_handlers.opened(room))
    return room


@pytest.fixture
def client(host):
    app = FastAPI()
    api.mount(app, host)
    return TestClient(app)


def last(steps):
    """All steps laid over each other, as the page sees them."""
    page = {}
    for each in steps:
        page |= {name: value for name in each.__slots__ if (value := getattr(each, name)) is not None}
    return page


def convert(room, chosen=(), everything=True, method="auto", drawn=False, write=False):
    return last(convert_handlers.convert_chosen(room, chosen, everything, method, drawn, write))


def test_what_waits_is_listed(room):
    page = last(convert_handlers.opened(room))
    assert page["choices"] == ("old-xq.safetensors",)
    assert page["status"] == "" and page["busy"] is False


def test_what_waits_no_longer_is_not_chosen_any_more(room, host):
    assert "chosen" not in last(convert_handlers.opened(room, ["old-xq.safetensors"]))
    host.model, host.words = SD15, None
    page = last(convert_handlers.opened(room, ["old-xq.safetensors"]))
    assert page["chosen"] == () and "old-xq.safetensors" not in page["choices"]


def test_looking_writes_nothing(room, host, tmp_path):
    before = sorted(tmp_path.rglob("*.safetensors"))
    page = convert(room)
    assert "1 of 1 converted; nothing was written" in page["status"]
    assert "3 by the map" in page["cards"] and page["busy"] is False
    assert sorted(tmp_path.rglob("*.safetensors")) == before
    assert host.refreshed == 0


def test_writing_keeps_the_original_and_tells_the_host(room, host, tmp_path):
    save(tmp_path / "embeddings" / "mine-xq.safetensors", {"emb_params": words().tables["clip_l"][7:8] * 2})
    last(convert_handlers.opened(room))
    page = convert(room, chosen=["mine-xq.safetensors"], everything=False, write=True)
    assert "written to" in page["status"] and "<bdi>mine-xq-sdxl</bdi>" in page["cards"]
    written = safetensors.torch.load_file(tmp_path / "embeddings" / "mine-xq-sdxl.safetensors")
    torch.testing.assert_close(written["clip_g"], words().tables["clip_g"][7:8] * 2)
    assert (tmp_path / "embeddings" / "mine-xq.safetensors").is_file()
    assert host.refreshed == 1


def test_for_an_sd15_model_the_left_half_is_kept(room, host, tmp_path):
    host.model, host.words = SD15, None
    last(convert_handlers.opened(room))
    page = convert(room, write=True)
    assert "kept as it is" in page["cards"]
    written = safetensors.torch.load_file(tmp_path / "embeddings" / "ready-xq-sd15.safetensors")
    assert [tuple(block.shape) for block in written.values()] == [(3, 768)]


def test_without_a_model_it_says_what_to_do(room, host):
    host.words = None
    assert "No SDXL model is loaded" in convert(room)["status"]


@pytest.mark.parametrize(
    ("how", "said"), [({"everything": False}, "Choose one or more"), ({"method": "magic"}, "choose one of")]
)
def test_wrong_choices_are_said(room, how, said):
    assert said in convert(room, **how)["status"]


def test_a_running_job_is_found_again_and_can_be_stopped(room, monkeypatch):
    monkeypatch.setattr(convert_handlers, "WATCH", 0.01)
    room.working.start("Converting", lambda stop: (each for each in iter(lambda: stop.wait(0.01) or None, True)))
    steps = convert_handlers.opened(room)
    assert next(each for each in steps if each.busy)
    assert room.desk.busy
    convert_handlers.stop(room)
    assert "Stopped" in last(steps)["status"] and not room.desk.busy


def test_names_and_words_are_escaped(room, tmp_path):
    save(tmp_path / "embeddings" / "<b>x.safetensors", {"emb_params": vectors(MOST_ROWS + 2, 9)[0]})
    last(convert_handlers.opened(room))
    cards = convert(room)["cards"]
    assert "<b>x" not in cards and "&lt;b&gt;x" in cards
    assert "… 2" in cards


class Painter:
    """What draws: a black picture without embeddings, a white one with them."""

    def __init__(self):
        self.asked = []

    def run(self, work):
        return work()

    def model(self):
        self.asked.clear()

    def generate(self, request):
        self.asked.append(request)
        return Image.new("L", (request.width, request.height), 255 if request.embeddings else 0)


def test_pictures_without_and_with_it_from_the_same_noise(room, host):
    host.trainer = Painter()
    cards = convert(room, drawn=True)["cards"]
    assert cards.count("<img ") == 4
    first, second = ([r.seed for r in host.trainer.asked if bool(r.embeddings) == used] for used in (False, True))
    assert first == second and len(set(first)) == 2
    assert {(r.width, r.prompt) for r in host.trainer.asked} == {(64, "a photo of old-xq")}


def test_the_loaded_model_works_only_while_no_picture_is_made(room, host, monkeypatch):
    held = []

    class Lent:
        def run(self, work):
            held.append(True)
            try:
                return work()
            finally:
                held.pop()

        def model(self):
            return None

    seen = []

    def converted(*_):
        seen.append(bool(held))
        raise TiFixError("enough")
        yield

    host.trainer = Lent()
    monkeypatch.setattr("ti_fix.convert.batch.convert", converted)
    convert(room, method="match")
    convert(room)
    half = len(seen) // 2
    assert half and seen == [True] * half + [False] * half


def test_the_bar_says_its_numbers(room):
    convert(room)
    (done,) = [each for each in room.working.events() if isinstance(each, convert_desk.Converted)]
    row = done.conversion.rows[0]
    assert f"{row.confidence.expected:.2f}" in bar(row)
    assert "aria-label" in results([done])


def test_the_route_converts_and_writes(client, tmp_path):
    answer = client.post("/ti_fix/v1/convert", json={"path": "old-xq.safetensors", "to": "SDXL"}).json()
    (result,) = answer["results"]
    assert result["written"] == ["old-xq-sdxl.safetensors"]
    assert [row["method"] for row in result["vectors"]] == ["local"] * 3
    assert set(result["vectors"][0]["confidence"]) == {"expected", "low", "high"}
    assert (tmp_path / "embeddings" / "old-xq-sdxl.safetensors").is_file()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"path": "old-xq.safetensors", "to": "sd15"}, 400),
        ({"path": "old-xq.safetensors", "method": "magic"}, 400),
        ({"path": "nothing"}, 404),
    ],
)
def test_the_route_refuses(client, body, status):
    assert client.post("/ti_fix/v1/convert", json=body).status_code == status


def test_the_route_says_what_is_no_conversion(client):
    answer = client.post("/ti_fix/v1/convert", json={"path": "ready-xq.safetensors"}).json()
    assert "already" in answer["results"][0]["message"]
