"""What the controls of the Evaluate page do; functions of plain values, which know no Gradio."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ti_fix.evaluate import EvalConfig
from ti_fix.repair import carries
from ti_fix.ui import markup, progress
from ti_fix.ui.desk import Desk
from ti_fix.ui.evaluate_bench import Bench, Wish, bench_of, runs_of, written
from ti_fix.ui.evaluate_words import LABELS
from ti_fix.ui.forms import Form
from ti_fix.ui.guard import guarded, guarded_steps

FORM = Form(EvalConfig)

NO_RUN = "–"
"""Entry of the list of runs for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What changes on the page; None stays as it is.

    Attributes:
        status, result: HTML.
        busy: whether Stop is to be seen.
        choices: (label, id) of the embeddings that can be evaluated.
        runs: names of the training runs whose steps can be compared.
        files: reports to download.
    """

    status: str | None = None
    result: str | None = None
    busy: bool | None = None
    choices: tuple[tuple[str, str], ...] | None = None
    runs: tuple[str, ...] | None = None
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
    listed = choices(desk)
    status = None if listed or bench.job.state.number else markup.empty(LABELS["none"], LABELS["none_do"])
    busy = bench.job.state.active
    files = () if busy else written(bench)
    yield Shown(status=status, choices=listed, runs=runs_of(desk), result=result(bench), busy=busy, files=files)
    if busy:
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
    run_name: str | None,
    *values: Any,
) -> Iterator[Shown]:
    """Start, then watch.

    Args:
        desk: of this process.
        entry: label of the embedding in the list: Gradio 3 has no lists whose values differ from what they show.
        prompts: one a line.
        references: uploaded files, as either Gradio hands them over.
        against: labels.
        as_stored: see `Wish`.
        run_name: see `Wish`.
        *values: whether to make maps, judge, whether to fetch it, and DINO (see `Wish`), then those of the form in
            the order of its fields.
    """
    from ti_fix.ui.evaluate_work import start

    maps, judge, download, dino, *settings = values
    ids = dict(choices(desk))
    wish = Wish(
        entry=ids.get(entry or "", entry or ""),
        against=tuple(ids.get(each, each) for each in against or ()),
        as_stored=bool(as_stored),
        prompts=tuple(line.strip() for line in (prompts or "").splitlines() if line.strip()),
        maps=bool(maps),
        run_name="" if run_name in (None, NO_RUN) else str(run_name),
        references=_paths(references),
        judge=judge or "",
        download=bool(download),
        dino=dino or "",
    )
    if wish.judge or wish.dino:
        desk.refuse_strangers()
    start(desk, wish, FORM.config(settings))
    yield from _watched(bench_of(desk))


@guarded_steps(_said)
def look(desk: Desk, files: Sequence[Any] | None, judge: str, download: bool) -> Iterator[Shown]:
    """Look through training pictures, then watch.

    Args:
        desk: of this process.
        files: uploaded pictures with their captions; those of the Train page where there are none.
        judge: see `Wish`.
        download: see `Wish`.
    """
    from ti_fix.ui.evaluate_dataset import start_look

    if judge:
        desk.refuse_strangers()
    start_look(desk, _paths(files), judge or "", download=download)
    yield from _watched(bench_of(desk))


def _paths(files: Sequence[Any] | None) -> tuple[str, ...]:
    """Of uploaded files, as either Gradio hands them over."""
    return tuple(str(getattr(each, "name", each)) for each in files or ())


@guarded(_said)
def stop(desk: Desk) -> Shown:
    """End after the picture that is being made; what every side has is scored."""
    bench_of(desk).job.stop()
    return Shown()


def _watched(bench: Bench) -> Iterator[Shown]:
    for state, status in progress.watched(bench.job):
        yield Shown(status=status, busy=state.active)
    finished = bench.job.state.status in ("done", "stopped")
    files = written(bench) if finished else ()
    yield Shown(status=progress.outcome(bench.job, bench.job.state), result=result(bench), busy=False, files=files)


def result(bench: Bench) -> str:
    """The newest report as HTML, empty before the first."""
    if bench.newest == "dataset" and bench.dataset is not None:
        from ti_fix.evaluate.dataset_page import dataset_body

        return f'<div class="report">{dataset_body(bench.dataset)}</div>'
    if bench.report is None:
        return ""
    from ti_fix.evaluate import body

    return f'<div class="report">{body(bench.report, figures=bench.figures, sections=bench.sections)}</div>'
