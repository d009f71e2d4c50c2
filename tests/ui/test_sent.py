"""What other pages and the WebUI's own tabs send to Evaluate and Convert."""

from __future__ import annotations

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tests.ui.folders import StandIn, fill
from ti_fix.ui import convert_handlers, evaluate_handlers, evaluate_sent
from ti_fix.ui.convert_desk import ConvertDesk
from ti_fix.ui.desk import Desk


@pytest.fixture
def desk(tmp_path):
    fill(tmp_path / "embeddings")
    return Desk(StandIn(tmp_path / "embeddings"))


def picture(folder, prompt, negative):
    about = PngInfo()
    about.add_text("parameters", f"{prompt}\nNegative prompt: {negative}\nSteps: 7, CFG scale: 5, Size: 64x128")
    Image.new("RGB", (8, 8)).save(folder / "made.png", pnginfo=about)
    return str(folder / "made.png")


def entry(desk, trigger):
    return next(each for each in desk.library.refreshed() if each.trigger == trigger)


@pytest.mark.parametrize("by", ["id", "trigger"])
def test_an_embedding_is_chosen(desk, by):
    wanted = entry(desk, "ready-xq")
    filled = evaluate_sent.commanded(desk, f"take:{getattr(wanted, by)}")
    assert filled.entry == "ready-xq"
    assert ("ready-xq", wanted.id) in filled.choices


def test_what_cannot_be_evaluated_is_said(desk):
    assert "cannot be evaluated" in evaluate_sent.commanded(desk, "take:broken-xq").status


def test_pictures_join_those_that_are_there():
    filled = evaluate_sent.pictures_sent(["a.png"], ["b.png", "a.png"])
    assert filled.references == ("a.png", "b.png")


def test_a_pictures_prompt_becomes_one_of_the_evaluation(desk, tmp_path):
    filled = evaluate_sent.settings_sent(desk, picture(tmp_path, "a READY-XQ on a table, ready-xqx", "blurry"))
    assert filled.entry == "ready-xq"
    assert filled.prompts == "a [name] on a table, ready-xqx"
    assert filled.values == {
        "steps": 7,
        "cfg_scale": 5.0,
        "width": 64,
        "height": 128,
        "negative": False,
        "negative_prompt": "blurry",
    }


def test_one_in_the_negative_prompt_is_a_negative_embedding(desk, tmp_path):
    filled = evaluate_sent.settings_sent(desk, picture(tmp_path, "a cat", "blurry, ready-xq, dull"))
    assert filled.entry == "ready-xq"
    assert filled.prompts == "a cat"
    assert filled.values["negative"] is True and filled.values["negative_prompt"] == "blurry, dull"


def test_a_picture_without_an_embedding_says_what_to_do(desk, tmp_path):
    filled = evaluate_sent.settings_sent(desk, picture(tmp_path, "a cat", "blurry"))
    assert filled.entry is None and "write [name]" in filled.status


def test_the_convert_page_takes_what_waits(desk):
    room = ConvertDesk(desk)
    waiting = entry(desk, "old-xq")
    assert convert_handlers.commanded(room, f"take:{waiting.id}").chosen == ("old-xq.safetensors",)
    assert "needs no conversion" in convert_handlers.commanded(room, "take:ready-xq").status


def test_an_empty_folder_says_what_to_do(tmp_path):
    (tmp_path / "none").mkdir()
    (shown,) = evaluate_handlers.opened(Desk(StandIn(tmp_path / "none")))
    assert shown.choices == () and "Put embedding files" in shown.status
