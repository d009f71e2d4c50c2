"""What the handlers of the Train page take and give: plain values, which know no Gradio."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ti_fix.train import TrainConfig
from ti_fix.ui.desk import Desk
from ti_fix.ui.forms import Form
from ti_fix.ui.guard import guarded, guarded_steps

FORM = Form(TrainConfig, leave_out=("name", "start_text", "out", "resume"))
"""All settings but those that the page asks for in front, or knows by itself."""

WATCH = 1.0
"""Seconds between two looks at a run."""


@dataclass(slots=True)
class Window:
    """One open page.

    Attributes:
        turn: which of its handlers may draw; one that watches gives way to the next.
        filled: whether its form has been filled.
        drawn: whether it has been in sight.
    """

    turn: int = 0
    filled: bool = False
    drawn: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the user has entered.

    Attributes:
        name, what: text boxes.
        style: whether a style is learned, and not a thing.
        values: of the form, in the order of `FORM.fields`.
    """

    name: str
    what: str
    style: bool
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Buttons:
    """Which of them there are to press."""

    running: bool
    paused: bool
    checking: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What changes on the page.

    Attributes:
        status, album, live, strip, history: HTML.
        buttons: which there are.
        fill: name, what, style and values for the form.
    """

    status: str | None = None
    album: str | None = None
    live: str | None = None
    strip: str | None = None
    history: str | None = None
    buttons: Buttons | None = None
    fill: Request | None = None


def _told(html: str) -> Shown:
    return Shown(status=html)


safe = guarded(_told)
safe_steps = guarded_steps(_told)


def buttons(desk: Desk) -> Buttons:
    """Which there are now."""
    training = desk.training
    running = training.job.state.active
    live = training.live
    paused = not running and live is not None and live.paused and live.done is not None
    busy = training.checking.state.active or training.captioning.state.active
    return Buttons(running=running, paused=paused, checking=busy)
