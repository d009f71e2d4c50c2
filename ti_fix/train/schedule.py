"""Learning rates over a run, among them A1111's text: ``0.005:100, 1e-3:1000, 1e-5``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from ti_fix.errors import WrongUse

Rate = Callable[[int], float]
"""Step, counted from 1 -> value."""

_END = 10**9
"""Stands for the end of the run."""

_NUMBER = re.compile(r"\+?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class Stage:
    """A rate that holds up to and including a step."""

    rate: float
    until: int


def parse_stages(text: str, steps: int, *, start: int = 0, what: str = "learning rate") -> list[Stage]:
    """The stages of a rate text within a run.

    Args:
        text: ``RATE`` or ``RATE:STEP`` parts, separated by commas; a last part without a step, or with -1, holds to
            the end. A comma at the end is allowed.
        steps: of the run; stages beyond it are left out.
        start: steps that are done already; stages before it are left out.
        what: the setting, for messages.

    Raises:
        WrongUse: names the part that cannot be read. A comma inside a number (``0,005``) is refused: A1111 takes it
            for a rate of zero.
    """
    parts = [part.strip() for part in text.split(",")]
    if parts[-1] == "":
        parts.pop()
    if not parts:
        raise WrongUse(f"The {what} is empty; give a number such as 0.005.")
    stages: list[Stage] = []
    for i, part in enumerate(parts):
        stage = _stage(part, text, what, last=i == len(parts) - 1)
        if stages and stage.until <= stages[-1].until:
            raise WrongUse(f"The {what} {text!r}: steps must rise, but {part!r} ends before the part in front of it.")
        stages.append(stage)
    return _within(stages, start, steps)


def _stage(part: str, text: str, what: str, *, last: bool) -> Stage:
    number, colon, end = (piece.strip() for piece in part.partition(":"))
    rate = _rate(number, part, text, what)
    if not colon:
        if not last:
            raise WrongUse(
                f"The {what} {text!r}: {part!r} has no step and is not the last part; write RATE:STEP, and decimals "
                "with a point."
            )
        return Stage(rate, _END)
    if end == "-1" and last:
        return Stage(rate, _END)
    if not re.fullmatch(r"\d+", end) or not 0 < int(end) < _END:
        raise WrongUse(f"The {what} {text!r}: {end!r} is no step; write a whole number above 0.")
    return Stage(rate, int(end))


def _rate(number: str, part: str, text: str, what: str) -> float:
    if number.startswith("-"):
        raise WrongUse(f"The {what} {text!r}: {number} is negative; give a number above 0.")
    if not _NUMBER.fullmatch(number):
        raise WrongUse(f"The {what} {text!r}: {part!r} cannot be read ({number!r} is no number); write 0.005 or 5e-3.")
    rate = float(number)
    if not math.isfinite(rate):
        raise WrongUse(f"The {what} {text!r}: {number} is too large.")
    return rate


def _within(stages: list[Stage], start: int, steps: int) -> list[Stage]:
    found: list[Stage] = []
    for stage in stages:
        if stage.until <= start or (found and found[-1].until >= steps):
            continue
        found.append(Stage(stage.rate, min(stage.until, steps)))
    return found


def last_step(texts: list[str], steps: int) -> int:
    """Where a run ends: after `steps`, or with the last stage of the longest of its rate texts, as in A1111."""
    return max(parse_stages(text, steps)[-1].until for text in texts)


def staged(text: str, steps: int, *, what: str = "learning rate") -> Rate:
    """The rate of each step by a rate text; after the last stage its rate goes on."""
    stages = parse_stages(text, steps, what=what)

    def rate(step: int) -> float:
        return next((s.rate for s in stages if step <= s.until), stages[-1].rate)

    return rate


def scheduled(text: str, *, shape: str, steps: int, warmup: int = 0, floor: float = 0.1, cycles: int = 1) -> Rate:
    """The rate of each step.

    Args:
        steps: of the run.
        cycles: of restarts.
        text: a rate text; shapes other than ``constant`` take one number.
        shape: ``constant``, ``linear``, ``cosine`` (Loshchilov & Hutter 2017, arXiv 1608.03983), ``restarts`` (the
            same, `cycles` times) or ``one-cycle`` (Smith & Topin 2018, arXiv 1708.07120: up over the first tenth at
            least, then a cosine down to 1 / 10,000).
        warmup: steps of linear rise in front.
        floor: where linear, cosine and restarts end, as a share of the rate.
    """
    base = staged(text, steps)
    if shape == "one-cycle":
        rise, floor = max(warmup, math.ceil(steps / 10)), 1e-4
    else:
        rise = warmup
    length = max(1, steps - rise)

    def rate(step: int) -> float:
        rising = min(1.0, step / rise) if rise else 1.0
        progress = min(1.0, max(0.0, (step - rise) / length))
        return base(step) * rising * (floor + (1 - floor) * _shape(shape, progress, cycles))

    return rate


def _shape(shape: str, progress: float, cycles: int) -> float:
    """Share of the way between floor (0) and rate (1); `progress` runs from 0 to 1."""
    if shape == "constant":
        return 1.0
    if shape == "linear":
        return 1 - progress
    if shape == "restarts":
        progress = 1.0 if progress == 1 else progress * cycles % 1.0
    return 0.5 * (1 + math.cos(math.pi * progress))
