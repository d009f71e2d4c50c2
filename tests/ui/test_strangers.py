"""A page or API that other computers reach without a password changes nothing: every handler and every route.

A handler that is new is in neither list here and fails the first test, so that somebody says which kind it is.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tests.train.making import image
from tests.ui.folders import StandIn, fill, save_lora, vectors
from ti_fix.embedding import Vocabulary
from ti_fix.evaluate import EvalConfig
from ti_fix.train import TrainConfig
from ti_fix.ui import (
    api,
    convert_desk,
    convert_handlers,
    evaluate_handlers,
    files_handlers,
    model_handlers,
    train_album,
    train_api,
    train_handlers,
)
from ti_fix.ui.desk import Desk
from ti_fix.ui.files_table import View
from ti_fix.ui.train_handlers import FORM, Request, Window

MODULES = {
    "files": files_handlers,
    "train": train_handlers,
    "album": train_album,
    "convert": convert_handlers,
    "evaluate": evaluate_handlers,
    "model": model_handlers,
}

READS = {
    *("files.opened", "files.everything", "files.actions", "files.searched", "files.commanded", "files.find_loras"),
    *("files.export_chosen", "files.stop", "files.watched"),
    *("train.config_of", "train.request_of", "train.filled", "train.opened", "train.pause", "train.stop"),
    "train.everything",
    *("album.new_pictures", "album.album", "album.settings_of", "album.chosen"),
    *("convert.opened", "convert.commanded", "convert.stop", "convert.watched", "convert.choices"),
    *("evaluate.opened", "evaluate.choices", "evaluate.stop", "evaluate.result"),
    *("model.opened", "model.check", "model.tokens"),
}
"""They draw, stop, or write into a temporary folder for a download."""


class World:
    """Folders, a page on them, and what a visitor of it can hand in."""

    def __init__(self, root):
        self.embeddings, self.mine = fill(root / "embeddings"), root / "mine"
        save_lora(root / "loras" / "style.safetensors")
        self.mine.mkdir()
        self.picture = self.mine / "0.png"
        image(0).save(self.picture)
        self.host = StandIn(self.embeddings, loras=[root / "loras"])
        self.desk = Desk(self.host)
        self.desk.library.refreshed()
        swapped = next(entry for entry in self.desk.library.entries if entry.trigger == "swapped-xq")
        last(files_handlers.repair_chosen(self.desk, View(chosen=swapped.id), ""))  # which a stranger might undo
        self.ids = {entry.trigger: entry.id for entry in self.desk.library.entries}

    def view(self, trigger):
        return View(chosen=self.ids[trigger])

    def asked(self, **changes):
        values = FORM.values(replace(TrainConfig(), folders=(str(self.mine),), **changes))
        return Request(name="new-xq", what="", style=False, values=tuple(values))

    def with_carrier(self):
        for _ in self.desk.look_through_loras(threading.Event()):
            pass
        return self.desk.carriers[0]


def begun(world, judge="", dino=""):
    settings = evaluate_handlers.FORM.values(EvalConfig())
    entry = world.ids["ready-xq"]
    return evaluate_handlers.begin(world.desk, entry, "", None, (), False, "", False, judge, False, dino, *settings)


WRITES = {
    "files.repair_chosen": lambda w: files_handlers.repair_chosen(w.desk, w.view("my-toy"), ""),
    "files.repair_shown": lambda w: files_handlers.repair_shown(w.desk, View(), ""),
    "files.undo_last": lambda w: files_handlers.undo_last(w.desk, View(), ""),
    "files.extract_chosen": lambda w: files_handlers.extract_chosen(w.desk, w.view("swapped-xq"), ""),
    "files.extract_lora": lambda w: files_handlers.extract_lora(w.desk, View(), "", w.with_carrier()),
    "train.start": lambda w: train_handlers.start(w.desk, Window(), w.asked()),
    "train.check": lambda w: train_handlers.check(w.desk, Window(), w.asked()),
    "train.resume": lambda w: train_handlers.resume(w.desk, Window()),
    "train.save_now": lambda w: train_handlers.save_now(w.desk),
    "album.pictures_added": lambda w: train_album.pictures_added(w.desk, [str(w.picture)], ""),
    "album.album_changed": lambda w: train_album.album_changed(w.desk, str(w.mine)),
    "train.commanded": lambda w: train_handlers.commanded(w.desk, Window(), "caption:0:mine now", w.asked()),
    "train.commanded captions": lambda w: train_handlers.commanded(w.desk, Window(), "captions:tags", w.asked()),
    "train.commanded remove": lambda w: train_handlers.commanded(w.desk, Window(), "remove:0", w.asked()),
    "train.commanded use": lambda w: train_handlers.commanded(w.desk, Window(), "use:3:new-xq", w.asked()),
    "train.commanded resume": lambda w: train_handlers.commanded(w.desk, Window(), "resume:new-xq", w.asked()),
    "evaluate.begin": lambda w: begun(w, judge=str(w.mine / "judge.pt")),
    "evaluate.begin dino": lambda w: begun(w, dino=str(w.mine / "dino.pt")),
    "evaluate.look": lambda w: evaluate_handlers.look(w.desk, [str(w.picture)], str(w.mine / "judge.pt"), False),
}
"""They change files, or look at a place that the visitor names."""

ASK_LATER = {"convert.convert_chosen"}
"""Looking is for all; whether it may write is asked as each file is written."""


CALLED = {"album.picture", "album.captions"}
"""What `train_handlers.commanded` leaves to them is tried through it."""


def contents(folder):
    """Path -> bytes of everything in a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def handlers():
    """Every public function of the handler modules, as ``page.name``."""
    for page, module in MODULES.items():
        for name, each in vars(module).items():
            if inspect.isfunction(each) and not name.startswith("_") and each.__module__ == module.__name__:
                yield f"{page}.{name}"


def last(found):
    """What the page says in the end."""
    steps = list(found) if isinstance(found, Iterator) else [found]
    return "".join(str(step.status or "") for step in steps)


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_every_handler_is_known_to_write_or_not():
    known = READS | ASK_LATER | CALLED | {name.partition(" ")[0] for name in WRITES}
    assert set(handlers()) - known == set()
    assert known - set(handlers()) == set()


@pytest.mark.parametrize("name", WRITES)
def test_the_page_refuses_what_changes_files_or_looks_into_named_places(world, tmp_path, name):
    world.host.is_exposed = True
    before, refreshed = contents(tmp_path), world.host.refreshed
    said = last(WRITES[name](world))
    assert "Other computers can reach this page without a password" in said
    assert contents(tmp_path) == before and world.host.refreshed == refreshed


def test_converting_writes_nothing_for_strangers(world, tmp_path, monkeypatch):
    monkeypatch.setattr(convert_desk, "CACHE", tmp_path / "cache")
    left, right = vectors(400, seed=5)
    world.host.words = Vocabulary(tables={"clip_l": left, "clip_g": right}, tokenize=lambda _: [0])
    world.host.is_exposed = True
    room = convert_desk.convert_desk_of(world.desk)
    before = contents(world.embeddings)
    *_, end = convert_handlers.convert_chosen(room, (), True, "auto", False, True)
    assert "Other computers can reach this page without a password" in end.cards
    assert contents(world.embeddings) == before
    world.host.is_exposed = False
    *_, end = convert_handlers.convert_chosen(room, (), True, "auto", False, True)
    assert contents(world.embeddings) != before


def test_every_route_that_writes_is_closed_to_strangers_and_reading_ones_are_not(world, tmp_path):
    app = FastAPI()
    api.mount(app, world.host)
    train_api.mount(app, world.host)
    world.host.is_exposed = True
    before, refreshed = contents(tmp_path), world.host.refreshed
    client = TestClient(app)
    reading = {f"{api.PREFIX}/{path}" for path in ("tokens",)}
    tried = 0
    for route in app.routes:
        path = str(getattr(route, "path", ""))
        if not path.startswith(api.PREFIX):
            continue
        if "POST" in route.methods and path not in reading:
            answer = client.post(path, json={"id": world.ids["swapped-xq"], "name": "new-xq", "folders": ["/"]})
            assert (answer.status_code, answer.json()["error"]) == (403, "exposed"), path
            tried += 1
        else:
            assert route.methods <= {"GET", "HEAD"} or path in reading, path
            assert client.get(path).status_code != 403, path
    assert tried >= 7
    assert contents(tmp_path) == before and world.host.refreshed == refreshed
