"""The Evaluate page: its controls, and which handler each of them calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import gradio as gr

from ti_fix.evaluate import DEFAULT_PROMPTS
from ti_fix.train.dataset import CAPTION_ENDINGS
from ti_fix.ui import compat, evaluate_handlers, evaluate_sent_view, form_view
from ti_fix.ui.desk import Desk
from ti_fix.ui.evaluate_handlers import FORM, NO_RUN, Shown
from ti_fix.ui.evaluate_words import LABELS
from ti_fix.ui.markup import shown
from ti_fix.ui.progress import Channel, draw_channel, draw_row
from ti_fix.ui.words import TEXTS

PAGE = "evaluate"
SIDES = ("width", "height")


def _id(name: str) -> str:
    return f"ti_fix_{PAGE}_{name}"


@dataclass(slots=True, kw_only=True)
class _Controls:
    """The components that handlers read and write."""

    entry: Any
    prompts: Any
    references: Any
    against: Any
    as_stored: Any
    run_name: Any
    maps: Any
    judge: Any
    download: Any
    dino: Any
    settings: list[Any]
    dataset: Any
    look: Any
    start: Any
    status: Any
    stop: Any
    result: Any
    downloads: Any
    channel: Channel
    arrivals: evaluate_sent_view.Arrivals

    def outputs(self) -> list[Any]:
        """In the order of `_drawn`."""
        buttons = [self.stop, self.start, self.look]
        return [self.status, *buttons, self.result, self.entry, self.against, self.run_name, self.downloads]


def build(desk: Desk) -> None:
    """Draw the page into the Gradio block that is open."""
    c = _draw(desk)
    outputs = c.outputs()
    judges = [c.judge, c.download, c.dino]
    given = [c.entry, c.prompts, c.references, c.against, c.as_stored, c.run_name, c.maps, *judges, *c.settings]
    opened = partial(_steps, evaluate_handlers.opened, desk)
    compat.on(c.channel.opened.click, opened, [], outputs, queue=True)
    compat.on(c.start.click, partial(_steps, evaluate_handlers.begin, desk), given, outputs, queue=True)
    compat.on(
        c.look.click,
        partial(_steps, evaluate_handlers.look, desk),
        [c.dataset, c.judge, c.download],
        outputs,
        queue=True,
    )
    compat.on(c.stop.click, partial(_once, evaluate_handlers.stop, desk), [], outputs)
    filled = [c.status, c.entry, c.prompts, c.references, *c.settings]
    evaluate_sent_view.join(desk, c.channel, c.arrivals, filled)


def _draw(desk: Desk) -> _Controls:
    made: dict[str, Any] = {}
    side = desk.host.picture_size()
    with gr.Column(elem_id=_id("page")):
        compat.html(_id("intro"), f"<p>{shown(LABELS['intro'])}</p>")
        with gr.Row():
            with gr.Column(scale=1, min_width=320):
                _draw_left(made)
            with gr.Column(scale=1, min_width=320):
                _draw_right(made)
        made["settings"] = form_view.draw(
            FORM, PAGE, changed=lambda field: side if field.name in SIDES else field.default
        )
        made["start"] = gr.Button(LABELS["start"], variant="primary", elem_id=_id("start"))
        with gr.Row(elem_id=_id("state")):
            row = draw_row(PAGE, TEXTS["stop"])
            made |= {"status": row.status, "stop": row.stop}
        _draw_dataset(made)
        made["result"] = compat.html(_id("result"))
        made["downloads"] = gr.File(
            label=LABELS["download"], file_count="multiple", interactive=False, visible=False, elem_id=_id("downloads")
        )
        made["channel"] = draw_channel(PAGE)
        made["arrivals"] = evaluate_sent_view.draw()
    return _Controls(**made)


def _draw_left(made: dict[str, Any]) -> None:
    made["entry"] = gr.Dropdown(label=LABELS["embedding"], choices=[], elem_id=_id("entry"))
    made["prompts"] = gr.Textbox(
        label=LABELS["prompts"],
        info=LABELS["prompts_hint"],
        value="\n".join(DEFAULT_PROMPTS),
        lines=6,
        elem_id=_id("prompts"),
    )
    made["against"] = gr.Dropdown(label=LABELS["against"], choices=[], multiselect=True, elem_id=_id("against"))
    made["as_stored"] = gr.Checkbox(label=LABELS["as_stored"], value=False, elem_id=_id("as_stored"))


def _draw_right(made: dict[str, Any]) -> None:
    made["references"] = gr.File(
        label=LABELS["references"], file_count="multiple", file_types=["image"], elem_id=_id("references")
    )
    compat.html(_id("references_hint"), f"<p>{shown(LABELS['references_hint'])}</p>")
    made["run_name"] = gr.Dropdown(label=LABELS["run"], choices=[NO_RUN], value=NO_RUN, elem_id=_id("run_name"))
    made["maps"] = gr.Checkbox(label=LABELS["word_maps"], value=False, elem_id=_id("maps"))
    with gr.Accordion(LABELS["judge"], open=False, elem_classes=["ti_fix_fold"]):
        made["judge"] = gr.Textbox(label=LABELS["judge"], info=LABELS["judge_hint"], elem_id=_id("judge"))
        made["download"] = gr.Checkbox(label=LABELS["fetch"], value=False, elem_id=_id("download"))
        made["dino"] = gr.Textbox(label=LABELS["dino"], info=LABELS["dino_hint"], elem_id=_id("dino"))


def _draw_dataset(made: dict[str, Any]) -> None:
    with gr.Accordion(LABELS["dataset"], open=False, elem_id=_id("dataset_fold"), elem_classes=["ti_fix_fold"]):
        compat.html(_id("dataset_hint"), f"<p>{shown(LABELS['dataset_hint'])}</p>")
        made["dataset"] = gr.File(
            label=LABELS["dataset_files"],
            file_count="multiple",
            file_types=["image", *CAPTION_ENDINGS],
            elem_id=_id("dataset"),
        )
        made["look"] = gr.Button(LABELS["look"], elem_id=_id("look"))


def _once(handler: Callable[..., Shown], desk: Desk, *values: Any) -> list[Any]:
    return _drawn(handler(desk, *values))


def _steps(handler: Callable[..., Iterator[Shown]], desk: Desk, *values: Any) -> Iterator[list[Any]]:
    for each in handler(desk, *values):
        yield _drawn(each)


def _drawn(new: Shown) -> list[Any]:
    """A `Shown` as values for `_Controls.outputs`."""
    keep = compat.update()
    status, result = (keep if v is None else compat.update(value=v) for v in (new.status, new.result))
    stop = keep if new.busy is None else compat.update(visible=new.busy)
    free = keep if new.busy is None else compat.update(interactive=not new.busy)
    listed = keep if new.choices is None else compat.update(choices=[label for label, _ in new.choices])
    runs = keep if new.runs is None else compat.update(choices=[NO_RUN, *new.runs])
    files = keep if new.files is None else compat.update(value=list(new.files) or None, visible=bool(new.files))
    return [status, stop, free, free, result, listed, listed, runs, files]
