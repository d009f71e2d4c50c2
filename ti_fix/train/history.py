"""Earlier runs, read from what they left beside their results; runs of the command line and of a page alike."""

from __future__ import annotations

import contextlib
import csv
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ti_fix.embedding import Embedding
from ti_fix.errors import TiFixError, WrongUse
from ti_fix.formats import read
from ti_fix.train.checkpoint import Files
from ti_fix.train.config import TrainConfig, from_mapping

ENDING = ".training"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run as its folder tells it.

    Attributes:
        config: its settings.
        when: time of its last line in the log, seconds since 1970.
        steps: that were made.
        curve: (step, fixed loss) in order.
        saved: (step, file) of the embeddings of earlier steps that are kept.
        previews: (step, picture file).
        final: the result, None where it is gone or was never written.
        resumable: whether its state was saved.
    """

    config: TrainConfig
    when: float
    steps: int
    curve: tuple[tuple[int, float], ...]
    saved: tuple[tuple[int, Path], ...]
    previews: tuple[tuple[int, Path], ...]
    final: Path | None
    resumable: bool

    @property
    def best(self) -> tuple[int, float] | None:
        """Step and value of the smallest fixed loss."""
        return min(self.curve, key=lambda point: point[1]) if self.curve else None


def runs(out: Path) -> list[Run]:
    """The runs whose results lie in a folder, newest first; what cannot be read is left out."""
    found = []
    for folder in sorted(out.glob(f"*{ENDING}")) if out.is_dir() else ():
        with contextlib.suppress(OSError, ValueError, TiFixError):
            found.append(_run(folder))
    return sorted(found, key=lambda run: -run.when)


def at_step(run: Run, step: int | None) -> Embedding:
    """The embedding of an earlier step, under the name of its run; the run's own result for None.

    Raises:
        TiFixError: that step was not kept, or the file cannot be read.
    """
    path = run.final if step is None else next((path for at, path in run.saved if at == step), None)
    if path is None:
        what = "The result" if step is None else f"Step {step}"
        raise WrongUse(f"{what} of {run.config.name} was not kept; choose one of the list.")
    embedding: Embedding | None = read(path).embedding
    if embedding is None:
        raise TiFixError(f"{path} holds no embedding any more; choose another step.")
    return replace(embedding, name=run.config.name)


def _run(folder: Path) -> Run:
    settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    config = replace(from_mapping(settings, where=str(folder)), out=str(folder.parent))
    files, log = Files(config), folder / "log.csv"
    rows = list(_rows(log))
    return Run(
        config=config,
        when=(log if log.exists() else folder / "settings.json").stat().st_mtime,
        steps=max((step for step, _ in rows), default=0),
        curve=tuple((step, loss) for step, loss in rows if loss is not None),
        saved=tuple(_numbered(folder, r".+-(\d+)\.safetensors")),
        previews=tuple(_numbered(folder, r"preview-(\d+)\.png")),
        final=files.final if files.final.is_file() else None,
        resumable=files.state.is_file(),
    )


def _rows(log: Path) -> Iterator[tuple[int, float | None]]:
    """Step and fixed loss of each line; the loss is None where none was measured."""
    if not log.exists():
        return
    with log.open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            with contextlib.suppress(KeyError, TypeError, ValueError):  # the last line may be half written
                loss = float(row["fixed_loss"]) if row["fixed_loss"] else None
                yield int(row["step"]), loss if loss is None or math.isfinite(loss) else None


def _numbered(folder: Path, pattern: str) -> list[tuple[int, Path]]:
    names = ((re.fullmatch(pattern, path.name), path) for path in folder.iterdir())
    return sorted((int(found[1]), path) for found, path in names if found)
