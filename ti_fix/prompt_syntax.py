"""What a WebUI does to a prompt before it is cut into chunks: networks, AND, prompt editing, alternation.

In the hosts' order: ``<lora:name:1>`` is taken out, the rest is split at AND into prompts of their own with a weight
each, and of each one the editing ``[from:to:when]`` and the alternation ``[a|b]`` give one text per stretch of steps.
The rules were read from AUTOMATIC1111 1.10.1 and Forge and written anew; `prompt` goes on from there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_NETWORK = re.compile(r"<(\w+):([^>]+)>")
_AND = re.compile(r"\bAND\b")
_WEIGHT = re.compile(r"^(.*?)(?:\s*:\s*([-+]?(?:\d+\.?|\d*\.\d+)))?\s*$", re.DOTALL)
_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?)\s*")
_PLAIN = re.compile(r"(?:[^\\\[\]():|]|\\.)+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A text and the steps that it guides.

    Attributes:
        first, last: steps, counted from 1.
        text: without editing, alternation and networks; emphasis and BREAK are still in it.
    """

    first: int
    last: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """What stands between two ANDs.

    Attributes:
        weight: of its guidance.
        stages: its texts in the order of the steps.
    """

    weight: float
    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Syntax:
    """A prompt taken apart.

    Attributes:
        networks: what stood in ``<…>``: (kind, arguments), as ``("lora", "name:1")``.
        branches: the prompts joined by AND, at least one.
    """

    networks: tuple[tuple[str, str], ...]
    branches: tuple[Branch, ...]


def parse_syntax(prompt: str, steps: int = 20) -> Syntax:
    """Take a prompt apart.

    Args:
        prompt: as it is typed.
        steps: of the generation; fractions in prompt editing are parts of it.
    """
    networks = tuple((m.group(1), m.group(2)) for m in _NETWORK.finditer(prompt))
    texts = _AND.split(_NETWORK.sub("", prompt))
    return Syntax(networks=networks, branches=tuple(_branch(text, steps) for text in texts))


def _branch(text: str, steps: int) -> Branch:
    found = _WEIGHT.match(text)
    if found is None or found.group(2) is None:
        return Branch(weight=1.0, stages=_stages(text if found is None else found.group(1), steps))
    return Branch(weight=float(found.group(2)), stages=_stages(found.group(1), steps))


def _stages(text: str, steps: int) -> tuple[Stage, ...]:
    try:
        parsed = _Parser(text, steps).whole()
    except RecursionError:  # hundreds of brackets within each other
        parsed = None
    if parsed is None:  # brackets that close nothing: the hosts take the text as it is
        return (Stage(first=1, last=steps, text=text),)
    ends = sorted({steps, *(end for part in parsed for end in part.ends(steps))})
    starts = [1, *(end + 1 for end in ends[:-1])]
    return tuple(
        Stage(first=first, last=last, text="".join(part.at(last) for part in parsed))
        for first, last in zip(starts, ends, strict=True)
    )


@dataclass(frozen=True, slots=True)
class _Text:
    text: str

    def at(self, step: int) -> str:  # noqa: ARG002 - the same at every step
        return self.text

    def ends(self, steps: int) -> Iterator[int]:  # noqa: ARG002
        yield from ()


@dataclass(frozen=True, slots=True)
class _Edited:
    """``[before:after:when]``."""

    before: tuple[_Part, ...]
    after: tuple[_Part, ...]
    when: int

    def at(self, step: int) -> str:
        return "".join(part.at(step) for part in (self.before if step <= self.when else self.after))

    def ends(self, steps: int) -> Iterator[int]:
        yield from [self.when] if self.when >= 1 else []
        yield from (end for part in (*self.before, *self.after) for end in part.ends(steps))


@dataclass(frozen=True, slots=True)
class _Alternating:
    """``[a|b|c]``: another one at each step."""

    options: tuple[tuple[_Part, ...], ...]

    def at(self, step: int) -> str:
        return "".join(part.at(step) for part in self.options[(step - 1) % len(self.options)])

    def ends(self, steps: int) -> Iterator[int]:
        yield from range(1, steps + 1)


_Part = _Text | _Edited | _Alternating


class _Parser:
    """A prompt's brackets, from the left. A method gives None, and leaves the place alone, where its form is not met.

    Args:
        text: the prompt.
        steps: see `parse_syntax`.
    """

    def __init__(self, text: str, steps: int) -> None:
        self._text, self._steps, self._place = text, steps, 0

    def whole(self) -> list[_Part] | None:
        """All of it; brackets without a partner are plain text."""
        parts: list[_Part] = []
        while self._place < len(self._text):
            parts += self._parts()
            if self._place < len(self._text):
                if self._text[self._place] not in "[]():":
                    return None
                parts.append(self._take())
        return parts

    def _take(self) -> _Text:
        self._place += 1
        return _Text(self._text[self._place - 1])

    def _parts(self) -> list[_Part]:
        """As much as forms a prompt: text, emphasis, editing, alternation."""
        parts: list[_Part] = []
        while True:
            plain = _PLAIN.match(self._text, self._place)
            if plain:
                self._place = plain.end()
                parts.append(_Text(plain.group()))
                continue
            found = self._emphasis() or self._square()
            if found is None:
                return parts
            parts += found

    def _next(self) -> str:
        return self._text[self._place : self._place + 1]

    def _emphasis(self) -> list[_Part] | None:
        """``(a)`` and ``(a:b)``; what is inside may be edited."""
        if self._next() != "(":
            return None
        start, parts = self._place, [self._take(), *self._parts()]
        if self._next() == ":":
            parts += [self._take(), *self._parts()]
        if self._next() == ")":
            return [*parts, self._take()]
        self._place = start
        return None

    def _square(self) -> list[_Part] | None:
        """``[a:b:when]``, ``[b:when]``, ``[a|b]`` or ``[a]``, which only weighs."""
        if self._next() != "[":
            return None
        start = self._place
        self._place += 1
        options = [self._parts()]
        closing = self._next()
        found = self._editing(options[0]) if closing == ":" else self._alternation(options) if closing == "|" else None
        if closing == "]":
            found = [_Text("["), *options[0], self._take()]
        if found is None:
            self._place = start
        return found

    def _editing(self, first: list[_Part]) -> list[_Part] | None:
        self._place += 1
        when = self._number()
        if when is not None:
            return [_Edited((), tuple(first), when)]
        second = self._parts()
        if self._next() != ":":
            return None
        self._place += 1
        when = self._number()
        return None if when is None else [_Edited(tuple(first), tuple(second), when)]

    def _alternation(self, options: list[list[_Part]]) -> list[_Part] | None:
        while self._next() == "|":
            self._place += 1
            options.append(self._parts())
        if self._next() != "]":
            return None
        self._place += 1
        return [_Alternating(tuple(map(tuple, options)))]

    def _number(self) -> int | None:
        """The step at the end of an editing, with its closing bracket."""
        found = _NUMBER.match(self._text, self._place)
        if found is None or self._text[found.end() : found.end() + 1] != "]":
            return None
        self._place = found.end() + 1
        number = found.group(1)
        value = float(number) * self._steps if "." in number else float(number)
        return min(self._steps, int(value))
