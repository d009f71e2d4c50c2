"""Writes what an evaluation came to: page, Markdown, JSON, pictures."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from pathlib import Path

from ti_fix.errors import TiFixError
from ti_fix.evaluate import Report, markdown, page
from ti_fix.evaluate.dataset import SIMILARITY_HINT, DatasetReport
from ti_fix.evaluate.page import STYLE, table


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
    rows = [
        (
            i.name,
            i.caption,
            "-" if i.similarity is None else f"{i.similarity:.3f}",
            f"{i.likeness:.3f}",
            "; ".join(i.flags),
        )
        for i in report.items
    ]
    changes = [
        (name, *(f"{each.mean:.3f}" if each else "-" for each in (before, report.after[name])))
        for name, before in report.before.items()
    ]
    copies = [(", ".join(group),) for group in report.duplicates]
    judged_by = (
        f"Judge: {report.judge.name} ({report.judge.fingerprint}), {report.judge.preprocessing}. Articles speak of "
        f"{SIMILARITY_HINT} as a threshold for captions; here a picture is flagged when it lies far below the others "
        "of its own set."
    )
    body = [
        f'<h1>Training pictures</h1><p class="small">{html.escape(judged_by)}</p>',
        "<h2>Before and after</h2>",
        table(("", "all", "without flagged and spare ones"), changes),
        "<h2>Copies</h2>" + table(("one picture",), copies) if copies else "",
        "<h2>Pictures</h2>",
        table(("picture", "caption", "caption fits", "like the others", "noticed"), rows),
    ]
    head = f'<meta charset="utf-8"><title>Training pictures</title><style>{STYLE}</style>'
    text = f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(body)}</body></html>'
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "dataset.html").write_text(text, encoding="utf-8")
        (folder / "dataset.json").write_text(json.dumps(report.as_dict(), indent=1), encoding="utf-8")
    except OSError as error:
        raise TiFixError(f"{folder} cannot be written ({error.strerror}); give another folder with --out.") from error
