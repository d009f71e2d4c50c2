"""Hidden fields through which the page's script hands pictures to the Evaluate page, and what follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gradio as gr

from ti_fix.ui import compat, evaluate_sent
from ti_fix.ui.desk import Desk
from ti_fix.ui.evaluate_handlers import FORM
from ti_fix.ui.evaluate_sent import Filled
from ti_fix.ui.evaluate_words import LABELS
from ti_fix.ui.progress import TAKE_COMMAND, Channel


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Upload fields out of sight, emptied as soon as something has come.

    Attributes:
        pictures: joins the pictures to compare with.
        settings: a picture whose prompt and settings are taken.
    """

    pictures: Any
    settings: Any


def draw() -> Arrivals:
    """Draw them into the block that is open."""
    with gr.Row(elem_classes=["ti_fix_channel"]):
        pictures, settings = (
            gr.File(label=LABELS["sent"], file_count="multiple", elem_id=f"ti_fix_evaluate_sent_{kind}")
            for kind in ("pictures", "settings")
        )
    return Arrivals(pictures=pictures, settings=settings)


def join(desk: Desk, channel: Channel, arrivals: Arrivals, filled: Sequence[Any]) -> None:
    """Join them to the form.

    Args:
        desk: of this process.
        channel: of the page.
        arrivals: what `draw` made.
        filled: status, entry, prompts, references and the settings in the order of the form.
    """
    references, outputs = filled[3], list(filled)
    commanded = partial(_commanded, desk)
    compat.on(channel.send.click, commanded, [channel.command], outputs, js=TAKE_COMMAND)
    for field, handler, inputs in (
        (arrivals.pictures, _pictures, [references, arrivals.pictures]),
        (arrivals.settings, partial(_settings, desk), [arrivals.settings]),
    ):
        compat.on(field.upload, handler, inputs, [*outputs, field])


def _commanded(desk: Desk, command: str) -> list[Any]:
    return _drawn(evaluate_sent.commanded(desk, command or ""))


def _pictures(known: Any, sent: Any) -> list[Any]:
    return [*_drawn(evaluate_sent.pictures_sent(_paths(known), _paths(sent))), compat.update(value=None)]


def _settings(desk: Desk, sent: Any) -> list[Any]:
    new = [_drawn(evaluate_sent.settings_sent(desk, path)) for path in _paths(sent)[:1]]
    return [*(new or [_drawn(Filled())])[0], compat.update(value=None)]


def _paths(files: Any) -> list[str]:
    """Uploaded files as either Gradio hands them over."""
    return [str(getattr(each, "name", each)) for each in files or ()]


def _drawn(new: Filled) -> list[Any]:
    """A `Filled` as values for the outputs of `join`."""
    keep = compat.update()
    entry: dict[str, Any] = {} if new.choices is None else {"choices": [label for label, _ in new.choices]}
    if new.entry is not None:
        entry["value"] = new.entry
    pieces = [keep if v is None else compat.update(value=v) for v in (new.status, new.prompts)]
    references = keep if new.references is None else compat.update(value=list(new.references))
    settings = [
        compat.update(value=each.shown(new.values[each.name])) if each.name in new.values else keep
        for each in FORM.fields
    ]
    return [pieces[0], compat.update(**entry), pieces[1], references, *settings]
