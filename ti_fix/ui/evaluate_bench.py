"""What the Evaluate page and its API routes share: what is asked for, what runs, and the reports that came of it.

The WebUI waits for this module at its start, so the work itself lies in `evaluate_work` and `evaluate_dataset`, which
are imported when it begins.
"""

from __future__ import annotations

import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ti_fix.jobs import Job
from ti_fix.ui.desk import Desk

if TYPE_CHECKING:
    from ti_fix.evaluate import Report
    from ti_fix.evaluate.dataset import DatasetReport


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


def runs_of(desk: Desk) -> tuple[str, ...]:
    """Names of the training runs that have kept embeddings of their steps, the newest first."""
    if not desk.host.embedding_folders:
        return ()
    return tuple(dict.fromkeys(run.config.name for run in desk.training.runs() if run.saved))


def written(bench: Bench) -> tuple[str, ...]:
    """The newest report as a page in a temporary folder, for download; nothing before the first."""
    newest = bench.dataset if bench.newest == "dataset" else bench.report
    if newest is None:
        return ()
    if bench.file is None or bench.file[0] is not newest or not bench.file[1].exists():
        from ti_fix.evaluate import page
        from ti_fix.evaluate.dataset import DatasetReport
        from ti_fix.evaluate.dataset_page import dataset_page

        path = Path(tempfile.mkdtemp(prefix="ti_fix_report_")) / f"{bench.newest}.html"
        if isinstance(newest, DatasetReport):
            path.write_text(dataset_page(newest), encoding="utf-8")
        else:
            path.write_text(page(newest, figures=bench.figures, sections=bench.sections), encoding="utf-8")
        bench.file = (newest, path)
    return (str(bench.file[1]),)
