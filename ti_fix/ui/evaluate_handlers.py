"""What the controls of the Evaluate page do; functions of plain values, which know no Gradio."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ti_fix.evaluate import EvalConfig, body
from ti_fix.repair import carries
from ti_fix.ui import progress
from ti_fix.ui.desk import Desk
from ti_fix.ui.evaluate_work import Bench, Wish, bench_of, start, written
from ti_fix.ui.forms import Form
from ti_fix.ui.guard import guarded, guarded_steps

FORM = Form(EvalConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What changes on the page; None stays as it is.

    Attributes:
        status, result: HTML.
        busy: whether Stop is to be seen.
        choices: (label, id) of the embeddings that can be evaluated.
        files: reports to download.
    """

    status: str | None = None
    result: str | None = None
    busy: bool | None = None
    choices: tuple[tuple[str, str], ...] | None = None
    files: tuple[str, ...] | None = None


def _said(message: str) -> Shown:
    return Shown(status=message)


@guarded_steps(_said)
def opened(desk: Desk) -> Iterator[Shown]:
    """The page comes into sight: list the embeddings, find a running job and the last report again."""
    if not desk.reading.state.active:
        desk.reading.start("Reading the embeddings", lambda _: desk.library.refresh())
    desk.reading.wait()
    bench = bench_of(desk)
    yield Shown(choices=choices(desk), result=result(bench), busy=bench.job.state.active)
    if bench.job.state.active:
        yield from _watched(bench)


def choices(desk: Desk) -> tuple[tuple[str, str], ...]:
    """The embeddings that the loaded model can use."""
    found = [e for e in desk.library.entries if e.judged.result.usable and not carries(e.judged)]
    names = [e.trigger for e in found]
    return tuple((e.trigger if names.count(e.trigger) == 1 else f"{e.trigger} ({e.where[0]})", e.id) for e in found)


@guarded_steps(_said)
def begin(
    desk: Desk,
    entry: str | None,
    prompts: str,
    references: Sequence[Any] | None,
    against: Sequence[str] | None,
    as_stored: bool,
    judge: str,
    dino: str,
    *values: Any,
) -> Iterator[Shown]:
    """Start, then watch.

    Args:
        desk: of this process.
        entry: id of the embedding.
        prompts: one a line.
        references: uploaded files, as either Gradio hands them over.
        against: ids.
        as_stored: see `Wish`.
        judge: see `Wish`.
        dino: see `Wish`.
        *values: of the form, in the order of its fields.
    """
    wish = Wish(
        entry=entry or "",
        against=tuple(against or ()),
        as_stored=bool(as_stored),
        prompts=tuple(line.strip() for line in (prompts or "").splitlines() if line.strip()),
        references=tuple(str(getattr(each, "name", each)) for each in references or ()),
        judge=judge or "",
        dino=dino or "",
    )
    if wish.judge or wish.dino:
        desk.refuse_strangers()
    start(desk, wish, FORM.config(values))
    yield from _watched(bench_of(desk))


@guarded(_said)
def stop(desk: Desk) -> Shown:
    """End after the picture that is being made; what every side has is scored."""
    bench_of(desk).job.stop()
    return Shown()


def _watched(bench: Bench) -> Iterator[Shown]:
    for state, status in progress.watched(bench.job):
        yield Shown(status=status, busy=state.active)
    done = bench.job.state.status in ("done", "stopped") and bench.report is not None
    files = (str(written(bench.report)),) if done and bench.report else ()
    yield Shown(status=progress.outcome(bench.job, bench.job.state), result=result(bench), busy=False, files=files)


def result(bench: Bench) -> str:
    """The last report as HTML, empty before the first."""
    return f'<div class="report">{body(bench.report)}</div>' if bench.report else ""
