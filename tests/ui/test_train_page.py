"""The Train page's handlers on a tiny model: what a person does, step by step."""

from __future__ import annotations

import json
import re
import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from PIL import Image

from tests.hosts.tiny_models import broken_row
from tests.train.making import TRIGGER, image, model
from tests.ui.folders import StandIn, widened
from ti_fix.formats import read
from ti_fix.hosts.standalone import StandaloneHost
from ti_fix.train import TrainConfig
from ti_fix.ui import train_album
from ti_fix.ui import train_handlers as handlers
from ti_fix.ui.desk import Desk
from ti_fix.ui.guard import FAULT
from ti_fix.ui.train_shown import FORM, Request, Shown, Window

QUICK = {
    "resolution": 64,
    "steps": 3,
    "batch_size": 1,
    "warmup": 0,
    "validate_every": 1,
    "validation_timesteps": 1,
    "self_test": False,
    "preview_every": 2,
    "preview_steps": 1,
    "checkpoint_every": 2,
}


@pytest.fixture
def host(tmp_path):
    host = StandIn(tmp_path / "embeddings")
    (tmp_path / "embeddings").mkdir()
    host.trainer = StandaloneHost(model())
    host.publish = widened
    return host


@pytest.fixture
def desk(host, monkeypatch):
    monkeypatch.setattr(handlers, "WATCH", 0.01)
    return Desk(host)


@pytest.fixture
def pictures(tmp_path):
    (tmp_path / "mine").mkdir()
    for i in range(2):
        image(i).save(tmp_path / "mine" / f"{i}.png")
    return [str(path) for path in sorted((tmp_path / "mine").iterdir())]


def asked(name=TRIGGER, what="red tower", *, style=False, **changes):
    config = replace(TrainConfig(), **{**QUICK, **changes})
    return Request(name=name, what=what, style=style, values=tuple(FORM.values(config)))


def last(steps):
    """All steps laid over each other, as the page sees them."""
    page = {}
    for step in steps if not isinstance(steps, Shown) else [steps]:
        page.update({key: getattr(step, key) for key in Shown.__slots__ if getattr(step, key) is not None})
    return page


def trained(desk, pictures, **changes):
    train_album.pictures_added(desk, pictures, "")
    return last(handlers.start(desk, Window(), asked(**changes)))


@contextmanager
def in_first_step(host, deed):
    """While open, something is done within the first step, which is the first prediction with gradients."""
    loaded = host.trainer.model()
    predict, steps = loaded.predict, []

    def predicting(*args):
        if torch.is_grad_enabled() and not steps:
            steps.append(deed())
        return predict(*args)

    loaded.predict = predicting
    try:
        yield
    finally:
        del loaded.predict


def value(request, name):
    return dict(zip((field.name for field in FORM.fields), request.values, strict=True))[name]


def test_a_name_pictures_and_train_make_an_embedding_that_prompts_can_call(desk, host, pictures, tmp_path):
    page = trained(desk, pictures)
    assert "Finished after 3 steps" in page["status"]
    assert host.refreshed == 1
    written = read(tmp_path / "embeddings" / f"{TRIGGER}.safetensors").embedding
    assert written.name == TRIGGER and set(written.vectors) == {"clip_l", "clip_g"}
    assert "Validation loss" in page["live"] and "<polyline" in page["live"] and "Nearest words" in page["live"]
    assert page["strip"].count("<img") == 1
    assert TRIGGER in page["history"]
    assert not page["buttons"].running and not page["buttons"].paused


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": " "}, "Give it a name first"),
        ({"steps": 0}, "Steps (steps) is 0; give a number from 1"),
        ({"folders": ("/not/there",)}, "is no folder"),
    ],
)
def test_what_is_missing_or_wrong_is_told_and_nothing_starts(desk, pictures, changes, said):
    page = trained(desk, pictures, **changes)
    assert said in page["status"] and 'role="alert"' in page["status"]
    assert desk.training.job.state.number == 0


def test_without_pictures_it_says_where_they_go(desk):
    page = last(handlers.start(desk, Window(), asked()))
    assert "Add pictures first" in page["status"]


def test_a_second_start_says_that_one_runs(desk, host, pictures):
    gate = threading.Event()
    run = host.trainer.run
    host.trainer.run = lambda work: (gate.wait(20), run(work))
    train_album.pictures_added(desk, pictures, "")
    desk.training.start(handlers.config_of(desk, asked()))
    page = last(handlers.start(desk, Window(), asked(name="zqx-two")))
    assert "is still running" in page["status"]
    checked = last(handlers.check(desk, Window(), asked(name="zqx-two")))
    assert "A training runs" in checked["status"]
    handlers.stop(desk)
    gate.set()
    assert desk.training.job.wait(30).status == "stopped"
    assert "nothing was trained" in last(handlers.opened(desk, Window()))["status"]
    assert not list(host.embedding_folders[0].rglob("*.safetensors"))


def test_a_page_that_is_opened_later_shows_the_run_and_its_settings(desk, pictures):
    trained(desk, pictures, vectors=2)
    window = Window()
    fill = handlers.filled(desk, window).fill
    assert (fill.name, fill.what, value(fill, "vectors"), value(fill, "folders")) == (TRIGGER, "red tower", 2, "")
    assert handlers.filled(desk, window).fill is None  # what the user types meanwhile stays
    page = last(handlers.opened(desk, Window()))
    assert "Finished after 3 steps" in page["status"] and "<polyline" in page["live"]


def test_pictures_of_a_new_page_are_cut_as_its_form_will_say_later_as_it_says(desk, pictures):
    trained(desk, pictures, resolution=64)
    window, unfilled = Window(), ("", "512")
    assert "→" not in last(handlers.opened(desk, window, *unfilled))["album"]
    assert "→ 512 × 512" in last(handlers.opened(desk, window, *unfilled))["album"]


def test_a_new_page_is_filled_for_the_loaded_model(desk):
    fill = handlers.filled(desk, Window()).fill
    assert (fill.name, value(fill, "resolution"), value(fill, "folders")) == ("", 64, "")


def test_a_window_that_looks_gives_way_to_its_next_look(desk, host, pictures):
    gate = threading.Event()
    run = host.trainer.run
    host.trainer.run = lambda work: (gate.wait(20), run(work))
    train_album.pictures_added(desk, pictures, "")
    window = Window()
    looking = handlers.start(desk, window, asked())
    next(looking)
    again = handlers.opened(desk, window)
    next(again)
    next(again)
    assert list(looking) == []
    gate.set()
    assert "Finished" in last(again)["status"]


def test_pause_frees_the_host_and_resume_goes_on_to_the_same_vectors(desk, host, pictures, tmp_path):
    whole = trained(desk, pictures, name="zqx-whole", steps=4)
    assert "Finished after 4 steps" in whole["status"]
    train_album.pictures_added(desk, pictures, "")
    with in_first_step(host, lambda: handlers.pause(desk)):
        page = last(handlers.start(desk, Window(), asked(name="zqx-parts", steps=4)))
    paused = desk.training.live.done
    assert page["buttons"].paused and "press Resume" in page["status"] and paused.step < 4
    assert "Finished after 4 steps" in last(handlers.resume(desk, Window()))["status"]
    assert [step for step, _ in desk.training.live.losses] == [1, 2, 3, 4]
    one, other = (read(tmp_path / "embeddings" / f"{n}.safetensors").embedding for n in ("zqx-whole", "zqx-parts"))
    assert all(one.vectors[key].equal(other.vectors[key]) for key in one.vectors)


def test_check_tells_findings_and_trains_nothing(desk, pictures, tmp_path):
    train_album.pictures_added(desk, [*pictures, pictures[0]], "")
    page = last(handlers.check(desk, Window(), asked(learning_rate="1e-9", vectors=2)))
    assert page["live"].count('class="token vector"') == 2 * 2, "two vectors in each of two encoders"
    assert "Ready to train" in page["status"] and "That is too little" in page["live"]
    assert not list((tmp_path / "embeddings").iterdir())
    command = json.loads(re.search(r'data-ti-fix="remedy:([^"]+)"', page["live"])[1].replace("&quot;", '"'))
    assert command == {"learning_rate": "0.005"}
    page = last(handlers.commanded(desk, Window(), f"remedy:{json.dumps(command)}", asked(learning_rate="1e-9")))
    assert value(page["fill"], "learning_rate") == "0.005" and "is now 0.005" in page["status"]


def test_a_look_ends_where_stop_is_pressed_and_says_meanwhile_that_it_will(desk, host, pictures):
    gate = threading.Event()
    run = host.trainer.run
    host.trainer.run = lambda work: (gate.wait(20), run(work))
    train_album.pictures_added(desk, pictures, "")
    steps = handlers.check(desk, Window(), asked())
    next(steps)
    handlers.stop(desk)
    assert "Stopping" in next(steps).status
    gate.set()
    assert "Ready to train" not in last(steps)["status"]
    assert desk.training.checking.state.status == "stopped"


def test_a_taken_name_is_put_right_by_its_button(desk, pictures):
    trained(desk, pictures)
    page = trained(desk, pictures)
    assert "exists already" in page["status"] and "remedy:{&quot;overwrite&quot;: true}" in page["status"]
    fill = last(handlers.commanded(desk, Window(), 'remedy:{"overwrite": true}', asked()))["fill"]
    page = last(handlers.start(desk, Window(), fill))
    assert "Finished" in page["status"]


def test_captions_are_written_beside_the_pictures_and_taken_away_again(desk, pictures):
    page = last(train_album.pictures_added(desk, pictures, ""))
    assert page["album"].count("<li>") == 2 and ">2</b> <span>pictures<" in page["album"]
    ids = re.findall(r'data-ti-fix-edit="caption:(\w+)"', page["album"])
    folder = desk.training.album.folder
    last(handlers.commanded(desk, Window(), f"caption:{ids[0]}:a red\nthing: big", asked()))
    assert (folder / "0.txt").read_text(encoding="utf-8") == "a red thing: big"
    assert "a red thing: big" in last(train_album.album_changed(desk, ""))["album"]
    last(handlers.commanded(desk, Window(), f"caption:{ids[0]}:  ", asked()))
    assert not (folder / "0.txt").exists()
    page = last(handlers.commanded(desk, Window(), f"remove:{ids[1]}", asked()))
    assert ">1</b> <span>picture<" in page["album"]
    assert page["album"].count("<li>") == 1 and sorted(p.name for p in folder.iterdir()) == ["0.png"]


def test_pictures_in_a_folder_of_the_users_are_shown_and_never_removed(desk, pictures, tmp_path):
    page = last(train_album.album_changed(desk, str(tmp_path / "mine")))
    assert page["album"].count("<li>") == 2 and "remove:" not in page["album"]
    (id_, _) = re.findall(r'data-ti-fix-edit="caption:(\w+)"', page["album"])
    page = last(handlers.commanded(desk, Window(), f"remove:{id_}", asked(folders=(str(tmp_path / "mine"),))))
    assert "take it out of that folder yourself" in page["status"] and len(list((tmp_path / "mine").iterdir())) == 2


@pytest.mark.parametrize(
    ("captions", "style", "template"),
    [
        ((), False, "auto"),
        ((), True, "style"),
        (("a red thing",), False, "[name], [filewords]"),
        (("a red thing",), True, "[filewords], in the style of [name]"),
        ((f"a {TRIGGER} on a table",), True, "auto"),
        (("[name], red",), False, "auto"),
    ],
)
def test_captions_without_the_name_get_it(desk, pictures, captions, style, template):
    train_album.pictures_added(desk, pictures, "")
    for i, text in enumerate(captions):
        (desk.training.album.folder / f"{i}.txt").write_text(text, encoding="utf-8")
    assert handlers.config_of(desk, asked(style=style)).template == template


def test_earlier_runs_can_be_used_again(desk, pictures, tmp_path):
    trained(desk, pictures, steps=4)
    (run,) = desk.training.runs()
    assert (run.steps, [step for step, _ in run.curve], [step for step, _ in run.saved]) == (4, [0, 1, 2, 3, 4], [2])
    desk.training.begin_album()
    page = last(handlers.commanded(desk, Window(), f"again:{TRIGGER}", asked(name="other")))
    assert page["fill"].name == TRIGGER and value(page["fill"], "steps") == 4 and page["album"].count("<li>") == 2
    page = last(handlers.commanded(desk, Window(), f"use:2:{TRIGGER}", asked()))
    final, kept = (read(path).embedding for path in (desk.training.place(TRIGGER), run.saved[0][1]))
    assert "step 2" in page["status"] and final.name == TRIGGER
    assert all(final.vectors[key].equal(kept.vectors[key]) for key in kept.vectors)
    assert f"use:best:{TRIGGER}" in last(handlers.opened(desk, Window()))["history"]
    page = last(handlers.commanded(desk, Window(), f"use:best:{TRIGGER}", asked()))
    best, again = (read(path).embedding for path in (run.final, desk.training.place(TRIGGER)))
    assert "result; prompts use it at once" in page["status"]
    assert all(best.vectors[key].equal(again.vectors[key]) for key in best.vectors)
    assert "There is no run" in last(handlers.commanded(desk, Window(), "use:2:nobody", asked()))["status"]


def test_save_now_writes_the_vectors_of_this_step(desk, host, pictures, tmp_path):
    train_album.pictures_added(desk, pictures, "")
    assert "nothing to save" in last(handlers.save_now(desk))["status"]
    with in_first_step(host, lambda: handlers.save_now(desk)):
        last(handlers.start(desk, Window(), asked(checkpoint_every=0, validate_every=0, keep=0)))
    assert [step for step, _ in desk.training.runs()[0].saved] == [1]
    names = [f"{TRIGGER}-1.safetensors", f"{TRIGGER}.safetensors"]
    assert sorted(path.name for path in (tmp_path / "embeddings").iterdir()) == names


def test_strange_commands_do_nothing(desk):
    assert last(handlers.commanded(desk, Window(), "nothing:known", asked())) == {}
    assert last(handlers.commanded(desk, Window(), "remedy:no json", asked()))["status"].count(FAULT) == 1


def test_names_of_strangers_are_escaped(desk, pictures, tmp_path):
    folder = tmp_path / "mine"
    (folder / "0.png").rename(folder / "<b>.png")
    (folder / "<b>.txt").write_text("<script>", encoding="utf-8")
    album = last(train_album.album_changed(desk, str(folder)))["album"]
    assert "<script>" not in album and "&lt;script&gt;" in album and 'alt="&lt;b&gt;.png"' in album


def test_a_model_with_a_broken_text_encoder_is_not_trained_on(host, desk, pictures):
    broken = host.trainer.model()
    host.text = broken.text_model()
    with broken_row(broken.vocabulary().tables["clip_g"]):
        assert "row 2368 is not finite" in str(trained(desk, pictures))
    assert not list((desk.host.embedding_folders[0]).glob(f"{TRIGGER}*"))


# captions by the host


class Captioner:
    """An interrogator that has to fetch its model first."""

    key, name, kind = "words", "Interrogate X", "as a sentence"

    def __init__(self, downloads):
        self.downloads, self.saw = downloads, []

    def needed(self):
        return self.downloads

    def caption(self, picture):
        self.saw.append(picture.size)
        return f"picture {len(self.saw)},\na tower"


def test_captions_by_the_host_ask_before_a_download_and_leave_the_others_alone(desk, host, pictures, tmp_path):
    captioner = Captioner(["X (1 GB, MIT, from nowhere)"])
    host.captioners = (captioner,)
    (tmp_path / "mine" / "0.txt").write_text("mine", encoding="utf-8")
    folder = asked(folders=(str(tmp_path / "mine"),))
    page = last(train_album.album_changed(desk, str(tmp_path / "mine")))
    assert "captions:words" in page["album"]
    page = last(handlers.commanded(desk, Window(), "captions:words", folder))
    assert "1 GB, MIT" in page["status"] and "captions:words:yes" in page["status"] and captioner.saw == []
    page = last(handlers.commanded(desk, Window(), "captions:words:yes", folder))
    assert "1 captions written by Interrogate X" in page["status"] and "captions:words" not in page["album"]
    assert (tmp_path / "mine" / "0.txt").read_text(encoding="utf-8") == "mine"
    assert (tmp_path / "mine" / "1.txt").read_text(encoding="utf-8") == "picture 1, a tower"
    page = last(handlers.commanded(desk, Window(), "captions:words", folder))
    assert "Every picture has a caption" in page["status"] and len(captioner.saw) == 1


def test_pictures_show_what_is_cut_off_and_what_a_mask_leaves_out(desk, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    image(0, (64, 64)).save(folder / "square.png")
    whole = last(train_album.album_changed(desk, str(folder), 64, True))["album"]
    assert "Shaded edges" not in whole and "64 × 64<" in whole
    image(0, (128, 64)).save(folder / "wide.png")
    page = last(train_album.album_changed(desk, str(folder), 64, False))
    assert "Shaded edges" in page["album"] and "128 × 64 → 64 × 64" in page["album"]
    assert last(handlers.opened(desk, Window(drawn=True), str(folder), 64, False))["album"] == page["album"]
    Image.new("L", (64, 64), 0).save(folder / "square-mask.png")
    page = last(train_album.album_changed(desk, str(folder), 64, True))
    assert "Red places" in page["album"]
    assert "Red places" not in last(train_album.album_changed(desk, str(folder), 64, True, "1", False))["album"]


def test_a_page_that_strangers_can_reach_trains_and_shows_nothing(desk, host, pictures, tmp_path):
    host.is_exposed = True
    for page in (
        last(train_album.pictures_added(desk, pictures, "")),
        last(train_album.album_changed(desk, str(tmp_path / "mine"))),
        last(handlers.start(desk, Window(), asked())),
        last(handlers.commanded(desk, Window(), f"use:best:{TRIGGER}", asked())),
    ):
        assert "without a password" in page["status"] and not page.get("album")
