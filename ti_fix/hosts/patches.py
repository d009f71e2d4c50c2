"""Functions of a host, wrapped and given back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Around = Callable[..., Any]
"""Called with the original function and the arguments of the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wrapped:
    owner: Any
    name: str
    original: Callable[..., Any]
    replacement: Callable[..., Any]

    @property
    def on_top(self) -> bool:
        return getattr(self.owner, self.name) is self.replacement


class Patches:
    """The wrappers that one part of us has put around functions of the host.

    Another extension may wrap ours; taking ours out would then take its wrapper out too, so ours stays and lets every
    call through until it is wanted again.
    """

    def __init__(self) -> None:
        self._wrapped: dict[tuple[int, str], _Wrapped] = {}
        self._active = False

    def wrap(self, owner: Any, name: str, around: Around) -> None:
        """Put `around` around a function of a class or module; a second call for the same one only wakes ours."""
        self._active = True
        if (id(owner), name) in self._wrapped:
            return
        original = getattr(owner, name)

        @functools.wraps(original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs) if self._active else original(*args, **kwargs)

        setattr(owner, name, replacement)
        each = _Wrapped(owner=owner, name=name, original=original, replacement=replacement)
        self._wrapped[id(owner), name] = each

    def undo(self) -> None:
        """Give back what is still ours to give."""
        self._active = False
        for place, each in list(self._wrapped.items()):
            if each.on_top:
                setattr(each.owner, each.name, each.original)
                del self._wrapped[place]

    def original(self, owner: Any, name: str) -> Callable[..., Any]:
        """The host's own function, below our wrapper."""
        each = self._wrapped.get((id(owner), name))
        found: Callable[..., Any] = each.original if each else getattr(owner, name)
        return found
