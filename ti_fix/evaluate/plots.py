"""Plots by matplotlib, which both WebUIs bring along; PNG bytes, drawn without a screen."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from ti_fix.evaluate.report import Report

COLUMNS = 5
"""Metrics side by side."""

LEFT_OUT = ("clip_score_25", "pixel_change", "conditioning_change")
"""The first is `clip_t` again; the others have scales of their own."""

COLOURS = ("#2b7fd0", "#c98a04", "#8b5cf6", "#2f9e5b", "#d6455d", "#6b7280")


def available() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def scores(report: Report) -> bytes:
    """Every metric as points with intervals, one colour a side; the references' own as a dashed line."""
    names = [name for name in report.metrics if name not in LEFT_OUT]
    rows = -(-len(names) // COLUMNS)
    figure = _figure(2.2 * min(COLUMNS, len(names)) + 0.5, 2.6 * rows + 0.3 * len(report.sides))
    marks: dict[str, Any] = {}
    for place, name in enumerate(names, 1):
        axes = figure.add_subplot(rows, min(COLUMNS, len(names)), place)
        for number, side in enumerate(report.sides):
            each = side.scores.get(name)
            if each is not None:
                spread = [[each.mean - each.low], [each.high - each.mean]]
                colour = COLOURS[number % len(COLOURS)]
                marks[side.label] = axes.errorbar(number, each.mean, yerr=spread, fmt="o", color=colour, capsize=4)
        if name in report.ceilings:
            marks["references among themselves"] = axes.axhline(
                report.ceilings[name].mean, color="#999999", linestyle="--", linewidth=1
            )
        axes.set_title(name, fontsize=9)
        axes.set_xticks([])
        axes.set_xlim(-0.6, len(report.sides) - 0.4)
        axes.tick_params(labelsize=8)
    shown = [_shown(label) for label in marks]
    figure.legend(list(marks.values()), shown, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return _png(figure)


def training(rows: Sequence[Mapping[str, float]]) -> bytes:
    """Training loss on the left axis, the validation loss on a logarithmic right one.

    Args:
        rows: ``step`` with ``smooth_loss`` (or ``loss``) or ``fixed_loss``, as a run's log.csv holds them.
    """
    figure = _figure(7, 3.4)
    left = figure.add_subplot()
    right = left.twinx()
    for axes, names, colour, label in (
        (left, ("smooth_loss", "loss"), COLOURS[0], "training loss"),
        (right, ("fixed_loss",), COLOURS[1], "validation loss (log)"),
    ):
        name = next((n for n in names if any(n in row for row in rows)), None)
        points = [(row["step"], row[name]) for row in rows if name and name in row]
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, linewidth=1.4, marker="." if len(points) < 40 else None)
        axes.set_ylabel(label, color=colour, fontsize=9)
        axes.tick_params(labelsize=8)
    right.set_yscale("log")
    left.set_xlabel("step", fontsize=9)
    return _png(figure)


def way(steps: Sequence[tuple[str, Tensor]], words: Sequence[tuple[str, Tensor]], encoder: str) -> bytes:
    """The way of an embedding's first vector through training among its neighbours, by PCA onto two axes.

    Args:
        steps: label -> vector (width,), from the first to the last.
        words: neighbour -> row (width,).
        encoder: for the title.
    """
    points = torch.stack([vector.float() for _, vector in [*steps, *words]])
    flat, explained = pca(points)
    figure = _figure(5.4, 4.4)
    axes = figure.add_subplot()
    count = len(steps)
    axes.plot(flat[:count, 0], flat[:count, 1], color=COLOURS[0], marker="o", markersize=4, linewidth=1.2)
    axes.scatter(flat[count:, 0], flat[count:, 1], color="#999999", s=14)
    for (label, _), (x, y) in zip([*steps, *words], flat.tolist(), strict=True):
        axes.annotate(_shown(label), (x, y), fontsize=7.5, xytext=(3, 3), textcoords="offset points")
    axes.set_title(f"{encoder}: {explained:.0%} of the variance is shown", fontsize=9)
    axes.tick_params(labelsize=7)
    return _png(figure)


def pca(points: Tensor) -> tuple[Tensor, float]:
    """The two main axes of points (n, width): coordinates (n, 2), and the share of the variance that they hold."""
    centred = points - points.mean(dim=0)
    left, values, _ = torch.linalg.svd(centred, full_matrices=False)
    two = torch.zeros(len(points), 2)
    kept = min(2, len(values))
    two[:, :kept] = left[:, :kept] * values[:kept]
    whole = float((values**2).sum())
    return two, float((values[:2] ** 2).sum()) / whole if whole else 0.0


def _shown(label: str) -> str:
    """A label without the signs that matplotlib reads as formulas."""
    return label.replace("$", "\\$")[:60]


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure  # no pyplot: no state of the whole process is touched

    return Figure(figsize=(width, height), dpi=110, layout="constrained")


def _png(figure: Any) -> bytes:
    data = io.BytesIO()
    figure.savefig(data, format="png")
    return data.getvalue()
