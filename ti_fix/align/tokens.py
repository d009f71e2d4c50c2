"""What a prompt becomes: ids, strings, chunks, and where the vectors of each embedding stand, for every encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ti_fix.align.rebind import published_tokenizer
from ti_fix.align.text import clean_text, what_was_cleaned
from ti_fix.embedding import Embedding
from ti_fix.prompt import Chunk, split_prompt
from ti_fix.prompt_syntax import Stage, parse_syntax
from ti_fix.text_model import TextEncoder, TextModel
from ti_fix.tokenizer import published

Kind = Literal["start", "word", "vector", "end", "pad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One of a chunk's 77 places.

    Attributes:
        id: what the host puts there; 0 under a vector.
        text: of the token (``cat</w>``); for a vector, name and row (``toy 1/4``).
        kind: what it is for.
        weight: by which the encoder's output there is multiplied.
        filled: for a vector: whether this encoder has one for the place.
    """

    id: int
    text: str
    kind: Kind
    weight: float = 1.0
    filled: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderView:
    """The prompt as one encoder gets it.

    Attributes:
        key: of the encoder.
        chunks: its passes, 77 tokens each.
    """

    key: str
    chunks: tuple[tuple[Token, ...], ...]

    def places(self) -> list[dict[str, Any]]:
        """Where embeddings stand: name, chunk and first position (both from 0), vectors there and vectors missing."""
        found: list[dict[str, Any]] = []
        for number, chunk in enumerate(self.chunks):
            for position, token in enumerate(chunk):
                if token.kind != "vector":
                    continue
                name, _, row = token.text.rpartition(" ")
                if row.startswith("1/"):
                    found.append({"name": name, "chunk": number, "position": position, "vectors": 0, "missing": 0})
                found[-1]["vectors" if token.filled else "missing"] += 1
        return found

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "encoder": self.key,
            "attention_mask": None,
            "chunks": [
                {
                    "ids": [t.id for t in chunk],
                    "strings": [t.text for t in chunk],
                    "kinds": [t.kind for t in chunk],
                    "weights": [t.weight for t in chunk],
                }
                for chunk in self.chunks
            ],
            "embeddings": self.places(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TextView:
    """One text that the prompt comes to: of one part between ANDs, for one stretch of steps.

    Attributes:
        branch: number of the part, from 0.
        weight: of the part's guidance.
        first, last: the steps that it is used in, from 1.
        text: what is cut into chunks.
        encoders: as each encoder of the model gets it.
    """

    branch: int
    weight: float
    first: int
    last: int
    text: str
    encoders: tuple[EncoderView, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "branch": self.branch,
            "weight": self.weight,
            "steps": [self.first, self.last],
            "text": self.text,
            "encoders": [e.as_dict() for e in self.encoders],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenView:
    """A prompt taken apart.

    Attributes:
        prompt: as it was given.
        cleaned: as it is encoded.
        removed: what was taken out or replaced before that.
        networks: what ``<lora:name:1>`` and alike name: (kind, arguments).
        steps: of the generation that it was taken apart for.
        texts: what is encoded, at least one.
    """

    prompt: str
    cleaned: str
    removed: tuple[str, ...]
    networks: tuple[tuple[str, str], ...]
    steps: int
    texts: tuple[TextView, ...]

    @property
    def encoders(self) -> tuple[EncoderView, ...]:
        """The first text as each encoder gets it; the only one where nothing is joined or edited."""
        return self.texts[0].encoders

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "prompt": self.prompt,
            "cleaned": self.cleaned,
            "removed": list(self.removed),
            "networks": [{"kind": kind, "arguments": arguments} for kind, arguments in self.networks],
            "steps": self.steps,
            "texts": [text.as_dict() for text in self.texts],
            "encoders": [e.as_dict() for e in self.encoders],
        }


def view(
    model: TextModel, prompt: str, embeddings: Mapping[str, Embedding] | None = None, *, steps: int = 20
) -> TokenView:
    """Take a prompt apart as the WebUIs do: networks, AND, prompt editing, emphasis, BREAK, chunks, embeddings.

    Args:
        model: whose tokenizers; an encoder without one gets the published one.
        prompt: as a user types it.
        embeddings: trigger -> embedding.
        steps: of the generation, for ``[from:to:when]`` and ``[a|b]``.

    Raises:
        WrongUse: an embedding has more vectors than fit one chunk.
    """
    cleaned = clean_text(prompt)
    known = dict(embeddings or {})
    rows = {trigger: each.num_vectors for trigger, each in known.items()}
    encoders = [encoder for encoder in model.encoders if encoder.spec.bos_id is not None]
    parsed = parse_syntax(cleaned, steps)
    texts = tuple(
        TextView(
            branch=number,
            weight=branch.weight,
            first=stage.first,
            last=stage.last,
            text=stage.text,
            encoders=tuple(_encoder_view(encoder, stage.text, known, rows) for encoder in encoders),
        )
        for number, branch in enumerate(parsed.branches)
        for stage in _shown(branch.stages)
    )
    removed = tuple(what_was_cleaned(prompt))
    return TokenView(
        prompt=prompt, cleaned=cleaned, removed=removed, networks=parsed.networks, steps=steps, texts=texts
    )


def _shown(stages: Sequence[Stage]) -> list[Stage]:
    """Each text once, with its first stretch of steps: an alternation comes back to the same ones."""
    return list({stage.text: stage for stage in reversed(stages)}.values())[::-1]


def _encoder_view(
    encoder: TextEncoder, prompt: str, known: Mapping[str, Embedding], rows: Mapping[str, int]
) -> EncoderView:
    tokenizer = encoder.tokenizer or published_tokenizer(encoder.spec)
    names = {i: t for t, i in ({**(tokenizer.tokens or published().ids), **tokenizer.added}).items()}
    chunks = split_prompt(prompt, rows, tokenizer.encode)
    return EncoderView(
        key=encoder.spec.key,
        chunks=tuple(_tokens(chunk, encoder, names, known) for chunk in chunks),
    )


def _tokens(
    chunk: Chunk, encoder: TextEncoder, names: Mapping[int, str], known: Mapping[str, Embedding]
) -> tuple[Token, ...]:
    pad = encoder.spec.pad_id if encoder.spec.pad_id is not None else 0
    ids = chunk.padded(pad)
    vectors: dict[int, tuple[str, bool]] = {}
    for splice in chunk.splices:
        block = known[splice.trigger].vectors.get(encoder.spec.key)
        count = 0 if block is None else block.shape[0]
        for row in range(splice.rows):
            vectors[splice.start + row] = f"{splice.trigger} {row + 1}/{splice.rows}", row < count
    tokens = []
    for position, (index, weight) in enumerate(zip(ids, chunk.weights, strict=True)):
        text, filled = vectors.get(position, (names.get(index, "?"), True))
        kind = _kind(position, chunk.end, position in vectors)
        tokens.append(Token(id=index, text=text, kind=kind, weight=weight, filled=filled))
    return tuple(tokens)


def _kind(position: int, end: int, vector: bool) -> Kind:
    if vector:
        return "vector"
    if position == 0:
        return "start"
    return "word" if position < end else "end" if position == end else "pad"
