"""Changes made in a living model, and taken back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from ti_fix.text_model import Change, Part, TextEncoder, TextModel


@dataclass(slots=True)
class Applied:
    """What was written into a living model, with the way back.

    Attributes:
        model: the model as it is now.
        skipped: changes that concern a part that its adapter cannot write.
    """

    model: TextModel
    skipped: list[Change] = field(default_factory=list)
    _undo: list[tuple[TextEncoder, Part, Any]] = field(default_factory=list)

    @classmethod
    def to(cls, model: TextModel, changes: Iterable[Change]) -> Applied:
        """Make the changes; if one fails, those before it are taken back.

        Args:
            model: from an adapter of a living model; a part that it cannot write is skipped.
            changes: as a report lists them.
        """
        applied = cls(model)
        with ExitStack() as undoing:
            undoing.callback(applied.undo)
            for change in changes:
                applied._make(change)
            undoing.pop_all()  # all went well, so all stays
        return applied

    def _make(self, change: Change) -> None:
        if not change.place:
            self.model = change.on(self.model)
            return
        encoder = self.model.encoder(change.place)
        if change.part not in encoder.write:
            self.skipped.append(change)
            return
        before, after = getattr(encoder, change.part), change.make(encoder)
        if after is not before:
            self._undo.append((encoder, change.part, before))
            encoder.write[change.part](after)
        self.model = change.on(self.model)

    def undo(self) -> None:
        """Put everything back, the last change first. Doing it twice changes nothing more."""
        while self._undo:
            encoder, part, before = self._undo.pop()
            encoder.write[part](before)


@contextmanager
def repaired(model: TextModel, changes: Iterable[Change]) -> Iterator[TextModel]:
    """The model with these changes while open; on exit everything is as it was."""
    applied = Applied.to(model, changes)
    try:
        yield applied.model
    finally:
        applied.undo()
