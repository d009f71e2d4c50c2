"""The checks of a model that was just loaded: quick, silent when all is well, safe repairs made in memory."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from ti_fix.align.change import Applied
from ti_fix.align.check import Check, Outcome, examine
from ti_fix.text_model import Change, TextModel

KEPT = 64
"""Files of which it is remembered what is sound about them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What was seen when a model was loaded.

    Attributes:
        milliseconds: that it took.
        lines: one for each finding.
        mended: what was repaired in memory, as it was found.
    """

    milliseconds: float
    lines: tuple[str, ...]
    mended: tuple[Outcome, ...]


class AtLoad:
    """Looks at each model as it is loaded.

    Args:
        checks: all of them; those that run an encoder are left out, and some are made once per file.
    """

    def __init__(self, checks: Iterable[Check]) -> None:
        self._checks = [check for check in checks if not check.costly or check.once]
        self._once = frozenset(check.code for check in self._checks if check.once)
        self._sound: dict[Hashable, frozenset[str]] = {}
        self._applied: WeakKeyDictionary[Any, Applied] = WeakKeyDictionary()
        self._looked: WeakKeyDictionary[Any, Looked] = WeakKeyDictionary()

    def loaded(self, model: TextModel, owner: Any, stamp: Hashable = None) -> Looked:
        """Look at a model and put right what can be put right without a doubt.

        Args:
            model: from an adapter of the running host.
            owner: the host's object, which may be the one of an earlier load with other weights.
            stamp: identifies its file and that file's version; None where there is none.
        """
        started = time.perf_counter()
        self._applied.pop(owner, None)  # other weights: what was there before is not to come back
        sound = self._sound.get(stamp, frozenset())
        report = examine(model, [check for check in self._checks if check.code not in sound])
        wrong = [o for o in report.outcomes if o.severity in ("warning", "error")]
        self._remember(stamp, self._once - {o.code for o in wrong})
        changes = [change for o in wrong if o.repaired for change in o.changes]
        skipped: list[Change] = []
        if changes:
            self._applied[owner] = Applied.to(model, changes)
            skipped = self._applied[owner].skipped
        mended = [o for o in wrong if o.repaired and not any(c in skipped for c in o.changes)]
        looked = Looked(
            milliseconds=1000 * (time.perf_counter() - started),
            lines=tuple(_line(model, o, o in mended) for o in wrong),
            mended=tuple(mended),
        )
        self._looked[owner] = looked
        return looked

    def looked(self, owner: Any) -> Looked | None:
        """What was seen when this model was loaded; None where it was not looked at."""
        return self._looked.get(owner) if owner is not None else None

    def give_back(self) -> None:
        """Put everything in all models back as it was."""
        for applied in list(self._applied.values()):
            applied.undo()
        self._applied.clear()

    def _remember(self, stamp: Hashable, sound: frozenset[str]) -> None:
        """Which of the checks that are made once per file found nothing."""
        if stamp is not None:
            self._sound.pop(stamp, None)
            self._sound[stamp] = sound
            if len(self._sound) > KEPT:
                del self._sound[next(iter(self._sound))]


def _line(model: TextModel, outcome: Outcome, mended: bool) -> str:
    encoder = f" ({model.encoder(outcome.place).spec.title})" if outcome.place else ""
    state = f"repaired: {outcome.repaired}" if mended else outcome.message
    return f"{model.name}: {outcome.title}{encoder}: {outcome.found}, expected {outcome.expected}; {state}"
