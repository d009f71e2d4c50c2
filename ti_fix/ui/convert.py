"""The Convert page: its controls, and which handler each of them calls."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import gradio as gr

from ti_fix.convert import MATCH
from ti_fix.convert.config import METHODS
from ti_fix.ui import compat, convert_handlers, form_view
from ti_fix.ui.convert_desk import ConvertDesk, convert_desk_of
from ti_fix.ui.convert_handlers import Drawn
from ti_fix.ui.convert_table import results
from ti_fix.ui.convert_words import TEXTS
from ti_fix.ui.desk import Desk
from ti_fix.ui.markup import shown
from ti_fix.ui.progress import TAKE_COMMAND, draw_channel, draw_row


def _id(name: str) -> str:
    return f"ti_fix_convert_{name}"


def build(desk: Desk) -> None:
    """Draw the page into the Gradio block that is open."""
    room = convert_desk_of(desk)
    with gr.Column(elem_id=_id("page")):
        compat.html(_id("about"), f"<p>{shown(TEXTS['about'])}</p>")
        with gr.Row(elem_id=_id("bar")):
            files = gr.Dropdown(label=TEXTS["files"], choices=[], multiselect=True, elem_id=_id("files"))
            everything = gr.Checkbox(label=TEXTS["everything"], value=False, elem_id=_id("everything"))
            refresh = gr.Button(TEXTS["refresh"], size="sm", elem_id=_id("refresh"))
        with gr.Row(elem_id=_id("actions")):
            method = gr.Dropdown(
                label=TEXTS["method"],
                choices=[*METHODS, MATCH],
                value=METHODS[0],
                info=TEXTS["method_hint"],
                elem_id=_id("method"),
            )
            pictures = gr.Checkbox(label=TEXTS["draw"], value=False, elem_id=_id("draw"))
            look = gr.Button(TEXTS["look"], elem_id=_id("look"))
            write = gr.Button(TEXTS["write"], variant="primary", elem_id=_id("write"))
        settings = form_view.draw(convert_handlers.FORM, "convert")
        with gr.Row(elem_classes=["ti_fix_state"]):
            row = draw_row("convert", TEXTS["stop"])
        cards = compat.html(_id("cards"), results(()))
        channel = draw_channel("convert")
    outputs = [files, row.status, cards, look, write, row.stop]
    for button in (channel.opened, refresh):
        compat.on(button.click, partial(_opened, room), [files], outputs, queue=True)
    for button, writes in ((look, False), (write, True)):
        given = [files, everything, method, pictures, *settings]
        compat.on(button.click, partial(_convert, room, writes), given, outputs, queue=True)
    compat.on(channel.send.click, partial(_commanded, room), [channel.command], outputs, js=TAKE_COMMAND)
    compat.on(row.stop.click, partial(_stop, room), [], outputs)


def _opened(room: ConvertDesk, chosen: Any) -> Iterator[list[Any]]:
    for each in convert_handlers.opened(room, chosen or ()):
        yield drawn(each)


def _convert(
    room: ConvertDesk, writes: bool, chosen: Any, everything: Any, method: Any, pictures: Any, *values: Any
) -> Iterator[list[Any]]:
    for each in convert_handlers.convert_chosen(
        room, chosen or (), bool(everything), str(method), bool(pictures), writes, *values
    ):
        yield drawn(each)


def _commanded(room: ConvertDesk, command: str) -> list[Any]:
    return drawn(convert_handlers.commanded(room, command or ""))


def _stop(room: ConvertDesk) -> list[Any]:
    return drawn(convert_handlers.stop(room))


def drawn(new: Drawn) -> list[Any]:
    """A `Drawn` as values for files, status, cards and the three buttons."""
    keep = compat.update()
    files: dict[str, Any] = {} if new.choices is None else {"choices": list(new.choices)}
    if new.chosen is not None:
        files["value"] = list(new.chosen)
    pieces = [keep if value is None else compat.update(value=value) for value in (new.status, new.cards)]
    if new.busy is None:
        return [compat.update(**files), *pieces, keep, keep, keep]
    ready = compat.update(interactive=not new.busy)
    return [compat.update(**files), *pieces, ready, ready, compat.update(visible=new.busy)]
