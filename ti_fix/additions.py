"""What others may add to ti_fix while it runs, and what they are told; `ti_fix.api` is how they do it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

T = TypeVar("T")

Action = Literal["pass", "register", "complete", "skip", "refuse"]
"""What is done with a file: left to the host, registered, completed at its first use, listed as skipped, left out."""


class Added(Generic[T]):
    """Things that were added, in their order.

    Attributes:
        version: grows with each change, for whoever remembers what came of them.
    """

    def __init__(self) -> None:
        self.version = 0
        self._items: tuple[T, ...] = ()

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __bool__(self) -> bool:
        return bool(self._items)

    def add(self, item: T) -> Callable[[], None]:
        """Add one at the end; the result takes it out again and may be called twice."""
        self._replace((*self._items, item))
        return lambda: self._replace(tuple(each for each in self._items if each is not item))

    def clear(self) -> None:
        """Take all of them out."""
        self._replace(())

    def _replace(self, items: tuple[T, ...]) -> None:
        if items != self._items:
            self._items = items
            self.version += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FileJudged:
    """It was decided what to do with a file, each time that the host reads its folder.

    Attributes:
        path: the file.
        action: what is done with it.
        label: what the infotext will say (``repaired``, ``converted``), empty for nothing.
        line: what the console says, empty for a healthy file.
    """

    path: Path
    action: Action
    label: str
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingLoaded:
    """An embedding can be called by prompts now.

    Attributes:
        name: its trigger.
        path: the file that it came from, None for one inside a LoRA or a checkpoint.
        label: as in `FileJudged`; empty where the host loaded it by itself.
        vectors: how many tokens of a prompt it takes.
    """

    name: str
    path: Path | None
    label: str
    vectors: int


Event = FileJudged | EmbeddingLoaded
Listener = Callable[[Event], object]
