"""Routes ``/ti_fix/v1/evaluate…``: start an evaluation or a look through pictures, see how far it is, stop, report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ti_fix.errors import WrongUse
from ti_fix.evaluate import EvalConfig
from ti_fix.ui.desk import Desk
from ti_fix.ui.evaluate_bench import Wish, bench_of
from ti_fix.ui.forms import typed

MAX_PROMPTS = 200
_NOT_FROM_OUTSIDE = frozenset({"references", "judge", "dino"})
"""Parts of a wish that name files: nobody hands in a path through the API."""


def begin(desk: Desk, values: Mapping[str, Any]) -> dict[str, Any]:
    """Start an evaluation of the embedding ``entry`` (an id of the list); settings and ``prompts`` by their names."""
    settings = {field.name for field in fields(EvalConfig)}
    own = {field.name for field in fields(Wish)} - _NOT_FROM_OUTSIDE
    unknown = sorted(set(values) - settings - own)
    if unknown:
        raise WrongUse(f"There is no {unknown[0]!r}; known are: {', '.join(sorted(settings | own))}.")
    wish = Wish(
        entry=str(values.get("entry", "")),
        against=_texts(values, "against"),
        as_stored=bool(values.get("as_stored", False)),
        maps=bool(values.get("maps", False)),
        prompts=_texts(values, "prompts"),
        run_name=str(values.get("run_name", "")),
    )
    from ti_fix.ui.evaluate_work import start  # the WebUI waits for this module at its start

    desk.library.refreshed()
    start(desk, wish, typed(EvalConfig(), {name: values[name] for name in settings if name in values}))
    return look(desk, {})


def look(desk: Desk, values: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - all routes are called alike
    """How far the evaluation is."""
    state = bench_of(desk).job.state
    return {
        "status": state.status,
        "title": state.title,
        "done": state.progress.done,
        "total": state.progress.total,
        "seconds": round(state.seconds, 1),
        "message": state.message,
    }


def stop(desk: Desk, values: Mapping[str, Any]) -> dict[str, Any]:
    """End it after the picture that is being made."""
    bench_of(desk).job.stop()
    return look(desk, values)


def report(desk: Desk, values: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - all routes are called alike
    """The last report of an embedding, without pictures."""
    last = bench_of(desk).report
    if last is None:
        raise WrongUse("There is no report yet; start an evaluation with POST evaluate.")
    return last.as_dict()


def begin_look(desk: Desk, values: Mapping[str, Any]) -> dict[str, Any]:
    """Look through training pictures: those in ``folders`` (as for training), else those of the Train page."""
    unknown = sorted(set(values) - {"folders"})
    if unknown:
        raise WrongUse(f"There is no {unknown[0]!r}; known is: folders.")
    from ti_fix.ui.evaluate_dataset import start_look

    start_look(desk, (), "", _texts(values, "folders"))
    return look(desk, {})


def dataset_report(desk: Desk, values: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - all routes are called alike
    """What the last look through training pictures found."""
    last = bench_of(desk).dataset
    if last is None:
        raise WrongUse("Nothing was looked through yet; start with POST evaluate/dataset.")
    return last.as_dict()


ROUTES = (
    ("evaluate", "POST", begin),
    ("evaluate", "GET", look),
    ("evaluate/stop", "POST", stop),
    ("evaluate/report", "GET", report),
    ("evaluate/dataset", "POST", begin_look),
    ("evaluate/dataset", "GET", dataset_report),
)
"""Path below the prefix, method, function."""


def _texts(values: Mapping[str, Any], name: str) -> tuple[str, ...]:
    given = values.get(name, [])
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given) or len(given) > MAX_PROMPTS:
        raise WrongUse(f"{name} must be a list of at most {MAX_PROMPTS} texts.")
    return tuple(given)
