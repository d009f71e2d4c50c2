"""The report as one HTML page that needs nothing else: pictures, tables and plots are inside it."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from typing import Any

from ti_fix.errors import printable
from ti_fix.evaluate import plots
from ti_fix.evaluate.report import MEANINGS, Report, judged_by
from ti_fix.evaluate.statistics import Estimate
from ti_fix.evaluate.verdict import ASPECTS

SHOWN_ROWS = 24
"""Prompts and seeds whose pictures are shown; the scores count all."""

SIDE = 256
"""Longest side of a picture on the page, pixels."""

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1180px; margin: 24px auto; padding: 0 16px; }
h1 { font-size: 24px; } h2 { font-size: 18px; margin-top: 28px; }
.told { border-left: 4px solid #2b7fd0; padding: 6px 12px; margin: 6px 0; background: #8881; }
.note { border-left: 4px solid #c98a04; padding: 6px 12px; margin: 6px 0; background: #8881; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 10px; border-bottom: 1px solid #8884; text-align: left; vertical-align: top; }
th, td { white-space: nowrap; }
th small, td small, .small { color: #777; font-size: 12px; display: block; }
td.clear { font-weight: 600; }
.pictures td { white-space: normal; }
.pictures img { display: block; max-width: 200px; height: auto; border-radius: 4px; }
img.plot { max-width: 100%; background: #fff; border-radius: 6px; }
"""


def page(
    report: Report,
    *,
    title: str = "Does the embedding work?",
    figures: Mapping[str, bytes] | None = None,
    sections: Mapping[str, str] | None = None,
) -> str:
    """The whole page.

    Args:
        report: what to show.
        title: its heading.
        figures: heading -> PNG, beside the plot of the scores.
        sections: heading -> finished HTML, from those who know how to draw it.
    """
    head = f'<meta charset="utf-8"><title>{shown(title)}</title><style>{STYLE}</style>'
    inner = f"<h1>{shown(title)}</h1>\n{body(report, figures=figures, sections=sections)}"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n{inner}\n</body></html>\n'


def body(
    report: Report, *, figures: Mapping[str, bytes] | None = None, sections: Mapping[str, str] | None = None
) -> str:
    """What stands on the page below its heading; see `page`."""
    parts = [*(f'<p class="told">{shown(each)}</p>' for each in report.sentences)]
    if report.best:
        parts.append(f'<p class="told">Best step of the run: <b>{shown(report.best)}</b></p>')
    parts.append(f'<p class="small">{shown(judged_by(report))}</p>')
    parts += [f'<p class="note">{shown(note)}</p>' for note in report.notes]
    parts += ["<h2>Scores</h2>", scores_table(report)]
    every = {"Scores as points": plots.scores(report)} if plots.available() and report.metrics else {}
    if not plots.available():
        parts.append('<p class="note">Plots are left out: the package matplotlib is not installed.</p>')
    if report.differences:
        parts += [f"<h2>{shown(report.sides[0].label)} minus the other</h2>", differences_table(report)]
    for heading, image in {**every, **(figures or {})}.items():
        parts += [f"<h2>{shown(heading)}</h2>", f'<img class="plot" alt="{shown(heading)}" src="{_data(image)}">']
    parts += _probes(report)
    if any(side.pictures for side in report.sides):
        parts += ["<h2>Pictures</h2>", _pictures(report)]
    for heading, content in (sections or {}).items():
        parts += [f"<h2>{shown(heading)}</h2>", content]
    parts += ["<h2>What the names mean</h2>", _meanings(report)]
    return "\n".join(parts)


def scores_table(report: Report) -> str:
    """Means with intervals: a row a metric, a column a side."""
    sides = [(side.label, side.scores) for side in report.sides]
    if report.ceilings:
        sides.append(("references among themselves", report.ceilings))
    head = "".join(f"<th>{shown(label)}</th>" for label, _ in sides)
    rows = [f"<tr>{_metric(m)}{''.join(_cell(scores.get(m)) for _, scores in sides)}</tr>" for m in report.metrics]
    return f'<div class="wide"><table><tr><th></th>{head}</tr>{"".join(rows)}</table></div>'


def differences_table(report: Report) -> str:
    """First side minus each other; bold where the interval leaves out 0."""
    head = "".join(f"<th>{shown(label)}</th>" for label in report.differences)
    rows = []
    for metric in report.metrics:
        found = [each.get(metric) for each in report.differences.values()]
        if any(found):
            rows.append(f"<tr>{_metric(metric)}{''.join(_cell(e, signed=True) for e in found)}</tr>")
    return f'<div class="wide"><table><tr><th></th>{head}</tr>{"".join(rows)}</table></div>'


def _metric(name: str) -> str:
    """The head of a row: the name that reports and scripts share, and what it stands for."""
    told = ASPECTS.get(name, "")
    return f"<th>{shown(name)}{f'<small>{shown(told)}</small>' if told else ''}</th>"


def _cell(each: Estimate | None, *, signed: bool = False) -> str:
    if each is None:
        return "<td>-</td>"
    sign = "+" if signed else ""
    marked = ' class="clear"' if signed and each.clear else ""
    told = f"{each.low:{sign}.3f} to {each.high:{sign}.3f}, n {each.n}"
    return f"<td{marked}>{each.mean:{sign}.3f}<small>{told}</small></td>"


def _probes(report: Report) -> list[str]:
    probed = [(side.label, side.probes) for side in report.sides if side.probes]
    if not probed:
        return []
    rows = "".join(
        f"<tr><th>{shown(label)}</th><td>{p.order:.3f}</td><td>{p.context:.3f}</td><td>{p.later:.3f}</td></tr>"
        for label, p in probed
    )
    head = "<th>moved by its place</th><th>moved by adjectives</th><th>moves what follows</th>"
    return ["<h2>Text encoders</h2>", f'<div class="wide"><table><tr><th></th>{head}</tr>{rows}</table></div>']


def _pictures(report: Report) -> str:
    head = "".join(f"<th>{shown(side.label)}</th>" for side in report.sides)
    rows = []
    for number, (prompt, seed) in enumerate(report.plan[:SHOWN_ROWS]):
        cells = "".join(
            f'<td><img alt="" src="{picture_data(side.pictures[number])}"></td>'
            if number < len(side.pictures)
            else "<td></td>"
            for side in report.sides
        )
        rows.append(f"<tr><td>{shown(prompt)}<small>seed {seed}</small></td>{cells}</tr>")
    more = len(report.plan) - SHOWN_ROWS
    left_out = f'<p class="small">{more} more are scored but not shown.</p>' if more > 0 else ""
    return f'<div class="wide"><table class="pictures"><tr><th></th>{head}</tr>{"".join(rows)}</table></div>{left_out}'


def _meanings(report: Report) -> str:
    items = "".join(f"<li><code>{shown(m)}</code>: {shown(MEANINGS.get(m, 'own group'))}</li>" for m in report.metrics)
    return f"<ul>{items}</ul>"


def picture_data(picture: Any, side: int = SIDE) -> str:
    """A picture as a data address, made smaller where it is larger than the page shows."""
    small = picture.convert("RGB")
    small.thumbnail((side, side))
    data = io.BytesIO()
    small.save(data, format="JPEG", quality=88)
    return _data(data.getvalue(), "jpeg")


def _data(image: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"


def shown(text: object) -> str:
    """A text that cannot bring HTML along."""
    return html.escape(printable(str(text), 2000), quote=True)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A plain table of texts."""
    top = "".join(f"<th>{shown(each)}</th>" for each in head)
    lines = "".join("<tr>" + "".join(f"<td>{shown(each)}</td>" for each in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{top}</tr>{lines}</table></div>'
