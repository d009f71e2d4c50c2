from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from tests.ui.folders import STATES, StandIn, fill, save, save_lora, vectors
from ti_fix.formats.export import FORMS
from ti_fix.ui import desk as desk_module
from ti_fix.ui import files_handlers as handlers
from ti_fix.ui.desk import Desk
from ti_fix.ui.files_handlers import Shown
from ti_fix.ui.files_table import View
from ti_fix.ui.guard import FAULT


@pytest.fixture
def root(tmp_path):
    return fill(tmp_path / "embeddings")


@pytest.fixture
def host(root, tmp_path):
    save_lora(tmp_path / "Lora" / "style.safetensors")
    save(tmp_path / "Lora" / "plain.safetensors", {"lora_unet_mid.lora_down.weight": vectors(1)[0]})
    return StandIn(root, loras=[tmp_path / "Lora"])


@pytest.fixture
def desk(host, monkeypatch):
    monkeypatch.setattr(handlers, "WATCH", 0.01)
    monkeypatch.setattr(handlers, "SETTLED", 0.01)
    desk = Desk(host)
    last(handlers.opened(desk, View(), ""))
    return desk


def last(steps):
    """All steps laid over each other, as the page sees them."""
    page = {}
    for step in steps if not isinstance(steps, Shown) else [steps]:
        page.update({key: getattr(step, key) for key in Shown.__slots__ if getattr(step, key) is not None})
    return page


def chosen(desk, trigger):
    return View(chosen=next(each.id for each in desk.library.entries if each.trigger == trigger))


def states(desk):
    return {each.trigger: each.verdict for each in desk.library.entries}


def contents(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_opening_reads_the_folder(host):
    desk = Desk(host)
    page = last(handlers.opened(desk, View(), ""))
    assert states(desk) == STATES
    assert all(name in page["table"] for name in ("ready-xq", "swapped-xq"))
    assert page["actions"].batch == 4
    assert "Choose an embedding" in page["head"]


def test_empty_places_say_what_to_do(tmp_path):
    page = last(handlers.opened(Desk(StandIn(tmp_path / "none")), View(), ""))
    assert "Put embedding files into the folder below" in page["table"]
    assert str(tmp_path / "none") in page["table"]


def test_a_search_without_result_says_what_to_do(desk):
    assert "Clear the search or choose All" in handlers.searched(desk, View(), "zzz").table


def test_search_goes_back_to_the_first_page(desk):
    assert handlers.searched(desk, View(page=3), "").view.page == 0


def test_opening_an_embedding_leaves_the_list_alone(desk):
    new = handlers.commanded(desk, View(), f"open:{chosen(desk, 'swapped-xq').chosen}", "")
    assert new.table is None
    assert "swapped-xq" in new.head
    assert new.actions.repair == "Repair on disk"
    assert new.actions.forms == tuple(form.title for form in FORMS.values())


@pytest.mark.parametrize(
    ("trigger", "word", "forms"),
    [
        ("ready-xq", "", True),
        ("long-xq", "Split into parts", True),
        ("broken-xq", "", False),
        ("my-toy", "Repair on disk", True),
    ],
)
def test_buttons_fit_the_embedding(desk, trigger, word, forms):
    actions = handlers.commanded(desk, View(), f"open:{chosen(desk, trigger).chosen}", "").actions
    assert (actions.repair, bool(actions.forms), actions.extract) == (word, forms, False)


@pytest.mark.parametrize(
    "command", ["", "open", "show:", "show:<b>", "page:x", "page:-1", "page:²", "delete:all", ":", "\x00"]
)
def test_unknown_commands_do_nothing(desk, command):
    new = handlers.commanded(desk, View(), command, "")
    assert new == Shown() or "not in the list" in new.status


def test_a_page_beyond_the_end_is_the_last(desk):
    assert handlers.commanded(desk, View(), "page:" + "9" * 5000, "").view.page == 0


def test_repair_and_undo(desk, host, root):
    before = contents(root)
    page = last(handlers.repair_chosen(desk, chosen(desk, "swapped-xq"), ""))
    assert "1 embedding repaired on disk" in page["status"]
    assert str(root / "ti_fix_backup" / "sub") in page["status"]
    assert states(desk)["swapped-xq"] == "load"
    assert (host.refreshed, page["actions"].undo, page["actions"].busy) == (1, True, False)
    page = last(handlers.undo_last(desk, View(), ""))
    assert "1 original put back" in page["status"]
    assert contents(root) == before
    assert not page["actions"].undo
    assert "no repair to undo" in last(handlers.undo_last(desk, View(), ""))["status"]


def test_batch_repairs_what_the_list_shows(desk, root):
    page = last(handlers.repair_shown(desk, View(show="repair"), ""))
    assert "2 embeddings repaired on disk. 3 originals kept" in page["status"]
    assert states(desk) == {**STATES, "swapped-xq": "load", "my-toy": states(desk)["my-toy"]}
    assert states(desk)["my-toy"] == "load"
    last(handlers.undo_last(desk, View(), ""))
    assert states(desk) == STATES


def test_batch_goes_on_after_a_failure(desk, root):
    save(root / "a-b-xq.safetensors", dict(zip(("clip_l", "clip_g"), vectors(1), strict=True)))
    page = last(handlers.repair_shown(desk, View(), ""))
    assert "3 embeddings repaired on disk" in page["status"]
    assert "a-b-xq.safetensors exists already" in page["status"]
    assert 'role="alert"' in page["status"]


def test_batch_with_nothing_to_do_says_so(desk):
    assert "Nothing in this list needs a repair" in last(handlers.repair_shown(desk, View(show="load"), ""))["status"]


def test_stop_ends_a_batch_after_its_file(desk, root, monkeypatch):
    first, go_on, repair = threading.Event(), threading.Event(), Desk.repair

    def slow(self, entry):
        done = repair(self, entry)
        first.set()
        assert go_on.wait(20)
        return done

    monkeypatch.setattr(Desk, "repair", slow)
    steps = handlers.repair_shown(desk, View(), "")
    seen = [next(steps)]
    assert first.wait(20)
    assert "progressbar" in seen[0].status
    handlers.stop(desk)
    go_on.set()
    page = last(steps)
    assert "Stopped. 1 embedding repaired" in page["status"]
    assert page["actions"].undo


def test_a_window_that_comes_later_sees_the_job_and_its_outcome(desk, monkeypatch):
    go_on, repair = threading.Event(), Desk.repair
    monkeypatch.setattr(Desk, "repair", lambda self, entry: (go_on.wait(20), repair(self, entry))[1])
    next(handlers.repair_chosen(desk, chosen(desk, "swapped-xq"), ""))
    second = handlers.opened(desk, View(), "")
    assert any("progressbar" in (next(second).status or "") for _ in range(4))
    go_on.set()
    assert "1 embedding repaired" in last(second)["status"]
    page = last(handlers.opened(desk, View(), ""))
    assert "1 embedding repaired" in page["status"]
    assert last(handlers.opened(desk, page["view"], ""))["status"] == ""


@pytest.mark.parametrize("handler", [handlers.repair_chosen, handlers.repair_shown, handlers.extract_lora])
def test_an_open_page_changes_nothing_and_says_why(desk, host, root, handler):
    last(handlers.find_loras(desk, View(), ""))
    host.is_exposed = True
    before = contents(root)
    more = [desk.carriers[0]] if handler is handlers.extract_lora else []
    page = last(handler(desk, chosen(desk, "swapped-xq"), "", *more))
    assert "--gradio-auth" in page["status"]
    assert contents(root) == before


def test_two_jobs_at_a_time_are_refused(desk):
    gate = threading.Event()
    desk.working.start("Something long", lambda stop: iter([gate.wait(20)]))
    assert "is still running" in last(handlers.repair_chosen(desk, chosen(desk, "swapped-xq"), ""))["status"]
    gate.set()
    desk.working.wait(20)


def test_links_to_elsewhere_are_not_changed(desk, root, tmp_path):
    left, right = vectors(2)
    outside = save(tmp_path / "outside" / "far-xq.safetensors", {"clip_l": right, "clip_g": left})
    (root / "folder").symlink_to(outside.parent)
    last(handlers.opened(desk, View(), ""))
    before = contents(tmp_path / "outside")
    page = last(handlers.repair_chosen(desk, chosen(desk, "far-xq"), ""))
    assert "outside the embeddings folders" in page["status"]
    assert contents(tmp_path / "outside") == before


def test_loras(desk, root):
    page = last(handlers.find_loras(desk, View(), ""))
    assert page["actions"].loras == ("style.safetensors (1)",)
    assert "2 looked through, 1 LoRA with embeddings" in page["status"]
    page = last(handlers.extract_lora(desk, View(), "", "style.safetensors (1)"))
    assert "1 embedding taken out of style.safetensors: hero-xq" in page["status"]
    assert states(desk)["hero-xq"] == "load"
    assert "Choose a LoRA first" in last(handlers.extract_lora(desk, View(), "", "../x"))["status"]


def test_without_loras_it_says_so(desk, host):
    host.lora_folders = []
    assert "no LoRA folder" in last(handlers.find_loras(desk, View(), ""))["status"]


def test_a_lora_in_the_wrong_folder_can_be_emptied(desk, root):
    save_lora(root / "wrong-xq.safetensors")
    last(handlers.opened(desk, View(), ""))
    view = chosen(desk, "wrong-xq")
    assert handlers.commanded(desk, View(), f"open:{view.chosen}", "").actions.extract
    last(handlers.extract_chosen(desk, view, ""))
    assert states(desk)["hero-xq"] == "load"


def test_split(desk, root):
    last(handlers.repair_chosen(desk, chosen(desk, "long-xq"), ""))
    assert {"long-xq-1", "long-xq-2"} <= states(desk).keys()
    assert "long-xq" not in states(desk)


@pytest.mark.parametrize("form", [form.title for form in FORMS.values()])
def test_export(desk, form):
    new = handlers.export_chosen(desk, chosen(desk, "swapped-xq"), form)
    assert new.files
    assert all(Path(each).is_file() for each in new.files)
    assert "prompt" in new.status


@pytest.mark.parametrize(
    ("trigger", "form", "why"), [("broken-xq", "A1111", "cannot be used"), ("ready-xq", None, "Choose")]
)
def test_export_that_cannot_be(desk, trigger, form, why):
    new = handlers.export_chosen(desk, chosen(desk, trigger), form)
    assert why in new.status
    assert not new.files


def test_a_host_that_fails_to_refresh_is_said(desk, host, monkeypatch, caplog):
    monkeypatch.setattr(host, "refresh_embeddings", lambda: 1 // 0)
    with caplog.at_level(logging.ERROR, "ti_fix"):
        page = last(handlers.repair_chosen(desk, chosen(desk, "swapped-xq"), ""))
    assert "1 embedding repaired" in page["status"]
    assert "press its own refresh" in page["status"]
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("handler", ["searched", "opened"])
def test_faults_of_ours_show_no_trace(desk, host, monkeypatch, caplog, handler):
    monkeypatch.setattr(host, "used_in_last_image", lambda: 1 // 0)
    with caplog.at_level(logging.ERROR, "ti_fix"):
        page = last(getattr(handlers, handler)(desk, View(), ""))
    assert FAULT in page["status"]
    assert "ZeroDivision" not in page["status"]
    assert "ZeroDivisionError" in caplog.text


def test_the_desk_outlives_a_reload_of_the_pages(host, monkeypatch):
    monkeypatch.setattr(desk_module, "_desk", None)
    first = desk_module.desk_of(host)
    again = StandIn(*host.embedding_folders)
    assert desk_module.desk_of(again) is first
    assert first.library.host is again


def test_what_was_chosen_while_the_folder_is_read_stays_chosen(desk):
    view, wanted = View(), chosen(desk, "ready-xq").chosen
    desk.reading.start("Reading", lambda stop: (each for each in iter(lambda: stop.wait(0.01), True)))
    steps = handlers.opened(desk, view, "")
    assert "Reading" in next(steps).status
    assert handlers.commanded(desk, view, f"open:{wanted}", "xq").view.chosen == wanted
    desk.reading.stop()
    page = last(steps)
    assert page["view"].chosen == wanted and "ready-xq" in page["head"]
    assert "swapped-xq" in page["table"] and "my-toy" not in page["table"]


def test_a_search_answered_before_the_older_list_comes_is_shown_in_the_end(desk):
    view = View()
    steps = handlers.opened(desk, view, "")
    older = next(steps)
    assert "swapped-xq" in older.table and "ready-xq" in older.table
    handlers.searched(desk, view, "ready-xq")
    page = last(steps)
    assert "ready-xq" in page["table"] and "swapped-xq" not in page["table"]
