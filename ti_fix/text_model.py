"""The text side of a loaded model, or of one in a file: token tables, tokenizers, configs, and how they may be changed.

Adapters fill it; `align` judges it. Everything in it may be ill.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from ti_fix.embedding import EncoderSpec, Family

Part = Literal["spec", "table", "position_ids", "config", "tokenizer", "texts"]
"""What a change concerns: a field of `TextEncoder`, or the texts of the whole model."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextTokenizer:
    """A tokenizer, as facts and functions.

    Attributes:
        encode: text -> token ids without start, end and padding.
        pack: text -> the ids that reach the encoder: started, ended, cut and padded; None where that is not known.
        twin: `encode` of the other implementation (slow or fast) that lies beside it; None where there is none.
        tokens: token -> id, without added tokens; None where they cannot be listed.
        merges: pairs in the order in which they are merged; None where they cannot be listed.
        added: added token -> id.
        bos_id, eos_id, pad_id: None where it has none.
        max_length: tokens that it cuts at, start and end included; None where it does not cut.
        origin: where it comes from, for reports.
    """

    encode: Callable[[str], list[int]]
    pack: Callable[[str], list[int]] | None = None
    twin: Callable[[str], list[int]] | None = None
    tokens: Mapping[str, int] | None = None
    merges: Sequence[tuple[str, str]] | None = None
    added: Mapping[str, int] = field(default_factory=dict)
    bos_id: int | None = None
    eos_id: int | None = None
    pad_id: int | None = None
    max_length: int | None = None
    origin: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenTable:
    """A token table whose shape is known before its numbers are read.

    Attributes:
        shape: (rows, width).
        dtype: the type that it is stored in.
        read: the numbers, of `shape` and `dtype`.
        span: first and last address (or place in the file) of its bytes; None where that means nothing.
        living: the very parameter of a loaded model whose numbers `read` gives; None elsewhere.
    """

    shape: tuple[int, int]
    dtype: torch.dtype
    read: Callable[[], Tensor]
    span: tuple[int, int] | None = None
    living: Tensor | None = None

    @classmethod
    def of(cls, tensor: Tensor) -> TokenTable:
        """A table in memory, (rows, width)."""
        rows, width = tensor.shape
        start = tensor.data_ptr()
        size = tensor.untyped_storage().nbytes() if tensor.is_contiguous() else 0
        span = (start, start + min(size, tensor.numel() * tensor.itemsize)) if start else None
        return cls(shape=(rows, width), dtype=tensor.dtype, read=lambda: tensor, span=span)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextEncoder:
    """One text encoder.

    Attributes:
        place: where it lies (``text_encoder_2``, ``conditioner.embedders.0``).
        spec: which encoder belongs in that place.
        table: its token table.
        position_ids: as stored, any shape and type; None where it has none.
        config: its configuration; empty where there is none.
        tokenizer: its tokenizer; None where the file brings none and the host uses its own.
        encode: ids (batch, length) -> hidden states (batch, length, width) and the pooled state (batch, any) or None,
            by the encoder's own rules; None where only a file is at hand.
        layer: how many layers from the end the host reads it, 1 = the last; None where that is not known.
        final_norm: whether the host applies the final layer norm to what it reads; None where that is not known.
        inject: position -> vector (width): while open, the token table gives these vectors at these positions of every
            row instead of what stands there; None where that cannot be done.
        write: part -> what puts a new value in its place in the living model; empty for files.
        cut: rows beyond the vocabulary that the table had in its file; the host was given the others.
    """

    place: str
    spec: EncoderSpec
    table: TokenTable
    position_ids: Tensor | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: TextTokenizer | None = None
    encode: Callable[[Tensor], tuple[Tensor, Tensor | None]] | None = None
    layer: int | None = None
    final_norm: bool | None = None
    inject: Callable[[Mapping[int, Tensor]], AbstractContextManager[None]] | None = None
    write: Mapping[Part, Callable[[Any], None]] = field(default_factory=dict)
    cut: int = 0

    @property
    def added(self) -> Mapping[str, int]:
        """Added token -> id of its tokenizer."""
        return self.tokenizer.added if self.tokenizer else {}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextModel:
    """All that a model does with text.

    Attributes:
        name: what to call it in reports.
        family: which kind of model it is.
        encoders: its text encoders in the model's own order.
        texts: prompts and triggers that are going to be encoded.
        chunks: prompt -> encoder key -> the id lists that the host makes of it; None where that is not known.
    """

    name: str
    family: Family
    encoders: tuple[TextEncoder, ...]
    texts: tuple[str, ...] = ()
    chunks: Callable[[str], Mapping[str, Sequence[Sequence[int]]]] | None = None

    def encoder(self, place: str) -> TextEncoder:
        """The encoder in a place.

        Raises:
            KeyError: there is none.
        """
        for each in self.encoders:
            if each.place == place:
                return each
        raise KeyError(place)

    def changed(self, changes: Iterable[Change]) -> TextModel:
        """The model after these changes; this one stays as it is."""
        model = self
        for change in changes:
            model = change.on(model)
        return model


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Change:
    """One part of a model and what is to become of it.

    Attributes:
        part: which one.
        place: of which encoder; empty for the texts of the whole model.
        make: the encoder, or the whole model for texts -> the part's new value. Doing it twice changes nothing more.
    """

    part: Part
    make: Callable[[Any], Any]
    place: str = ""

    def on(self, model: TextModel) -> TextModel:
        """The model with this part changed."""
        if not self.place:
            return replace(model, texts=self.make(model))
        encoders = (replace(e, **{self.part: self.make(e)}) if e.place == self.place else e for e in model.encoders)
        return replace(model, encoders=tuple(encoders))
