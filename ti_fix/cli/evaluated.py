"""Writes what an evaluation came to: page, Markdown, JSON, pictures."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from ti_fix.errors import TiFixError
from ti_fix.evaluate import Report, markdown, page
from ti_fix.evaluate.dataset import DatasetReport
from ti_fix.evaluate.dataset_page import dataset_page


def write_report(report: Report, folder: Path, figures: Mapping[str, bytes]) -> None:
    """Write everything into a folder; it is made if it does not exist.

    Raises:
        TiFixError: the folder cannot be written.
    """
    try:
        (folder / "pictures").mkdir(parents=True, exist_ok=True)
        (folder / "report.html").write_text(page(report, figures=figures), encoding="utf-8")
        (folder / "report.md").write_text(markdown(report), encoding="utf-8")
        (folder / "report.json").write_text(json.dumps(report.as_dict(), indent=1), encoding="utf-8")
        for number, side in enumerate(report.sides):
            stem = re.sub(r"[^\w-]+", "_", side.label)[:40]
            for place, picture in enumerate(side.pictures):
                picture.save(folder / "pictures" / f"{number}-{stem}-{place:03}.png")
    except OSError as error:
        raise TiFixError(f"{folder} cannot be written ({error.strerror}); give another folder with --out.") from error


def write_dataset(report: DatasetReport, folder: Path) -> None:
    """Write the page and the JSON of a look through training pictures.

    Raises:
        TiFixError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "dataset.html").write_text(dataset_page(report), encoding="utf-8")
        (folder / "dataset.json").write_text(json.dumps(report.as_dict(), indent=1), encoding="utf-8")
    except OSError as error:
        raise TiFixError(f"{folder} cannot be written ({error.strerror}); give another folder with --out.") from error
