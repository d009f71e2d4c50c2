"""From a prompt as users of a WebUI type it to chunks of 77 token ids: emphasis, BREAK, embeddings, padding.

The rules are those of the WebUIs, read from AUTOMATIC1111 1.10.1 and Forge and written anew. Two of their slips are
not kept: a BREAK inside brackets still breaks, and text that moves to the next chunk takes its embeddings along.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ti_fix.embedding import CLIP_L, MAX_VECTORS
from ti_fix.errors import WrongUse

BRACKET_WEIGHT = 1.1
"""What one pair of round brackets multiplies by, and one pair of square brackets divides by."""

COMMA_BACKTRACK = 20
"""Where a chunk is full, up to this many tokens behind its last comma move on to the next one (the hosts' default)."""

_ROOM = MAX_VECTORS
_BOS, _EOS = CLIP_L.bos_id or 0, CLIP_L.eos_id or 0
_SYNTAX = re.compile(r"\\[()\[\]\\]?|[()\[\]]|:\s*([+-]?(?:\d+\.?\d*|\.\d+))\s*\)")
_BREAK = re.compile(r"\s*\bBREAK\b\s*")


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of prompt with one weight; `text` is None where the user wrote BREAK."""

    text: str | None
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Splice:
    """Vectors that stand in for token ids.

    Attributes:
        start: position of the first one among the chunk's 77.
        rows: positions taken.
        trigger: whose vectors.
    """

    start: int
    rows: int
    trigger: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """One pass through a text encoder.

    Attributes:
        ids: 77 token ids, padded with the end token; 0 where vectors are spliced in.
        weights: 77 factors for the encoder's output.
        splices: the vectors in it.
    """

    ids: tuple[int, ...]
    weights: tuple[float, ...]
    splices: tuple[Splice, ...] = ()

    @property
    def end(self) -> int:
        """Position of the first end token, where the pooled state is read."""
        return self.ids.index(_EOS)

    def padded(self, pad_id: int) -> tuple[int, ...]:
        """The ids with this encoder's own padding behind the first end token."""
        return self.ids[: self.end + 1] + (pad_id,) * (len(self.ids) - self.end - 1)


def parse_emphasis(prompt: str) -> list[Span]:
    r"""Split a prompt at changes of weight and at BREAK.

    ``(a)`` is 1.1, ``[a]`` is 1 / 1.1, ``(a:1.3)`` is 1.3, brackets multiply, open ones close at the end of the
    prompt; ``\(`` is a plain bracket.
    """
    texts = _Weighted()
    position = 0
    for match in _SYNTAX.finditer(prompt):
        texts.add(prompt[position : match.start()])
        texts.take(match.group(), match.group(1))
        position = match.end()
    texts.add(prompt[position:])
    return _merge(texts.texts, texts.finished())


@dataclass(slots=True)
class _Weighted:
    """Pieces of a prompt with their weights so far, and where the brackets that are still open began."""

    texts: list[str | None] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    round_open: list[int] = field(default_factory=list)
    square_open: list[int] = field(default_factory=list)

    def add(self, text: str) -> None:
        for i, part in enumerate(_BREAK.split(text)):
            self.texts += ([None] if i else []) + ([part] if part else [])
        self.weights += [1.0] * (len(self.texts) - len(self.weights))

    def take(self, sign: str, number: str | None) -> None:
        """A bracket, a closing weight, or a backslash with what it protects."""
        if sign == "(":
            self.round_open.append(len(self.texts))
        elif sign == "[":
            self.square_open.append(len(self.texts))
        elif sign[0] in ":)" and self.round_open:
            self._close(self.round_open.pop(), BRACKET_WEIGHT if number is None else float(number))
        elif sign == "]" and self.square_open:
            self._close(self.square_open.pop(), 1 / BRACKET_WEIGHT)
        else:
            self.add(sign.removeprefix("\\"))

    def finished(self) -> list[float]:
        for opened in self.round_open:
            self._close(opened, BRACKET_WEIGHT)
        for opened in self.square_open:
            self._close(opened, 1 / BRACKET_WEIGHT)
        return self.weights

    def _close(self, opened: int, factor: float) -> None:
        self.weights[opened:] = [w * factor for w in self.weights[opened:]]


def _merge(texts: Sequence[str | None], weights: Sequence[float]) -> list[Span]:
    """Join neighbours of equal weight: tokens must not be cut where the weight does not change."""
    spans: list[Span] = []
    for text, weight in zip(texts, weights, strict=True):
        last = spans[-1] if spans else None
        if text is None:
            spans.append(Span(None))
        elif last is not None and last.text is not None and last.weight == weight:
            spans[-1] = Span(last.text + text, weight)
        else:
            spans.append(Span(text, weight))
    return spans


def split_prompt(prompt: str, rows: Mapping[str, int], encode: Callable[[str], list[int]]) -> tuple[Chunk, ...]:
    """The chunks of a prompt, at least one.

    Args:
        prompt: the text as the user typed it.
        rows: trigger -> positions that its vectors take.
        encode: text -> token ids without start and end.

    Raises:
        WrongUse: an embedding that the prompt names has more vectors than one chunk has room for.
    """
    triggers = sorted(((encode(t), t) for t in rows), key=lambda pair: len(pair[0]), reverse=True)
    writer = _Writer(comma=encode(",")[0])
    for span in parse_emphasis(prompt):
        if span.text is None:
            writer.next_chunk()
            continue
        ids, position = encode(span.text), 0
        while position < len(ids):
            found = next(((t, n) for n, t in triggers if n and ids[position : position + len(n)] == n), None)
            # the hosts move text on before they look for an embedding, so the order of these two matters
            writer.make_room(ids[position])
            if found is None:
                writer.add_token(ids[position], span.weight)
                position += 1
            else:
                trigger, spelled = found
                if rows[trigger] > _ROOM:
                    raise WrongUse(
                        f"“{trigger}” has {rows[trigger]} vectors; {_ROOM} fit one prompt chunk. Use fewer vectors."
                    )
                writer.add_vectors(trigger, rows[trigger], span.weight)
                position += len(spelled)
    return writer.finish()


@dataclass(slots=True)
class _Writer:
    """Fills chunk after chunk; splices count from the chunk's first free position until the start token is added."""

    comma: int
    ids: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    splices: list[Splice] = field(default_factory=list)
    last_comma: int | None = None
    chunks: list[Chunk] = field(default_factory=list)

    def make_room(self, token: int) -> None:
        """Start a new chunk where this one is full, at the last comma if that is near."""
        if token == self.comma:
            self.last_comma = len(self.ids)
        if len(self.ids) < _ROOM:
            return
        if token != self.comma and self.last_comma is not None and _ROOM - self.last_comma <= COMMA_BACKTRACK:
            self._move_on(self.last_comma + 1)
        else:
            self.next_chunk()

    def add_token(self, token: int, weight: float) -> None:
        self.ids.append(token)
        self.weights.append(weight)

    def add_vectors(self, trigger: str, rows: int, weight: float) -> None:
        """Reserve positions for an embedding, in the next chunk if they do not fit this one."""
        if len(self.ids) + rows > _ROOM:
            self.next_chunk()
        self.splices.append(Splice(len(self.ids), rows, trigger))
        self.ids += [0] * rows
        self.weights += [weight] * rows

    def next_chunk(self) -> None:
        missing = _ROOM - len(self.ids)
        self.chunks.append(
            Chunk(
                (_BOS, *self.ids, *[_EOS] * (missing + 1)),
                (1.0, *self.weights, *[1.0] * (missing + 1)),
                tuple(Splice(s.start + 1, s.rows, s.trigger) for s in self.splices),
            )
        )
        self.ids, self.weights, self.splices, self.last_comma = [], [], [], None

    def finish(self) -> tuple[Chunk, ...]:
        if self.ids or not self.chunks:
            self.next_chunk()
        return tuple(self.chunks)

    def _move_on(self, cut: int) -> None:
        """Close the chunk before `cut` and begin the next one with what stood behind it."""
        ids, weights = self.ids[cut:], self.weights[cut:]
        moved = [Splice(s.start - cut, s.rows, s.trigger) for s in self.splices if s.start >= cut]
        self.ids, self.weights = self.ids[:cut], self.weights[:cut]
        self.splices = [s for s in self.splices if s.start < cut]
        self.next_chunk()
        self.ids, self.weights, self.splices = ids, weights, moved


EMPTY_CHUNK = Chunk((_BOS,) + (_EOS,) * (_ROOM + 1), (1.0,) * (_ROOM + 2))
"""What fills up a prompt that is shorter than others of its batch."""
