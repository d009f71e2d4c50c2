"""The Files page: its controls, and which handler each of them calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import gradio as gr

from ti_fix.ui import compat, files_handlers
from ti_fix.ui.desk import Desk
from ti_fix.ui.files_handlers import Actions, Shown
from ti_fix.ui.files_table import View
from ti_fix.ui.markup import empty, shown
from ti_fix.ui.progress import draw_channel, draw_row
from ti_fix.ui.words import TEXTS

TAKE_COMMAND = "(view, command, search) => [view, window.tiFixCommand || '', search]"
"""The command comes straight from the page's script: what a text box holds may lag behind a press."""


def _id(name: str) -> str:
    return f"ti_fix_files_{name}"


@dataclass(slots=True, kw_only=True)
class _Controls:
    """The components that handlers read and write."""

    view: Any
    search: Any
    command: Any
    refresh: Any
    chips: Any
    table: Any
    head: Any
    details: Any
    status: Any
    stop: Any
    repair: Any
    extract: Any
    undo: Any
    export_row: Any
    form: Any
    export: Any
    downloads: Any
    repair_shown: Any
    find_loras: Any
    lora_row: Any
    lora: Any
    take: Any
    opened: Any
    send: Any

    def outputs(self) -> list[Any]:
        """In the order of `drawn`."""
        pieces = [self.view, self.chips, self.table, self.head, self.details, self.status, self.stop]
        actions = [self.repair, self.extract, self.undo, self.export_row, self.form, self.downloads]
        return [*pieces, *actions, self.repair_shown, self.lora_row, self.lora]


def build(desk: Desk) -> None:
    """Draw the page into the Gradio block that is open."""
    controls = _draw()
    _join(desk, controls)


def _draw() -> _Controls:
    made: dict[str, Any] = {"view": gr.State(View())}
    with gr.Column(elem_id=_id("page")):
        with gr.Row(elem_id=_id("bar")):
            made["chips"] = compat.html(_id("chips"))
            made["search"] = gr.Textbox(
                label=TEXTS["search"],
                placeholder=TEXTS["search_hint"],
                show_label=False,
                container=False,
                lines=1,
                max_lines=1,
                elem_id=_id("search"),
            )
            made["refresh"] = gr.Button(TEXTS["refresh"], size="sm", elem_id=_id("refresh"))
        with gr.Row(elem_classes=["ti_fix_state"]):
            row = draw_row("files", TEXTS["stop"])
            made["status"], made["stop"] = row.status, row.stop
            made["undo"] = gr.Button(TEXTS["undo"], size="sm", visible=False, elem_id=_id("undo"))
        with gr.Row(elem_id=_id("main")):
            with gr.Column(scale=3, min_width=320, elem_id=_id("left")):
                made["table"] = compat.html(_id("table"), empty(TEXTS["not_read"], ""))
                _draw_batch(made)
                _draw_loras(made)
            with gr.Column(scale=2, min_width=320, elem_id=_id("side")):
                _draw_side(made)
        channel = draw_channel("files")
        made["command"], made["send"], made["opened"] = channel.command, channel.send, channel.opened
    return _Controls(**made)


def _draw_side(made: dict[str, Any]) -> None:
    made["head"] = compat.html(_id("head"), empty(TEXTS["nothing_chosen"], ""))
    with gr.Row(elem_id=_id("actions")):
        made["repair"] = gr.Button(TEXTS["repair"], variant="primary", size="sm", visible=False, elem_id=_id("repair"))
        made["extract"] = gr.Button(
            TEXTS["extract"], variant="primary", size="sm", visible=False, elem_id=_id("extract")
        )
    made["details"] = compat.html(_id("details"))
    with gr.Row(visible=False, elem_id=_id("export_row")) as made["export_row"]:
        made["form"] = gr.Dropdown(label=TEXTS["export_for"], choices=[], elem_id=_id("form"))
        made["export"] = gr.Button(TEXTS["export"], size="sm", elem_id=_id("export"))
    made["downloads"] = gr.File(
        label=TEXTS["exported"], file_count="multiple", interactive=False, visible=False, elem_id=_id("downloads")
    )


def _draw_batch(made: dict[str, Any]) -> None:
    with gr.Accordion(TEXTS["batch"], open=False, elem_id=_id("batch")):
        compat.html(_id("batch_hint"), f"<p>{shown(TEXTS['batch_hint'])}</p>")
        made["repair_shown"] = gr.Button(
            TEXTS["repair_shown"], size="sm", interactive=False, elem_id=_id("repair_shown")
        )


def _draw_loras(made: dict[str, Any]) -> None:
    with gr.Accordion(TEXTS["lora"], open=False, elem_id=_id("loras")):
        compat.html(_id("lora_hint"), f"<p>{shown(TEXTS['lora_hint'])}</p>")
        made["find_loras"] = gr.Button(TEXTS["lora_find"], size="sm", elem_id=_id("find_loras"))
        with gr.Row(visible=False, elem_id=_id("lora_row")) as made["lora_row"]:
            made["lora"] = gr.Dropdown(label=TEXTS["lora_choice"], choices=[], elem_id=_id("lora"))
            made["take"] = gr.Button(TEXTS["lora_take"], size="sm", elem_id=_id("take"))


def _join(desk: Desk, c: _Controls) -> None:
    outputs = c.outputs()
    looks = [c.view, c.search]
    compat.on(c.search.change, partial(_once, files_handlers.searched, desk), looks, outputs)
    take = [c.view, c.command, c.search]
    compat.on(c.send.click, partial(_once, files_handlers.commanded, desk), take, outputs, js=TAKE_COMMAND)
    compat.on(c.export.click, partial(_once, files_handlers.export_chosen, desk), [c.view, c.form], outputs)
    compat.on(c.stop.click, partial(_once, files_handlers.stop, desk), [], outputs)
    for button, handler, inputs in (
        (c.opened, files_handlers.opened, looks),
        (c.refresh, files_handlers.opened, looks),
        (c.repair, files_handlers.repair_chosen, looks),
        (c.extract, files_handlers.extract_chosen, looks),
        (c.undo, files_handlers.undo_last, looks),
        (c.repair_shown, files_handlers.repair_shown, looks),
        (c.find_loras, files_handlers.find_loras, looks),
        (c.take, files_handlers.extract_lora, [*looks, c.lora]),
    ):
        compat.on(button.click, partial(_steps, handler, desk), inputs, outputs, queue=True)


def _once(handler: Callable[..., Shown], desk: Desk, *values: Any) -> list[Any]:
    return drawn(handler(desk, *values))


def _steps(handler: Callable[..., Iterator[Shown]], desk: Desk, *values: Any) -> Iterator[list[Any]]:
    for each in handler(desk, *values):
        yield drawn(each)


def drawn(new: Shown) -> list[Any]:
    """A `Shown` as values for `_Controls.outputs`."""
    keep = compat.update()
    pieces = [
        keep if v is None else compat.update(value=v) for v in (new.chips, new.table, new.head, new.details, new.status)
    ]
    view = keep if new.view is None else new.view
    files = list(new.files or ()) or None
    downloads = keep if new.files is None else compat.update(value=files, visible=files is not None)
    return [view, *pieces, *_buttons(new.actions, downloads)]


def _buttons(actions: Actions | None, downloads: Any) -> list[Any]:
    keep = compat.update()
    if actions is None:
        return [keep, keep, keep, keep, keep, keep, downloads, keep, keep, keep]
    return [
        compat.update(visible=actions.busy),
        compat.update(visible=bool(actions.repair), value=actions.repair, interactive=not actions.busy),
        compat.update(visible=actions.extract, interactive=not actions.busy),
        compat.update(visible=actions.undo, interactive=not actions.busy),
        compat.update(visible=bool(actions.forms)),
        compat.update(choices=list(actions.forms), value=actions.forms[0] if actions.forms else None),
        downloads,
        compat.update(interactive=actions.batch > 0 and not actions.busy),
        compat.update(visible=bool(actions.loras)),
        compat.update(choices=list(actions.loras), value=actions.loras[0] if actions.loras else None),
    ]
