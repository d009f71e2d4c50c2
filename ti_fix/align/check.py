"""What a check is, what it says, and the report that all of them make together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from ti_fix.embedding import Finding, Severity
from ti_fix.text_model import Change, TextEncoder, TextModel

Light = Literal["green", "yellow", "red"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """What one check says about one encoder, or about the whole model.

    Attributes:
        code, title: those of the check.
        severity: None where all is as it should be.
        expected, found: in a few words or numbers.
        message: one or two plain sentences; empty where all is as it should be.
        place: of the encoder concerned, empty for the whole model.
        changes: what mends it; empty where nothing can or has to.
        repaired: what is found after those changes; empty before, or where they do not help.
    """

    code: str
    title: str
    severity: Severity | None
    expected: str
    found: str
    message: str = ""
    place: str = ""
    changes: tuple[Change, ...] = ()
    repaired: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "code": self.code,
            "title": self.title,
            "place": self.place or None,
            "severity": self.severity or "ok",
            "expected": self.expected,
            "found": self.found,
            "repaired": self.repaired or None,
            "message": self.message,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that a model's text side is asked.

    Attributes:
        code: stable name.
        title: for people.
        run: the outcomes, at most one for each encoder or one for the model; none where it does not apply.
        first: the other checks look at the model as this one has put it right.
        costly: it passes over all numbers of a table or runs the encoder.
        once: what it finds depends on the file and the program's tokenizers alone, so that one look at a file's version
            is enough.
    """

    code: str
    title: str
    run: Callable[[Check, TextModel], Iterable[Outcome]]
    first: bool = False
    costly: bool = False
    once: bool = False

    def __call__(self, model: TextModel) -> list[Outcome]:
        """Run it."""
        return list(self.run(self, model))

    def good(self, expected: str, found: str, encoder: TextEncoder | None = None) -> Outcome:
        """All is as it should be."""
        place = encoder.place if encoder else ""
        return Outcome(code=self.code, title=self.title, severity=None, expected=expected, found=found, place=place)

    def bad(
        self,
        severity: Severity,
        expected: str,
        found: str,
        message: str,
        encoder: TextEncoder | None = None,
        changes: Sequence[Change] = (),
    ) -> Outcome:
        """Something is not."""
        return replace(self.good(expected, found, encoder), severity=severity, message=message, changes=tuple(changes))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Report:
    """All outcomes for one model.

    Attributes:
        before: the model as it is.
        after: as it is once every change is made; the same object where nothing has to change.
        outcomes: in the order of the checks.
        changes: every change, in the order in which they are made.
    """

    before: TextModel
    after: TextModel
    outcomes: tuple[Outcome, ...]
    changes: tuple[Change, ...]

    @property
    def light(self) -> Light:
        """Green where there are at most notes, yellow with warnings, red with errors."""
        worst = {o.severity for o in self.outcomes}
        return "red" if "error" in worst else "yellow" if "warning" in worst else "green"

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is not as it should be, in the program's common form."""
        keys = {e.place: e.spec.key for e in self.before.encoders}
        return tuple(
            Finding(
                code=o.code,
                severity=o.severity,
                message=o.message,
                encoder=keys.get(o.place),
                repaired=f"{o.title}: {o.repaired}." if o.repaired else "",
            )
            for o in self.outcomes
            if o.severity
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "model": self.before.name,
            "family": self.before.family.name,
            "light": self.light,
            "encoders": [_encoder_facts(e) for e in self.before.encoders],
            "checks": [o.as_dict() for o in self.outcomes],
        }


def _encoder_facts(encoder: TextEncoder) -> Mapping[str, Any]:
    return {
        "key": encoder.spec.key,
        "place": encoder.place,
        "rows": encoder.table.shape[0],
        "width": encoder.table.shape[1],
        "dtype": str(encoder.table.dtype).removeprefix("torch."),
        "added_tokens": dict(encoder.added),
    }


def examine(model: TextModel, checks: Iterable[Check]) -> Report:
    """Run checks, and see whether what they would change helps.

    The model stays as it is; `Report.after` is the changed one.
    """
    with torch.no_grad():
        return _examine(model, tuple(checks))


def _examine(model: TextModel, checks: tuple[Check, ...]) -> Report:
    subject, early = model, []
    for check in checks:
        if check.first:
            early += [c for o in check(subject) for c in o.changes]
            subject = model.changed(early)
    found = [(check, check(model if check.first else subject)) for check in checks]
    changes = (*early, *(c for check, outcomes in found if not check.first for o in outcomes for c in o.changes))
    after = model.changed(changes)
    outcomes = [o for check, before in found for o in _verified(check, before, after)]
    return Report(before=model, after=after, outcomes=tuple(outcomes), changes=changes)


def _verified(check: Check, before: list[Outcome], after: TextModel) -> list[Outcome]:
    """The outcomes with what is found after the changes, where those have helped."""
    if not any(o.changes for o in before):
        return before
    again = {o.place: o for o in check(after)}
    mended = {place: o.found for place, o in again.items() if o.severity is None}
    # a check that no longer applies (the added tokens are gone) has nothing left to complain of
    fallback = {o.place: "" if o.place in again else "gone" for o in before}
    return [replace(o, repaired=mended.get(o.place, fallback[o.place])) if o.changes else o for o in before]
