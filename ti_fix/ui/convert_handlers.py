"""What the controls of the Convert page do; functions of plain values, which know no Gradio."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ti_fix.convert import ConvertConfig
from ti_fix.errors import TiFixError, WrongUse
from ti_fix.options import validate
from ti_fix.ui import markup, progress
from ti_fix.ui.convert_desk import ConvertDesk, Converted
from ti_fix.ui.convert_table import results
from ti_fix.ui.convert_words import TEXTS
from ti_fix.ui.forms import Form
from ti_fix.ui.guard import guarded, guarded_steps
from ti_fix.ui.library import Entry

WATCH = progress.WATCH

FORM = Form(ConvertConfig, leave_out=("method", "keep"))
"""What the page folds away; it asks for the method in front, and what `keep` is for needs a second checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What changes on the page; None stays as it is.

    Attributes:
        choices: names of the embeddings that can be chosen.
        chosen: those that are.
        status, cards: HTML.
        busy: whether a job runs.
    """

    choices: tuple[str, ...] | None = None
    chosen: tuple[str, ...] | None = None
    status: str | None = None
    cards: str | None = None
    busy: bool | None = None


def _told(html: str) -> Drawn:
    return Drawn(status=html)


safe = guarded(_told)
safe_steps = guarded_steps(_told)


@safe_steps
def opened(room: ConvertDesk, chosen: Sequence[str] = ()) -> Iterator[Drawn]:
    """The page comes into sight, or Refresh is pressed: list what waits, and find a running job again.

    Args:
        room: the page's.
        chosen: in the list; what waits no longer, as under another model, is taken out.
    """
    desk = room.desk
    if not desk.reading.state.active:
        desk.reading.start("Reading the embeddings", lambda _: desk.library.refresh())
    for state in desk.reading.watch(WATCH):
        if state.active and state.seconds > WATCH:
            yield Drawn(status=markup.progress(state))
        elif state.status == "failed":
            raise TiFixError(state.message)
    status = "" if room.waiting() else markup.empty(TEXTS["nothing"], TEXTS["nothing_do"])
    done = _done(room)
    cards = results(done) if done or not status else ""  # nothing can be chosen where nothing waits
    listed = choices(room)
    kept = tuple(each for each in chosen if each in listed)
    changed = kept if len(kept) < len(chosen) else None
    yield Drawn(choices=listed, chosen=changed, status=status, cards=cards, busy=room.working.state.active)
    if room.working.state.active:
        yield from watched(room)


@safe_steps
def convert_chosen(
    room: ConvertDesk, chosen: Sequence[str], everything: bool, method: str, drawn: bool, write: bool, *values: Any
) -> Iterator[Drawn]:
    """Look first, or Convert and write; the values are those of `FORM`."""
    config = FORM.config(values, method=method) if values else ConvertConfig(method=method)
    validate(config)
    entries = _entries(room, chosen, everything)
    writing = room.desk.writing_from_page if write else None
    title = f"Converting {len(entries):,} embedding{'s' if len(entries) != 1 else ''}"
    room.working.start(title, lambda stop: room.events(entries, config, stop, writing=writing, drawn=drawn))
    yield from watched(room)


@safe
def commanded(room: ConvertDesk, command: str) -> Drawn:
    """``take:WHAT``: an embedding that another page sends, by its id or by the name that prompts call."""
    verb, _, what = command.partition(":")
    if verb != "take":
        return Drawn()
    room.desk.library.refreshed()
    entry = next((each for each in room.waiting() if what in (each.id, each.trigger)), None)
    if entry is None:
        raise WrongUse(f"Under the loaded {room.family.title} model this embedding needs no conversion.")
    return Drawn(choices=choices(room), chosen=(entry.where[0],), status="")


@safe
def stop(room: ConvertDesk) -> Drawn:
    """End the running job after the embedding that it is at."""
    room.working.stop()
    return Drawn()


def watched(room: ConvertDesk) -> Iterator[Drawn]:
    """A job's progress and results until it ends; a window that is opened later shows the same."""
    seen = -1
    for state, status in progress.watched(room.working, WATCH):
        done = _done(room)
        cards = results(done) if len(done) != seen else None
        seen = len(done)
        yield Drawn(choices=None if state.active else choices(room), status=status, cards=cards, busy=state.active)


def choices(room: ConvertDesk) -> tuple[str, ...]:
    """One line for each embedding that waits."""
    return tuple(entry.where[0] for entry in room.waiting())


def _entries(room: ConvertDesk, chosen: Sequence[str], everything: bool) -> list[Entry]:
    waiting = room.waiting()
    entries = waiting if everything else [entry for entry in waiting if entry.where[0] in set(chosen or ())]
    if not entries:
        raise TiFixError("Choose one or more embeddings of the list first, or tick All in the list.")
    return entries


def _done(room: ConvertDesk) -> list[Converted]:
    return [event for event in room.working.events() if isinstance(event, Converted)]
