"""For other extensions: read a layout of their own, find a defect of their own, hear what was loaded.

See docs/extensions.md. Names that are not in `__all__` may change at any time; a change of what these do raises
`API_VERSION`. Whatever an added function raises is logged once and never reaches the host.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

from torch import Tensor

from ti_fix.additions import Added, EmbeddingLoaded, Event, FileJudged, Listener
from ti_fix.embedding import Embedding, Family, Finding
from ti_fix.formats.added import LAYOUTS, Layout
from ti_fix.formats.stored import StoredTensor
from ti_fix.repair.defects import ADDED_DEFECTS, Defect, Specimen, Target

__all__ = [
    "API_VERSION",
    "Defect",
    "Embedding",
    "EmbeddingLoaded",
    "Event",
    "Family",
    "FileJudged",
    "Finding",
    "Layout",
    "Specimen",
    "StoredTensor",
    "Target",
    "add_listener",
    "register_defect",
    "register_layout",
]

API_VERSION = 1

T = TypeVar("T")
Undo = Callable[[], None]

log = logging.getLogger("ti_fix")

LISTENERS: Added[Listener] = Added()


def register_layout(layout: Layout) -> Undo:
    """Let files be read that ti_fix does not know; asked before ti_fix's own layouts, but not for plain SDXL files.

    Args:
        layout: its `read` gets every tensor of a file by its dotted name, unread, and returns the blocks of a usable
            embedding, or None for a file that is not its own.

    Returns:
        a function that takes it out again.
    """
    nothing: Callable[[Mapping[str, StoredTensor]], Mapping[str, Tensor] | None] = lambda _: None  # noqa: E731
    return LAYOUTS.add(replace(layout, read=_guarded(layout.read, nothing, f"the layout {layout.name!r}")))


def register_defect(defect: Defect) -> Undo:
    """Let a kind of damage be found, and mended, behind those that ti_fix knows.

    Args:
        defect: `find` gets a `Specimen` (``.embedding``, ``.target.family``) and returns findings; `fix` returns the
            mended embedding. A finding of severity ``error`` keeps the embedding out.

    Returns:
        a function that takes it out again.
    """
    what = f"the defect {defect.code!r}"
    none: Callable[[Specimen], Iterable[Finding]] = lambda _: ()  # noqa: E731
    find = _guarded(lambda specimen: tuple(defect.find(specimen)), none, what)
    fix = defect.fix and _guarded(defect.fix, lambda specimen: specimen.embedding, what)
    return ADDED_DEFECTS.add(replace(defect, find=find, fix=fix))


def add_listener(listener: Listener) -> Undo:
    """Be told of each `FileJudged` and `EmbeddingLoaded`, in the thread in which the host reads its embeddings.

    Returns:
        a function that takes it out again.
    """
    return LISTENERS.add(_guarded(listener, lambda _: None, "a listener"))


def tell(event: Event) -> None:
    """Tell every listener; ti_fix itself calls this."""
    for listener in LISTENERS:
        listener(event)


def clear() -> None:
    """Take out all that was added; ti_fix calls this when the host unloads its scripts."""
    for added in (LAYOUTS, ADDED_DEFECTS, LISTENERS):
        added.clear()


def _guarded(function: Callable[..., T], otherwise: Callable[..., T], what: str) -> Callable[..., T]:
    """The function without its exceptions; the first one is logged with its trace."""
    return partial(_call, function, otherwise, what, [])


def _call(function: Callable[..., T], otherwise: Callable[..., T], what: str, failed: list[bool], *given: object) -> T:
    try:
        return function(*given)
    except Exception:
        if not failed:
            failed.append(True)
            log.exception("%s of another extension failed; ti_fix goes on without it:", what)
        return otherwise(*given)
