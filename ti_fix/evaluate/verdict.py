"""Numbers to sentences: is it better, and where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ti_fix.evaluate.config import EvalConfig
from ti_fix.evaluate.statistics import Estimate

if TYPE_CHECKING:
    from ti_fix.evaluate.report import Side

ASPECTS: Mapping[str, str] = {
    "clip_i": "likeness to the references",
    "dino": "likeness to the references (DINO)",
    "masked_clip_i": "likeness of the subject alone",
    "clip_t": "agreement with the prompt",
    "adherence.colour": "colours of the prompt",
    "adherence.object": "objects of the prompt",
    "adherence.scene": "scene of the prompt",
    "adherence.style": "style of the prompt",
    "adherence.action": "action of the prompt",
    "clip_iqa": "quality",
}
"""Metrics that a sentence speaks of; `clip_score_25` says what `clip_t` says, `adherence_q` what its parts say."""

RANKED = ("clip_i", "dino", "clip_t", "adherence_q")
"""What the best step of a run is chosen by."""


def sentences(label: str, differences: Mapping[str, Mapping[str, Estimate]], config: EvalConfig) -> Iterator[str]:
    """One sentence for each comparison of the first side with another."""
    for other, found in differences.items():
        better = [_told(name, found[name]) for name in ASPECTS if name in found and found[name].low > 0]
        worse = [_told(name, found[name]) for name in ASPECTS if name in found and found[name].high < 0]
        if all(each.low == each.high == 0 for each in found.values()):
            yield f"{label} against {other}: no difference at all, the pictures are the same."
            continue
        yield f"{label} against {other}: {_joined(better, worse, negative=config.negative)}"


def _joined(better: Sequence[str], worse: Sequence[str], *, negative: bool) -> str:
    if better and worse:
        return f"better in {', '.join(better)}; worse in {', '.join(worse)}."
    if better:
        return f"better in {', '.join(better)}; nothing is clearly worse."
    if worse:
        return f"worse in {', '.join(worse)}; nothing is clearly better."
    more = "" if negative else " More pictures a prompt would narrow the intervals."
    return f"no clear difference with this many pictures.{more}"


def _told(name: str, found: Estimate) -> str:
    return f"{ASPECTS[name]} ({found.mean:+.3f}, {found.low:+.3f} to {found.high:+.3f})"


def best_step(sides: Sequence[Side]) -> str | None:
    """The side of a training run with the best mean rank over `RANKED`; the earlier one of equals.

    Returns:
        None unless at least two sides come from steps of a run.
    """
    steps = sorted((side for side in sides if side.step is not None), key=lambda side: side.step or 0)
    if len(steps) < 2:
        return None
    ranks = [0.0] * len(steps)
    for name in RANKED:
        values = [side.scores[name].mean for side in steps if name in side.scores]
        if len(values) != len(steps):
            continue
        for number, value in enumerate(values):
            ranks[number] += sum(other > value for other in values)
    return steps[min(range(len(steps)), key=lambda number: ranks[number])].label
