"""The Model page: its controls, and which handler each of them calls."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import gradio as gr

from ti_fix.ui import compat, model_handlers
from ti_fix.ui.desk import Desk
from ti_fix.ui.markup import empty, shown
from ti_fix.ui.model_handlers import ModelShown
from ti_fix.ui.model_words import TEXTS
from ti_fix.ui.progress import draw_channel


def _id(name: str) -> str:
    return f"ti_fix_model_{name}"


def build(desk: Desk) -> None:
    """Draw the page into the Gradio block that is open."""
    with gr.Column(elem_id=_id("page")):
        with gr.Row(elem_id=_id("bar")):
            status = compat.html(_id("status"))
            look = gr.Button(TEXTS["refresh"], size="sm", elem_id=_id("refresh"))
            check = gr.Button(TEXTS["check_all"], variant="primary", size="sm", elem_id=_id("check"))
            stop = gr.Button(TEXTS["stop"], variant="stop", size="sm", visible=False, elem_id=_id("stop"))
        with gr.Row(elem_id=_id("main")):
            with gr.Column(scale=3, min_width=320):
                report = compat.html(_id("report"), empty(TEXTS["not_looked"], ""))
            with gr.Column(scale=2, min_width=320):
                environment = compat.html(_id("environment"))
                ways = compat.html(_id("ways"))
        with gr.Column(elem_id=_id("words")):
            compat.html(_id("words_title"), f"<h4>{shown(TEXTS['tokens'])}</h4><p>{shown(TEXTS['tokens_hint'])}</p>")
            with gr.Row(elem_id=_id("line")):
                prompt = gr.Textbox(
                    label=TEXTS["prompt"], placeholder=TEXTS["prompt_hint"], lines=2, scale=5, elem_id=_id("prompt")
                )
                steps = gr.Number(label=TEXTS["steps_label"], value=20, precision=0, scale=1, elem_id=_id("steps"))
                apart = gr.Button(TEXTS["take_apart"], size="sm", elem_id=_id("apart"))
            tokens = compat.html(_id("tokens"))
        channel = draw_channel("model")
    outputs = [status, report, environment, ways, check, stop]
    for button in (channel.opened, look):
        compat.on(button.click, partial(_steps, model_handlers.opened, desk), [], outputs, queue=True)
    compat.on(check.click, partial(_steps, model_handlers.check, desk), [], outputs, queue=True)
    compat.on(stop.click, partial(_stop, desk), [], [])
    for event in (apart.click, prompt.submit):
        compat.on(event, partial(model_handlers.tokens, desk), [prompt, steps], [tokens])


def _stop(desk: Desk) -> None:
    desk.checking.stop()


def _steps(handler: Any, desk: Desk) -> Iterator[list[Any]]:
    for each in handler(desk):
        yield drawn(each)


def drawn(new: ModelShown) -> list[Any]:
    """A `ModelShown` as values for the outputs."""
    pieces = (new.status, new.report, new.environment, new.ways)
    return [
        *(compat.update() if value is None else compat.update(value=value) for value in pieces),
        compat.update(interactive=not new.busy),
        compat.update(visible=new.busy),
    ]
