"""Which pages there are. A page is a module of this folder with ``build(desk)``; one that is not there is left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

ORDER = ("files", "train", "convert", "evaluate", "model")
"""As a first-timer goes: what is there, make one, bring one over, judge it, look at the model."""


def pages() -> Iterator[tuple[str, ModuleType]]:
    """Name and module of each page, in order; imports Gradio."""
    for name in ORDER:
        if _exists(f"ti_fix.ui.{name}"):
            yield name, import_module(f"ti_fix.ui.{name}")


def page_texts() -> Iterator[Mapping[str, str]]:
    """The words of each page that keeps a table of its own, ``NAME_words.TEXTS``; knows no Gradio."""
    for name in ORDER:
        if _exists(f"ti_fix.ui.{name}_words"):
            yield import_module(f"ti_fix.ui.{name}_words").TEXTS


def _exists(module: str) -> bool:
    return find_spec(module) is not None
