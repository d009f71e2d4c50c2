"""What the controls of the Files page do; functions of plain values, which know no Gradio.

Each returns, or yields while a job runs, a `Shown`: what is to be drawn anew. A None in it stays as it is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ti_fix.errors import TiFixError
from ti_fix.formats.export import FORMS
from ti_fix.jobs import Job
from ti_fix.repair import carries, repairable, too_long
from ti_fix.ui import markup, progress
from ti_fix.ui.desk import Desk
from ti_fix.ui.files_details import details, head
from ti_fix.ui.files_table import CHOICES, View, chips, clamped, filtered, found, table
from ti_fix.ui.guard import guarded, guarded_steps
from ti_fix.ui.library import Entry
from ti_fix.ui.words import TEXTS

WATCH = progress.WATCH
SETTLED = 0.5
"""Seconds in which an answer reaches the browser."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Actions:
    """Which buttons there are to press.

    Attributes:
        repair: word on the repair button, empty without one.
        extract: the chosen file carries embeddings.
        forms: programs that the chosen embedding can be exported for, by their titles.
        undo: a repair can be undone.
        batch: how many of the list a batch would repair.
        busy: a job runs, which can be stopped.
        loras: LoRAs to take embeddings from.
    """

    repair: str = ""
    extract: bool = False
    forms: tuple[str, ...] = ()
    undo: bool = False
    batch: int = 0
    busy: bool = False
    loras: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What changes on the page.

    Attributes:
        view: what the window looks at now.
        chips, table, head, details, status: HTML.
        actions: the buttons.
        files: exported files to download.
    """

    view: View | None = None
    chips: str | None = None
    table: str | None = None
    head: str | None = None
    details: str | None = None
    status: str | None = None
    actions: Actions | None = None
    files: tuple[str, ...] | None = None


def _told(html: str) -> Shown:
    return Shown(status=html)


safe = guarded(_told)
safe_steps = guarded_steps(_told)


@safe_steps
def opened(desk: Desk, view: View, search: str) -> Iterator[Shown]:
    """The page comes into sight, or Refresh is pressed: read the folders, and find a running job again."""
    if view.latest.view is None:  # else it may be newer than what this press came with
        view.latest.view, view.latest.search = view, search
    if not desk.reading.state.active:
        desk.reading.start("Reading the embeddings", lambda _: desk.library.refresh())
    for state in desk.reading.watch(WATCH):
        if state.active and state.seconds > WATCH:
            yield Shown(status=markup.progress(state))
        elif state.status == "failed":
            yield Shown(status=markup.message(state.message, "bad"))
            return
    view, search = _moved_on(view, search)
    shown = replace(everything(desk, view, search), status="")
    sent = view.latest.view, view.latest.search
    yield shown
    if desk.working.state.number > view.told:
        yield from watched(desk, view, search, desk.working)
        return
    time.sleep(SETTLED)  # what was typed while the list was on its way may have been answered before it came
    latest = view.latest
    if latest.view is not None and (latest.view, latest.search) != sent:
        yield everything(desk, latest.view, latest.search)


def _moved_on(view: View, search: str) -> tuple[View, str]:
    """What the window looks at by now, for a handler that took its time."""
    now = view.latest
    return (view, search) if now.view is None else (now.view, now.search)


def everything(desk: Desk, view: View, search: str) -> Shown:
    """List, filter, details and buttons, from what the library knows."""
    used = desk.host.used_in_last_image()
    matching = found(desk.library.entries, search or "")
    listed = filtered(matching, view.show, used)
    chosen = next((entry for entry in desk.library.entries if entry.id == view.chosen), None)
    view = replace(view, page=clamped(view.page, len(listed)), chosen=chosen.id if chosen else "")
    view.latest.view, view.latest.search = view, search
    return Shown(
        view=view,
        chips=chips(matching, view.show, used),
        table=table(listed, view, used) + _place(desk) if listed else _nothing(desk),
        head=head(chosen) if chosen else markup.empty(TEXTS["nothing_chosen"], ""),
        details=details(chosen) if chosen else "",
        actions=actions(desk, chosen, listed),
    )


def actions(desk: Desk, chosen: Entry | None, listed: list[Entry]) -> Actions:
    """The buttons that make sense now."""
    judged = chosen.judged if chosen else None
    usable = judged is not None and (judged.result.usable or too_long(judged))
    family = judged.result.after.family if usable and judged and judged.result.after else None
    return Actions(
        repair=TEXTS["split" if too_long(judged) else "repair"] if judged and repairable(judged) else "",
        extract=judged is not None and carries(judged),
        forms=tuple(form.title for form in FORMS.values() if family in form.families),
        undo=bool(desk.undoable),
        batch=len(desk.to_repair(listed)),
        busy=desk.working.state.active,
        loras=desk.carriers,
    )


def _nothing(desk: Desk) -> str:
    if desk.library.entries:
        return markup.empty(TEXTS["no_match"], TEXTS["no_match_do"])
    return markup.empty(TEXTS["no_files"], TEXTS["no_files_do"], map(str, desk.host.embedding_folders))


def _place(desk: Desk) -> str:
    """For which kind of model the states are, and in which folders the files lie."""
    family = desk.host.family()
    loaded = "" if family else f" <span>{TEXTS['not_loaded']}</span>"
    folders = " · ".join(map(markup.name, map(str, desk.host.embedding_folders)))
    kind = markup.shown((family or desk.library.family).title)
    return f'<p class="hint"><span>{TEXTS["states_for"]}</span> <b>{kind}</b>{loaded} · {folders}</p>'


@safe
def searched(desk: Desk, view: View, search: str) -> Shown:
    """Something was typed into the search."""
    return everything(desk, replace(view, page=0), search)


@safe
def commanded(desk: Desk, view: View, command: str, search: str) -> Shown:
    """A button of the list or of the filter was pressed: ``show:VERDICT``, ``page:NUMBER`` or ``open:ID``.

    Opening leaves the list as it is, so that its scroll position and the keyboard's place are kept.
    """
    verb, _, what = command.partition(":")
    if verb == "show" and what in CHOICES:
        return everything(desk, replace(view, show=what, page=0), search)
    if verb == "page" and what.isascii() and what.isdigit():
        return everything(desk, replace(view, page=int(what[:9])), search)
    if verb == "open":
        desk.library.find(what)
        new = everything(desk, replace(view, chosen=what), search)
        return replace(new, chips=None, table=None, status=None if new.actions and new.actions.busy else "", files=())
    return Shown()


@safe_steps
def repair_chosen(desk: Desk, view: View, search: str) -> Iterator[Shown]:
    """Repair on disk, or Split, of the chosen embedding."""
    entry = desk.library.find(view.chosen)
    desk.working.start(f"Repairing {entry.trigger}", lambda stop: desk.repair_events([entry], stop))
    yield from watched(desk, view, search, desk.working)


@safe_steps
def repair_shown(desk: Desk, view: View, search: str) -> Iterator[Shown]:
    """Repair all that the list shows and that needs it."""
    used = desk.host.used_in_last_image()
    entries = desk.to_repair(filtered(found(desk.library.entries, search or ""), view.show, used))
    if not entries:
        raise TiFixError("Nothing in this list needs a repair on disk. Choose All, or clear the search, to see more.")
    desk.working.start(f"Repairing {len(entries):,} embeddings", lambda stop: desk.repair_events(entries, stop))
    yield from watched(desk, view, search, desk.working)


@safe_steps
def undo_last(desk: Desk, view: View, search: str) -> Iterator[Shown]:
    """Put the originals of the last repair back."""
    if not desk.undoable:
        raise TiFixError("There is no repair to undo. Older originals lie in ti_fix_backup in the embeddings folder.")
    desk.working.start("Putting the originals back", lambda _: desk.undo_events())
    yield from watched(desk, view, search, desk.working)


@safe_steps
def extract_chosen(desk: Desk, view: View, search: str) -> Iterator[Shown]:
    """Take the embeddings out of the chosen file."""
    entry = desk.library.find(view.chosen)
    desk.working.start("Taking embeddings out", lambda _: desk.extract_events(entry.where[0], entry.paths[0]))
    yield from watched(desk, view, search, desk.working)


@safe_steps
def find_loras(desk: Desk, view: View, search: str) -> Iterator[Shown]:
    """Look for LoRAs that bring embeddings along."""
    if not desk.host.lora_folders:
        raise TiFixError("The WebUI has no LoRA folder, or its LoRA extension is switched off.")
    desk.working.start("Looking through the LoRAs", desk.look_through_loras)
    yield from watched(desk, view, search, desk.working)


@safe_steps
def extract_lora(desk: Desk, view: View, search: str, choice: str | None) -> Iterator[Shown]:
    """Take the embeddings out of a LoRA."""
    path = desk.carrier(choice or "")
    desk.working.start("Taking embeddings out", lambda _: desk.extract_events(path.name, path))
    yield from watched(desk, view, search, desk.working)


@safe
def export_chosen(desk: Desk, view: View, form: str | None) -> Shown:
    """Write the chosen embedding in another program's form, for download."""
    entry = desk.library.find(view.chosen)
    key = next((key for key, each in FORMS.items() if each.title == form), None)
    if key is None:
        raise TiFixError("Choose the program that the file is for, then press Export.")
    paths, advice = desk.export(entry, key)
    return Shown(files=tuple(map(str, paths)), status=markup.message(advice))


@safe
def stop(desk: Desk) -> Shown:
    """End the running job after the file that it is at."""
    desk.working.stop()
    return Shown()


def watched(desk: Desk, view: View, search: str, job: Job) -> Iterator[Shown]:
    """A job's progress until it ends, then what it came to and the new list.

    A window that is opened later shows the same, also when the job has ended meanwhile.
    """
    for state, status in progress.watched(job, WATCH):
        view, search = _moved_on(view, search)
        if state.active:
            yield Shown(status=status, actions=everything(desk, view, search).actions)
    view = replace(view, told=state.number)
    yield replace(everything(desk, view, search), status=status)
