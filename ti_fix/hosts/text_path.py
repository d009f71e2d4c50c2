"""Prompts through a WebUI's own text encoders, differentiable in vectors that stand in no file.

Both kinds of WebUI cut a prompt with ``process_texts``, name the vectors to splice in ``fixes``, and encode chunks of
77 tokens with ``process_tokens``. Their outermost calls are left alone: they write the names of embeddings into the
parameters of the next picture, and keep conditionings whose key does not hold the vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ti_fix.errors import WrongUse
from ti_fix.hosts.borrow import attribute

Vectors = Mapping[str, Mapping[str, Tensor]]
"""Trigger -> encoder key -> (rows, width)."""

KEPT_PROMPTS = 4096


class Placeholder:
    """What a host needs to know of an embedding; `vec` is filled in anew for each pass.

    Attributes:
        vec: encoder key -> (rows, width).
        vectors: how many places it takes.
    """

    filename = hash = shorthash = step = sd_checkpoint = sd_checkpoint_name = None

    def __init__(self, name: str, vectors: int) -> None:
        self.name, self.vectors = name, vectors
        self.vec: dict[str, Tensor] = {}
        self.shape = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostEncoder:
    """One text encoder of a WebUI.

    Attributes:
        key: ``clip_l`` or ``clip_g``.
        engine: has ``process_texts``, ``process_tokens``, ``tokenize`` and ``empty_chunk``.
        slot: holds ``fixes``, which the next pass reads and clears.
        database: holds ``ids_lookup``, by which triggers are found in prompts.
        width: numbers per vector.
        device: where the host runs it.
        pooled: whether its pooled state belongs to the conditioning.
    """

    key: str
    engine: Any
    slot: Any
    database: Any
    width: int
    device: Callable[[], torch.device]
    pooled: bool


class TextPath:
    """The text encoders of a loaded model.

    Args:
        encoders: in the order in which their states are joined.
    """

    def __init__(self, encoders: Sequence[HostEncoder]) -> None:
        self.encoders = tuple(encoders)
        self._placeholders: dict[tuple[str, int], Placeholder] = {}
        self._split: dict[tuple[int, str, tuple[str, ...]], list[Any]] = {}

    def encode(self, prompts: Sequence[str], tensors: Vectors) -> tuple[Tensor, Tensor | None]:
        """Context (batch, 77 * most chunks, joined width), and the pooled state (batch, width) of each first chunk.

        Raises:
            WrongUse: vectors of another width than the model's.
        """
        named = [self._filled(trigger, blocks) for trigger, blocks in tensors.items()]
        try:
            encoded = [self._encode(place, prompts, named) for place in range(len(self.encoders))]
        finally:
            for placeholder in named:
                placeholder.vec = {}
        context = torch.cat([hidden for hidden, _ in encoded], dim=-1)
        return context, next((pooled for _, pooled in encoded if pooled is not None), None)

    def _filled(self, trigger: str, blocks: Mapping[str, Tensor]) -> Placeholder:
        rows = max((len(block) for block in blocks.values()), default=0)
        found = self._placeholders.setdefault((trigger, rows), Placeholder(trigger, rows))
        for encoder in self.encoders:
            block = blocks.get(encoder.key)
            if block is None:
                block = torch.empty(0, encoder.width)
            if block.shape[1] != encoder.width:
                raise WrongUse(
                    f"The vectors of {trigger!r} for {encoder.key} are {block.shape[1]} wide, this model's are "
                    f"{encoder.width}. Use an embedding made for this kind of model, or convert it."
                )
            found.vec[encoder.key] = block.to(encoder.device())
        return found

    def _encode(self, place: int, prompts: Sequence[str], named: Sequence[Placeholder]) -> tuple[Tensor, Tensor | None]:
        encoder = self.encoders[place]
        batch = [self._chunks(place, prompt, named) for prompt in prompts]
        length = max(len(chunks) for chunks in batch)
        filled = [[*chunks, *[encoder.engine.empty_chunk()] * (length - len(chunks))] for chunks in batch]
        # the same text in several rows is encoded once
        unique = {_contents(chunk): chunk for chunks in filled for chunk in chunks}
        places = {contents: i for i, contents in enumerate(unique)}
        hidden, pooled = _states(encoder, list(unique.values()))
        rows = torch.tensor([[places[_contents(c)] for c in chunks] for chunks in filled], device=hidden.device)
        return hidden[rows].flatten(1, 2), None if pooled is None else pooled[rows[:, 0]]

    def _chunks(self, place: int, prompt: str, named: Sequence[Placeholder]) -> list[Any]:
        """A prompt as the host cuts it; training sends the same few captions at every step."""
        known = place, prompt, tuple(f"{each.vectors} {each.name}" for each in named)
        if known not in self._split:
            if len(self._split) >= KEPT_PROMPTS:
                self._split.clear()
            encoder = self.encoders[place]
            with triggers(encoder.engine, encoder.database, named):
                self._split[known] = encoder.engine.process_texts([prompt])[0][0]
        return self._split[known]


def _states(encoder: HostEncoder, chunks: Sequence[Any]) -> tuple[Tensor, Tensor | None]:
    """Hidden states (chunks, 77, width) and pooled ones (chunks, width).

    The hosts restore the mean of a whole batch after emphasis, so a chunk with emphasis is encoded alone, as when a
    picture is made.
    """
    emphasised = [any(weight != 1.0 for weight in chunk.multipliers) for chunk in chunks]
    groups = [[i] for i, alone in enumerate(emphasised) if alone]
    if not all(emphasised):
        groups.append([i for i, alone in enumerate(emphasised) if not alone])
    hidden: list[Tensor] = []
    pooled: list[Tensor] = []
    for group in groups:
        encoder.slot.fixes = [chunks[i].fixes for i in group]
        try:
            states = encoder.engine.process_tokens(
                [list(chunks[i].tokens) for i in group], [list(chunks[i].multipliers) for i in group]
            )
        finally:
            encoder.slot.fixes = None
        hidden.append(states)
        if encoder.pooled:
            pooled.append(states.pooled)
    order = [i for group in groups for i in group]
    back = torch.tensor([order.index(i) for i in range(len(chunks))], device=hidden[0].device)
    return torch.cat(hidden)[back], torch.cat(pooled)[back] if pooled else None


def _contents(chunk: Any) -> tuple[Any, ...]:
    fixes = tuple((fix.offset, id(fix.embedding)) for fix in chunk.fixes)
    return tuple(chunk.tokens), tuple(chunk.multipliers), fixes


@contextmanager
def triggers(engine: Any, database: Any, embeddings: Sequence[Any]) -> Iterator[None]:
    """While open, prompts find these embeddings beside those of the folder, and before them where names are equal.

    The database itself is not changed: it looks triggers up in a copy of its table.
    """
    lookup = {first: list(entries) for first, entries in database.ids_lookup.items()}
    for embedding in reversed(embeddings):
        ids = list(engine.tokenize([embedding.name])[0])
        if ids:
            lookup[ids[0]] = [(ids, embedding), *lookup.get(ids[0], [])]
    for entries in lookup.values():
        entries.sort(key=lambda each: len(each[0]), reverse=True)
    with attribute(database, "ids_lookup", lookup):
        yield


@contextmanager
def all_triggers(encoders: Sequence[HostEncoder], embeddings: Sequence[Any]) -> Iterator[None]:
    """`triggers` in each database of the encoders."""
    databases = {id(encoder.database): encoder for encoder in encoders}
    with ExitStack() as stack:
        for encoder in databases.values():
            stack.enter_context(triggers(encoder.engine, encoder.database, embeddings))
        yield
