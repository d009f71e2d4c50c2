"""The Evaluate page's job: from what was chosen to a report; knows no Gradio."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from ti_fix.embedding import Embedding
from ti_fix.errors import TiFixError
from ti_fix.evaluate import (
    DEFAULT_PROMPTS,
    EvalConfig,
    Material,
    PictureEvent,
    Report,
    ReportEvent,
    dino_from_file,
    evaluate,
    page,
)
from ti_fix.evaluate.dataset import DatasetReport
from ti_fix.evaluate.dataset_page import dataset_page
from ti_fix.evaluate.probes import Encode, encoder_of
from ti_fix.evaluate.run import Event, Interrupted
from ti_fix.jobs import Job, Progress
from ti_fix.protocols import Host, ImageRequest
from ti_fix.ui.desk import Desk
from ti_fix.ui.evaluate_material import judge_of, pictures_and_masks
from ti_fix.ui.evaluate_sides import embedding_of, figures_of, result_of, run_of, sides_of
from ti_fix.ui.evaluate_words import LABELS
from ti_fix.ui.progress import Outcome
from ti_fix.ui.subject import SubjectFinder, drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be evaluated.

    Attributes:
        entry: id of the embedding in question.
        against: ids of others.
        as_stored: also the file as it is.
        maps: also where the side's word acted in each picture.
        prompts: with ``[name]``; the usual ones where there are none.
        run_name: of a training run whose steps are compared too; empty for none.
        references: paths of pictures that were uploaded; ``NAME-mask.png`` beside them is where the subject is.
        judge: a file or open_clip's name; empty for the interrogator's CLIP.
        download: fetch the judge that is named, if it is not here.
        dino: a file; empty for none.
    """

    entry: str
    against: tuple[str, ...] = ()
    as_stored: bool = False
    maps: bool = False
    prompts: tuple[str, ...] = ()
    run_name: str = ""
    references: tuple[str, ...] = ()
    judge: str = ""
    download: bool = False
    dino: str = ""


@dataclass(slots=True, kw_only=True, eq=False)
class Bench:
    """One place of evaluation for all windows; it outlives their pages.

    Attributes:
        job: what runs.
        report, figures, sections: the last one of an embedding, with its plots and maps.
        dataset: the last one of training pictures.
        newest: which of the two came last, ``report`` or ``dataset``; empty before the first.
        file: a report that was written for download, and where it lies.
    """

    job: Job = field(default_factory=Job)
    report: Report | None = None
    figures: dict[str, bytes] = field(default_factory=dict)
    sections: dict[str, str] = field(default_factory=dict)
    dataset: DatasetReport | None = None
    newest: str = ""
    file: tuple[Report | DatasetReport, Path] | None = None


_benches: WeakKeyDictionary[Desk, Bench] = WeakKeyDictionary()
_making = threading.Lock()


def bench_of(desk: Desk) -> Bench:
    """The bench that belongs to a desk."""
    with _making:
        if desk not in _benches:
            _benches[desk] = Bench()
            desk.jobs.append(_benches[desk].job)
        return _benches[desk]


def start(desk: Desk, wish: Wish, config: EvalConfig) -> None:
    """Begin an evaluation.

    Raises:
        TiFixError: something is missing, or one runs already.
    """
    run = run_of(desk, wish.run_name)
    embedding = embedding_of(desk, wish.entry) if wish.entry or run is None else result_of(desk, run)
    bench = bench_of(desk)
    bench.job.start(f"Evaluating {embedding.name}", lambda stop: _events(desk, bench, wish, config, embedding, stop))


def _events(
    desk: Desk, bench: Bench, wish: Wish, config: EvalConfig, embedding: Embedding, stop: threading.Event
) -> Iterator[Progress | Outcome]:
    yield Progress(done=0, total=0, note=LABELS["getting_ready"])
    judge = judge_of(desk, wish.judge, download=wish.download)
    host = desk.host.training_host()
    model = host.model()
    sides = sides_of(desk, wish, config, embedding)
    references, masks = pictures_and_masks(wish.references)
    finder = SubjectFinder(host, desk.host.fit, config.class_word or embedding.name)
    looks = wish.maps or bool(masks)
    material = Material(
        references=references,
        reference_masks=masks,
        dino=dino_from_file(Path(wish.dino)) if wish.dino else None,
        encode=lambda side: _in_host(host, encoder_of(model, map(desk.host.fit, side.embeddings))),
        mask=finder.mask if looks else None,
    )
    figures = {} if sides.run is None else host.run(lambda: figures_of(sides, model.vocabulary()))
    events: Iterator[Event] = evaluate(
        config,
        sides.candidates,
        wish.prompts or DEFAULT_PROMPTS,
        judge,
        generate=_one_by_one(host, finder.generate if looks else host.generate, stop),
        material=material,
        stop=stop.is_set,
    )
    for event in events:
        if isinstance(event, PictureEvent):
            yield Progress(done=event.done, total=event.total, note=f"{LABELS['making']}: {event.label}")
        elif isinstance(event, ReportEvent):
            bench.report, bench.figures, bench.newest = event.report, figures, "report"
            bench.sections = {LABELS["word_maps"]: drawn(finder.seen)} if wish.maps and finder.seen else {}
            told = list(event.report.sentences) or ["The scores are below."]
            best = [f"Best step: {event.report.best}."] if event.report.best else []
            yield Outcome(text=" ".join([*told, *best]), problems=sides.missing)


def _in_host(host: Host, encode: Encode) -> Encode:
    return lambda prompts: host.run(lambda: encode(prompts))


def _one_by_one(host: Host, generate: Callable[[ImageRequest], Any], stop: threading.Event) -> Callable[..., Any]:
    """Picture by picture under the host's lock, so that others can work in between; its Interrupt ends the run."""

    def made(request: ImageRequest) -> Any:
        try:
            image = host.run(lambda: generate(request))
        except TiFixError:
            if host.interrupted():
                raise Interrupted from None
            raise
        if host.interrupted():  # asked only now: the sign of an earlier press stands until the next picture begins
            stop.set()
        return image

    return made


def written(bench: Bench) -> tuple[str, ...]:
    """The newest report as a page in a temporary folder, for download; nothing before the first."""
    newest = bench.dataset if bench.newest == "dataset" else bench.report
    if newest is None:
        return ()
    if bench.file is None or bench.file[0] is not newest or not bench.file[1].exists():
        path = Path(tempfile.mkdtemp(prefix="ti_fix_report_")) / f"{bench.newest}.html"
        if isinstance(newest, DatasetReport):
            path.write_text(dataset_page(newest), encoding="utf-8")
        else:
            path.write_text(page(newest, figures=bench.figures, sections=bench.sections), encoding="utf-8")
        bench.file = (newest, path)
    return (str(bench.file[1]),)
