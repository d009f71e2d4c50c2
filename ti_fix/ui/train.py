"""The Train page: its controls, and which handler each of them calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import gradio as gr

from ti_fix.ui import compat, form_view, train_album, train_handlers
from ti_fix.ui.desk import Desk
from ti_fix.ui.markup import empty
from ti_fix.ui.progress import Channel, draw_channel, draw_row
from ti_fix.ui.train_shown import FORM, Request, Shown, Window
from ti_fix.ui.train_words import KINDS, SECTIONS, TEXTS

TAKE_COMMAND = (
    f"(state, command, ...rest) => [state, window.tiFixCommand || '', ...rest.slice(0, {3 + len(FORM.fields)})]"
)
"""The command comes straight from the page's script; Gradio 4 hands over the outputs too, which are cut off again."""


def _id(name: str) -> str:
    return f"ti_fix_train_{name}"


@dataclass(slots=True, kw_only=True)
class _Controls:
    """The components that handlers read and write."""

    window: Any
    name: Any
    what: Any
    kind: Any
    files: Any
    fresh: Any
    album: Any
    start: Any
    check: Any
    status: Any
    stop: Any
    pause: Any
    resume: Any
    save: Any
    live: Any
    strip: Any
    history: Any
    fields: list[Any]
    channel: Channel

    def form(self) -> list[Any]:
        """In the order of `_asked`."""
        return [self.name, self.what, self.kind, *self.fields]

    def pieces(self) -> list[Any]:
        """In the order of `_drawn`."""
        buttons = [self.start, self.check, self.stop, self.pause, self.resume, self.save]
        return [self.status, self.album, self.live, self.strip, self.history, *buttons]

    def album_settings(self) -> list[Any]:
        """The controls of `train_album.SETTINGS`."""
        by_name = {field.name: made for made, field in zip(self.fields, FORM.fields, strict=True)}
        return [by_name[name] for name in train_album.SETTINGS]


def build(desk: Desk) -> None:
    """Draw the page into the Gradio block that is open."""
    made: dict[str, Any] = {"window": gr.State(Window())}
    with gr.Column(elem_id=_id("page")):
        with gr.Row(elem_classes=["ti_fix_columns"]):
            with gr.Column(scale=1, min_width=320, elem_classes=["ti_fix_card"]):
                _draw_request(made, desk)
            with gr.Column(scale=1, min_width=320, elem_classes=["ti_fix_card"]):
                _draw_run(made)
        with gr.Accordion(TEXTS["history"], open=False, elem_id=_id("history_fold")):
            made["history"] = compat.html(_id("history"), empty(TEXTS["no_history"], TEXTS["no_history_do"]))
        made["channel"] = draw_channel("train")
    _join(desk, _Controls(**made))


def _draw_request(made: dict[str, Any], desk: Desk) -> None:
    with gr.Row(elem_classes=["ti_fix_fields"]):
        made["name"] = gr.Textbox(
            label=TEXTS["name"], info=TEXTS["name_hint"], lines=1, max_lines=1, min_width=180, elem_id=_id("name")
        )
        made["what"] = gr.Textbox(
            label=TEXTS["what"], info=TEXTS["what_hint"], lines=1, max_lines=1, min_width=180, elem_id=_id("what")
        )
    made["kind"] = gr.Radio(
        label=TEXTS["kind"], choices=list(KINDS.values()), value=KINDS["thing"], elem_id=_id("kind")
    )
    made["files"] = gr.File(label=TEXTS["add_pictures"], file_count="multiple", height=110, elem_id=_id("files"))
    made["album"] = compat.html(_id("album"), empty(TEXTS["no_pictures"], TEXTS["no_pictures_do"]))
    made["fresh"] = gr.Button(TEXTS["new_pictures"], size="sm", elem_id=_id("fresh"))
    with gr.Row(elem_classes=["ti_fix_do"]):
        made["start"] = gr.Button(TEXTS["start"], variant="primary", elem_id=_id("start"))
        made["check"] = gr.Button(TEXTS["check"], elem_id=_id("check"))
    with gr.Accordion(TEXTS["options"], open=False, elem_id=_id("options")):
        sections = [(title, names.split()) for title, names in SECTIONS.items()]
        defaults = desk.training.defaults()
        made["fields"] = form_view.draw(
            FORM, "train", sections=sections, changed=lambda field: getattr(defaults, field.name)
        )


def _draw_run(made: dict[str, Any]) -> None:
    with gr.Row(elem_classes=["ti_fix_state"]):
        row = draw_row("train", TEXTS["stop"])
        made["status"], made["stop"] = row.status, row.stop
    with gr.Row(elem_classes=["ti_fix_do"]):
        made["pause"] = gr.Button(TEXTS["pause"], size="sm", visible=False, elem_id=_id("pause"))
        made["resume"] = gr.Button(TEXTS["resume"], variant="primary", size="sm", visible=False, elem_id=_id("resume"))
        made["save"] = gr.Button(TEXTS["save"], size="sm", visible=False, elem_id=_id("save"))
    made["live"] = compat.html(_id("live"), empty(TEXTS["idle"], TEXTS["idle_do"]))
    made["strip"] = compat.html(_id("strip"))


def _join(desk: Desk, c: _Controls) -> None:
    pieces, form, handlers = c.pieces(), c.form(), train_handlers
    whole = [*pieces, *form]
    compat.on(c.channel.opened.click, partial(_filling, handlers.filled, desk), [c.window], form)
    cut = c.album_settings()
    compat.on(c.channel.opened.click, partial(_steps, handlers.opened, desk), [c.window, *cut], pieces, queue=True)
    compat.on(c.resume.click, partial(_steps, handlers.resume, desk), [c.window], pieces, queue=True)
    for button, asking in ((c.start, handlers.start), (c.check, handlers.check)):
        compat.on(button.click, partial(_asked_steps, asking, desk), [c.window, *form], pieces, queue=True)
    for button, deed in ((c.stop, handlers.stop), (c.pause, handlers.pause), (c.save, handlers.save_now)):
        compat.on(button.click, partial(_once, deed, desk), [], pieces)
    compat.on(c.files.upload, partial(_uploaded, desk), [c.files, *cut], [*pieces, c.files])
    compat.on(c.fresh.click, partial(_once, train_album.new_pictures, desk), cut, pieces)
    for control in cut:
        compat.on(control.change, partial(_once, train_album.album_changed, desk), cut, pieces)
    take = [c.window, c.channel.command, *form]
    compat.on(c.channel.send.click, partial(_commanded, desk), take, whole, js=TAKE_COMMAND, queue=True)


def _once(handler: Callable[..., Shown], desk: Desk, *values: Any) -> list[Any]:
    return _drawn(handler(desk, *values))


def _steps(handler: Callable[..., Iterator[Shown]], desk: Desk, *values: Any) -> Iterator[list[Any]]:
    for each in handler(desk, *values):
        yield _drawn(each)


def _asked_steps(
    handler: Callable[..., Iterator[Shown]], desk: Desk, window: Window, *form: Any
) -> Iterator[list[Any]]:
    for each in handler(desk, window, _asked(form)):
        yield _drawn(each)


def _commanded(desk: Desk, window: Window, command: str, *form: Any) -> Iterator[list[Any]]:
    for each in train_handlers.commanded(desk, window, command, _asked(form)):
        yield [*_drawn(each), *_filled(each)]


def _filling(handler: Callable[..., Shown], desk: Desk, *values: Any) -> list[Any]:
    return _filled(handler(desk, *values))


def _uploaded(desk: Desk, files: Any, *cut: Any) -> list[Any]:
    """The upload field is emptied again: the pictures stand below it."""
    paths = [str(getattr(each, "name", each)) for each in files or ()]
    return [*_drawn(train_album.pictures_added(desk, paths, *cut)), compat.update(value=None)]


def _asked(form: tuple[Any, ...]) -> Request:
    name, what, kind, *values = form
    return Request(name=name or "", what=what or "", style=kind == KINDS["style"], values=tuple(values))


def _drawn(new: Shown) -> list[Any]:
    """A `Shown` as values for `_Controls.pieces`."""
    keep = compat.update()
    texts = (new.status, new.album, new.live, new.strip, new.history)
    pieces = [keep if text is None else compat.update(value=text) for text in texts]
    buttons = new.buttons
    if buttons is None:
        return [*pieces, *[keep] * 6]
    busy = buttons.running or buttons.checking
    return [
        *pieces,
        compat.update(interactive=not busy),
        compat.update(interactive=not busy),
        compat.update(visible=busy),
        compat.update(visible=buttons.running),
        compat.update(visible=buttons.paused),
        compat.update(visible=buttons.running),
    ]


def _filled(new: Shown) -> list[Any]:
    """A `Shown` as values for `_Controls.form`."""
    keep, fill = compat.update(), new.fill
    if fill is None:
        return [keep] * (3 + len(FORM.fields))
    kind = KINDS["style" if fill.style else "thing"]
    return [compat.update(value=value) for value in (fill.name, fill.what, kind, *fill.values)]
