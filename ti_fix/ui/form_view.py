"""Draws a form: a control for each setting, experts' settings folded away."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import gradio as gr

from ti_fix.ui.forms import Field, Form
from ti_fix.ui.words import TEXTS


def draw(
    form: Form[Any],
    page: str,
    *,
    sections: Iterable[tuple[str, Iterable[str]]] = (),
    changed: Callable[[Field], Any] = lambda field: field.default,
) -> list[Any]:
    """Draw a form into the block that is open.

    Args:
        form: the settings.
        page: name of the page, for element ids (``ti_fix_<page>_<setting>``).
        sections: title and names of settings, each folded; what is named nowhere stands in front, or, if it is for
            experts, in a fold of its own at the end.
        changed: the value that a control begins with.

    Returns:
        The components in the order of `Form.fields`.
    """
    by_name = {field.name: field for field in form.fields}
    made: dict[str, Any] = {}
    parts = [(title, [by_name[name] for name in names if name in by_name]) for title, names in sections]
    named = {field.name for _, fields in parts for field in fields}
    rest = [field for field in form.fields if field.name not in named]
    _draw_fields(page, [field for field in rest if not field.about.expert], made, changed)
    parts.append((TEXTS["expert"], [field for field in rest if field.about.expert]))
    for title, fields in parts:
        if fields:
            with gr.Accordion(title, open=False, elem_classes=["ti_fix_fold"]):
                _draw_fields(page, fields, made, changed)
    return [made[field.name] for field in form.fields]


def _draw_fields(page: str, fields: list[Field], made: dict[str, Any], changed: Callable[[Field], Any]) -> None:
    if not fields:
        return
    with gr.Row(elem_classes=["ti_fix_fields"]):
        for field in fields:
            made[field.name] = control(page, field, changed(field))


def control(page: str, field: Field, value: Any) -> Any:
    """The control of one setting."""
    about = field.about
    common = {
        "label": about.label,
        "info": about.help,
        "value": field.shown(value),
        "elem_id": f"ti_fix_{page}_{field.name}",
        "min_width": 240,
    }
    if field.kind == "switch":
        return gr.Checkbox(**common)
    if field.kind == "choice":
        return gr.Dropdown(choices=list(about.choices or ()), **common)
    if field.slider:
        step = 1 if field.kind == "whole" else 0.01
        return gr.Slider(minimum=about.minimum, maximum=about.maximum, step=step, **common)
    if field.kind in ("whole", "number"):
        return gr.Number(**common)  # without Gradio's rounding, so that what is no number is told by `Field.read`
    return gr.Textbox(lines=1, max_lines=4, **common)
