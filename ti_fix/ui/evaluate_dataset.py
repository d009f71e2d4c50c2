"""A look through training pictures on the Evaluate page: those that were uploaded, or those of the Train page."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ti_fix.errors import WrongUse
from ti_fix.evaluate import Backbone
from ti_fix.evaluate.dataset import DatasetEvent, LookEvent, look
from ti_fix.jobs import Progress
from ti_fix.train.captions import one_line
from ti_fix.train.dataset import CAPTION_ENDINGS, caption_beside, pictures_in
from ti_fix.train.pictures import open_picture
from ti_fix.ui.desk import Desk
from ti_fix.ui.evaluate_bench import Bench, bench_of
from ti_fix.ui.evaluate_material import MASK, judge_of
from ti_fix.ui.evaluate_words import LABELS
from ti_fix.ui.progress import Outcome


def start_look(
    desk: Desk, files: Sequence[str], judge: str, folders: Sequence[str] = (), *, download: bool = False
) -> None:
    """Begin to look through pictures.

    Args:
        desk: of this process.
        files: uploaded pictures, and text files of the same names with their captions.
        judge: see `judge_of`.
        download: see `judge_of`.
        folders: of pictures with captions beside them; the Train page's where nothing at all is given.

    Raises:
        TiFixError: there are no pictures, or a job runs.
    """
    found = _uploaded(files) if files else _in_folders(folders or desk.training.album.folders)
    if not found:
        raise WrongUse("There are no pictures; add some here or on the Train page.")
    bench = bench_of(desk)
    bench.job.start(
        "Looking through the pictures",
        lambda stop: _events(bench, found, lambda: judge_of(desk, judge, download=download), stop),
    )


def _events(
    bench: Bench, found: Sequence[tuple[Path, str]], judge: Callable[[], Backbone], stop: threading.Event
) -> Iterator[Progress | Outcome]:
    yield Progress(done=0, total=len(found), note=LABELS["getting_ready"])
    names, captions = [path.name for path, _ in found], [caption for _, caption in found]
    pictures = (open_picture(path).image for path, _ in found)
    for event in look(names, pictures, captions, judge()):
        if isinstance(event, LookEvent):
            if stop.is_set():
                return
            yield Progress(done=event.done, total=event.total, note=names[event.done])
        elif isinstance(event, DatasetEvent):
            bench.dataset, bench.newest = event.report, "dataset"
            kept, every = len(event.report.kept), len(event.report.items)
            yield Outcome(text=f"{kept} of {every} pictures have nothing against them.")


def _uploaded(files: Sequence[str]) -> list[tuple[Path, str]]:
    """Pictures with their captions; masks are left out."""
    paths = [Path(file) for file in files]
    texts = {path.stem: path for path in paths if path.suffix.lower() in CAPTION_ENDINGS}
    pictures = [p for p in paths if p.suffix.lower() not in CAPTION_ENDINGS and not p.stem.endswith(MASK)]
    return [(p, _text(texts[p.stem]) if p.stem in texts else "") for p in pictures]


def _text(path: Path) -> str:
    return one_line(path.read_text(encoding="utf-8", errors="replace"))


def _in_folders(folders: Sequence[str]) -> list[tuple[Path, str]]:
    found = []
    for path in pictures_in(folders):
        beside = caption_beside(path)
        found.append((path, one_line(beside[1].text) if beside else ""))
    return found
