"""The Evaluate page's job: from what was chosen to a report; knows no Gradio."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ti_fix.embedding import Embedding
from ti_fix.errors import TiFixError
from ti_fix.evaluate import (
    DEFAULT_PROMPTS,
    EvalConfig,
    Material,
    PictureEvent,
    ReportEvent,
    dino_from_file,
    evaluate,
)
from ti_fix.evaluate.probes import Encode, encoder_of
from ti_fix.evaluate.run import Event, Interrupted
from ti_fix.jobs import Progress
from ti_fix.protocols import Host, ImageRequest
from ti_fix.ui.desk import Desk
from ti_fix.ui.evaluate_bench import Bench, Wish, bench_of
from ti_fix.ui.evaluate_material import judge_of, pictures_and_masks
from ti_fix.ui.evaluate_sides import embedding_of, figures_of, result_of, run_of, sides_of
from ti_fix.ui.evaluate_words import LABELS
from ti_fix.ui.progress import Outcome
from ti_fix.ui.subject import SubjectFinder, drawn


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
