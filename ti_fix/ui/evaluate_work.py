"""The Evaluate page's job: from what was chosen to a report; knows no Gradio."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from PIL import Image, ImageOps

from ti_fix.embedding import Embedding
from ti_fix.errors import TiFixError, WrongUse
from ti_fix.evaluate import (
    DEFAULT_PROMPTS,
    Backbone,
    Candidate,
    EvalConfig,
    Material,
    PictureEvent,
    Report,
    ReportEvent,
    as_stored,
    default_candidates,
    dino_from_file,
    evaluate,
    from_file,
    interrogator_file,
    page,
)
from ti_fix.evaluate.features import OFFERS
from ti_fix.evaluate.run import Event, Interrupted
from ti_fix.formats import read
from ti_fix.jobs import Job, Progress
from ti_fix.protocols import ImageRequest
from ti_fix.repair import clean
from ti_fix.ui.desk import Desk
from ti_fix.ui.evaluate_words import LABELS
from ti_fix.ui.library import Entry
from ti_fix.ui.progress import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be evaluated.

    Attributes:
        entry: id of the embedding in question.
        against: ids of others.
        as_stored: also the file as it is.
        prompts: with ``[name]``; the usual ones where there are none.
        references: paths of pictures that were uploaded.
        judge, dino: files; empty for the interrogator's CLIP, and for none.
    """

    entry: str
    against: tuple[str, ...] = ()
    as_stored: bool = False
    prompts: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    judge: str = ""
    dino: str = ""


@dataclass(slots=True, kw_only=True, eq=False)
class Bench:
    """One place of evaluation for all windows; it outlives their pages.

    Attributes:
        job: what runs.
        report: the last one.
        pictures: how many the running job has made.
    """

    job: Job = field(default_factory=Job)
    report: Report | None = None
    newest: Any = None


_benches: WeakKeyDictionary[Desk, Bench] = WeakKeyDictionary()
_making = threading.Lock()


def bench_of(desk: Desk) -> Bench:
    """The bench that belongs to a desk."""
    with _making:
        return _benches.setdefault(desk, Bench())


def start(desk: Desk, wish: Wish, config: EvalConfig) -> None:
    """Begin an evaluation.

    Raises:
        TiFixError: something is missing, or one runs already.
    """
    embedding = embedding_of(desk, wish.entry)
    bench = bench_of(desk)
    bench.job.start(f"Evaluating {embedding.name}", lambda stop: _events(desk, bench, wish, config, embedding, stop))


def _events(
    desk: Desk, bench: Bench, wish: Wish, config: EvalConfig, embedding: Embedding, stop: threading.Event
) -> Iterator[Progress | Outcome]:
    yield Progress(done=0, total=0, note="")
    judge = judge_of(desk, wish.judge)
    material = Material(
        references=[picture_of(path) for path in wish.references],
        dino=dino_from_file(Path(wish.dino)) if wish.dino else None,
    )
    sides, missing = candidates_of(desk, wish, config, embedding)
    host = desk.host.training_host()

    def generate(request: ImageRequest) -> Any:
        try:  # picture by picture, so that others can work in between
            image = host.run(partial(host.generate, request))
        except TiFixError:
            if host.interrupted():
                raise Interrupted from None
            raise
        if host.interrupted():  # asked only now: the sign of an earlier press stands until the next picture begins
            stop.set()
        return image

    events: Iterator[Event] = evaluate(
        config,
        sides,
        wish.prompts or DEFAULT_PROMPTS,
        judge,
        generate=generate,
        material=material,
        stop=stop.is_set,
    )
    for event in events:
        if isinstance(event, PictureEvent):
            bench.newest = event.image
            yield Progress(done=event.done, total=event.total, note=f"{LABELS['making']}: {event.label}")
        elif isinstance(event, ReportEvent):
            bench.report = event.report
            told = event.report.sentences or ("The scores are below.",)
            yield Outcome(text=" ".join(told), problems=tuple(missing))


def embedding_of(desk: Desk, entry_id: str) -> Embedding:
    """The embedding of an entry, repaired where it has to be and of the loaded model's kind.

    Raises:
        TiFixError: nothing is chosen, or it cannot be used.
    """
    if not entry_id:
        raise WrongUse("Choose an embedding first.")
    entry: Entry = desk.library.find(entry_id)
    found = list(clean(desk.library.load(entry)))
    if not found:
        raise WrongUse(f"{entry.where[0]} cannot be used; the Files page says why.")
    return found[0]


def candidates_of(
    desk: Desk, wish: Wish, config: EvalConfig, embedding: Embedding
) -> tuple[list[Candidate], list[str]]:
    """The sides, and sentences about those that could not be had."""
    sides = default_candidates(embedding.name, embedding, config.class_word, negative=config.negative)
    missing = []
    if wish.as_stored:
        stored = as_stored(read(desk.library.find(wish.entry).paths[0]).embedding, embedding)
        if stored is None:
            missing.append("As stored, the file cannot be loaded at all: that is the side “without”.")
        else:
            sides.insert(1, stored)
    for entry_id in wish.against:
        if entry_id != wish.entry:
            other = embedding_of(desk, entry_id)
            sides.append(Candidate(label=other.name, word=other.name, embeddings=(other,)))
    return sides, missing


def judge_of(desk: Desk, path: str) -> Backbone:
    """The judge from a file, or the interrogator's, or the small models' own where one of them is loaded.

    Raises:
        TiFixError: there is none; names what can be had.
    """
    if path.strip():
        return from_file(Path(path.strip()).expanduser())
    own = desk.host.judge()
    if own is not None:
        return own
    found = interrogator_file(desk.host.clip_folders)
    if found is None:
        offers = "; ".join(map(str, OFFERS.values()))
        raise WrongUse(
            "No judge is here. Use the WebUI's Interrogate CLIP once, which fetches one (890 MB), or give the weights "
            f"of a CLIP as a file under Judge. Known ones: {offers}."
        )
    return from_file(found)


def picture_of(path: str) -> Image.Image:
    """An uploaded picture, upright.

    Raises:
        WrongUse: it cannot be read.
    """
    try:
        with Image.open(path) as image:
            return ImageOps.exif_transpose(image).convert("RGB")
    except (OSError, Image.DecompressionBombError) as error:
        raise WrongUse(f"{Path(path).name} cannot be read as a picture ({error}); take it out.") from None


def written(report: Report) -> Path:
    """The report as a page in a temporary folder, for download."""
    path = Path(tempfile.mkdtemp(prefix="ti_fix_report_")) / "report.html"
    path.write_text(page(report), encoding="utf-8")
    return path
