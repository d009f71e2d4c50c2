"""What a look through training pictures found, as HTML."""

from __future__ import annotations

from ti_fix.evaluate.dataset import SIMILARITY_HINT, DatasetReport
from ti_fix.evaluate.report_page import STYLE, shown, table


def dataset_page(report: DatasetReport) -> str:
    """A page that needs nothing else."""
    head = f'<meta charset="utf-8"><title>Training pictures</title><style>{STYLE}</style>'
    body = f"<h1>Training pictures</h1>{dataset_body(report)}"
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>'


def dataset_body(report: DatasetReport) -> str:
    """What stands on the page below its heading."""
    rows = [
        (
            item.name,
            item.caption,
            "-" if item.similarity is None else f"{item.similarity:.3f}",
            f"{item.likeness:.3f}",
            "; ".join(item.flags),
        )
        for item in report.items
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
    told = f"{len(report.kept)} of {len(report.items)} pictures have nothing against them."
    parts = [
        f'<p class="told">{told}</p><p class="small">{shown(judged_by)}</p>',
        "<h2>Before and after</h2>",
        table(("", "all", "without flagged and spare ones"), changes),
        "<h2>Copies</h2>" + table(("one picture",), copies) if copies else "",
        "<h2>Pictures</h2>",
        table(("picture", "caption", "caption fits", "like the others", "noticed"), rows),
    ]
    return "".join(parts)
