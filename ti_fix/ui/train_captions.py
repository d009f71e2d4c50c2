"""Captions that the host's own interrogators write for pictures without one."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from ti_fix.jobs import Progress
from ti_fix.train.captions import one_line
from ti_fix.train.dataset import caption_beside, pictures_in
from ti_fix.train.pictures import UnusablePicture, open_picture
from ti_fix.ui.host import Captioner
from ti_fix.ui.progress import Outcome
from ti_fix.ui.train_pictures import write_caption


def missing(folders: Sequence[str]) -> list[Path]:
    """Pictures without a caption, or with an empty one.

    Raises:
        WrongUse: a folder does not exist.
    """
    return [path for path in pictures_in(folders) if not (found := caption_beside(path)) or not one_line(found[1].text)]


def written(captioner: Captioner, paths: Sequence[Path], stop: threading.Event) -> Iterator[Progress | Outcome]:
    """Caption pictures one by one; a job's work, where the host wants model work done."""
    done, problems = 0, []
    for number, path in enumerate(paths):
        if stop.is_set():
            break
        yield Progress(done=number, total=len(paths), note=path.name)
        try:
            picture = open_picture(path).image
        except UnusablePicture as error:
            problems.append(str(error))
            continue
        text = captioner.caption(picture)
        if one_line(text):
            write_caption(path, text)
            done += 1
    yield Outcome(
        text=f"{done:,} captions written by {captioner.name}. Read them: leave in them what changes from picture to "
        "picture, and take out what the embedding is to learn.",
        problems=tuple(problems),
    )
