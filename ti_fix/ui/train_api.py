"""Routes for training under ``/ti_fix/v1/train``: start, status, events, stop, and the list of runs, as JSON.

They ask for the same passwords and refuse the same strangers as the routes of `ti_fix.ui.api`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from ti_fix.jobs import JobState, Progress
from ti_fix.train.config import as_mapping, from_mapping
from ti_fix.train.events import as_json, finite
from ti_fix.ui.api import PREFIX, Refused, Values, Work, add_route
from ti_fix.ui.desk import Desk, desk_of
from ti_fix.ui.host import PageHost
from ti_fix.ui.progress import Outcome

NOT_OVER_THE_NET = ("out", "cache_folder")
"""Settings that say where files are written; these runs write beside the embeddings folder."""

MOST_EVENTS = 1000
"""Events in one answer; the next ones are asked for with ``after``."""


def mount(app: FastAPI, host: PageHost) -> None:
    """Add the routes to a host's app; those of an earlier call on the same app stay as they are."""
    if any(str(getattr(route, "path", "")).startswith(f"{PREFIX}/train") for route in app.routes):
        return
    desk = desk_of(host)
    routes: tuple[tuple[str, str, Work], ...] = (
        ("train", "POST", start),
        ("train", "GET", status),
        ("train/events", "GET", events),
        ("train/stop", "POST", stop),
        ("train/runs", "GET", listed),
    )
    for path, method, work in routes:
        add_route(app, desk, path, method, work)


def start(desk: Desk, values: Values) -> dict[str, Any]:
    """Begin a run; the body holds settings of training by their names, at least ``name`` and ``folders``."""
    refused = [name for name in NOT_OVER_THE_NET if name in values]
    if refused:
        raise Refused(400, "wrong-value", f"{', '.join(refused)} cannot be set here: runs write beside the embeddings.")
    config = from_mapping(values, where="the request")
    desk.training.start(config)
    return status(desk, {})


def status(desk: Desk, values: Values) -> dict[str, Any]:  # noqa: ARG001 - all routes are called alike
    """What the run does now, or how the last one ended."""
    return _state(desk.training.job.state)


def events(desk: Desk, values: Values) -> dict[str, Any]:
    """What has happened from event number ``after`` (0 is the first) on, and where to go on asking (``next``)."""
    try:
        after = max(0, int(values.get("after", 0)))
    except (TypeError, ValueError):
        raise Refused(400, "wrong-value", "after must be a number: the next of the last answer.") from None
    job = desk.training.job
    state = job.state
    kept = job.events(after)
    first = max(after, job.state.events - len(kept))
    told = kept[:MOST_EVENTS]
    shown = [_shown(as_json(event)) for event in told if not isinstance(event, (Progress, Outcome))]
    return {"events": shown, "next": first + len(told), "status": state.status, "number": state.number}


def stop(desk: Desk, values: Values) -> dict[str, Any]:  # noqa: ARG001
    """End the run after the step that it is in; what is learned is kept."""
    desk.training.stop()
    return status(desk, {})


def listed(desk: Desk, values: Values) -> dict[str, Any]:  # noqa: ARG001
    """The runs that left a state to go on from, the newest first."""
    hidden = {*NOT_OVER_THE_NET, "folders"}
    found = []
    for run in desk.training.runs():
        place = desk.training.place(run.config.name)
        best_step, best_loss = run.best or (-1, math.inf)
        about = {
            "name": run.config.name,
            "step": run.steps,
            "steps": run.config.steps,
            "best_step": best_step,
            "best_loss": best_loss,
            "changed": run.when,
            "kept": [step for step, _ in run.saved],
            "config": {name: value for name, value in as_mapping(run.config).items() if name not in hidden},
            "result": place.name if place.exists() else None,
        }
        found.append(finite(about))
    return {"runs": found}


def _state(state: JobState) -> dict[str, Any]:
    return {
        "title": state.title,
        "status": state.status,
        "step": state.progress.done,
        "steps": state.progress.total,
        "note": state.progress.note,
        "seconds": round(state.seconds, 1),
        "seconds_left": None if state.seconds_left is None else round(state.seconds_left, 1),
        "message": state.message,
        "events": state.events,
        "number": state.number,
    }


def _shown(event: Mapping[str, Any]) -> dict[str, Any]:
    """An event with names of files in place of paths."""
    path = {"path": Path(event["path"]).name} if event.get("path") else {}
    return {**event, **path}
