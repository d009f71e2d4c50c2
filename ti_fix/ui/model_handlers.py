"""What the controls of the Model page do; functions of plain values, which know no Gradio."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from ti_fix.ui import model_report, model_state, model_tokens
from ti_fix.ui.desk import Desk
from ti_fix.ui.guard import guarded, guarded_steps
from ti_fix.ui.markup import message, name
from ti_fix.ui.model_state import Thorough
from ti_fix.ui.model_words import TEXTS
from ti_fix.ui.progress import WATCH, watched


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShown:
    """What changes on the page.

    Attributes:
        status, report, environment, ways: HTML; None stays as it is.
        busy: a thorough look runs, which can be stopped.
    """

    status: str | None = None
    report: str | None = None
    environment: str | None = None
    ways: str | None = None
    busy: bool = False


def _told(html: str) -> ModelShown:
    return ModelShown(status=html)


@guarded_steps(_told)
def opened(desk: Desk) -> Iterator[ModelShown]:
    """The page comes into sight, or Refresh is pressed: look at the model, and find a running look again."""
    while desk.host.loading():
        yield ModelShown(status=message(TEXTS["loading"], "info"))
        time.sleep(WATCH)
    yield _now(desk)
    if desk.checking.state.active:
        yield from _watched(desk)


@guarded_steps(_told)
def check(desk: Desk) -> Iterator[ModelShown]:
    """Run all checks and measure the strategies."""
    desk.checking.start(TEXTS["checking"], lambda stop: model_state.thorough_events(desk, stop))
    yield from _watched(desk)


@guarded(str)
def tokens(desk: Desk, prompt: str | None, steps: float | None) -> str:
    """The token view of a prompt."""
    view = model_tokens.tokens(model_state.tokens(desk, prompt or "", int(steps or 20)))
    model = desk.host.text_model()
    return f'<p class="hint">{name(model.name)}</p>{view}' if model is not None else view


def _watched(desk: Desk) -> Iterator[ModelShown]:
    for state, html in watched(desk.checking):
        if state.active:
            yield ModelShown(status=html, busy=True)
        elif state.status == "failed":
            yield ModelShown(status=html)
        else:
            yield _now(desk)


def _now(desk: Desk) -> ModelShown:
    """The newest thorough look at the loaded model, or a quick one."""
    quick = model_state.report(desk)
    looks = [event for event in desk.checking.events() if isinstance(event, Thorough)]
    same = looks[-1] if looks and quick is not None and looks[-1].report["model"] == quick["model"] else None
    return ModelShown(
        status="",
        report=model_report.report(same.report if same else quick),
        environment=model_report.environment(model_state.environment(desk)),
        ways=model_report.ways(same.strategies if same else {}),
        busy=desk.checking.state.active,
    )
