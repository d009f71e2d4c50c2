"""Chunks of token ids through CLIP text encoders, as the WebUIs do it and differentiable in the spliced vectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ti_fix.embedding import EncoderSpec
from ti_fix.errors import WrongUse
from ti_fix.prompt import EMPTY_CHUNK, Chunk

Vectors = Mapping[str, Mapping[str, Tensor]]
"""Trigger -> encoder key -> (rows, width)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextEncoder:
    """One CLIP text encoder of a model.

    Attributes:
        spec: its key and tokenizer facts; the width that counts is the module's own.
        module: transformers' ``CLIPTextModel`` or ``CLIPTextModelWithProjection``.
        skip: how many layers from the end the context is read, 1 = the last.
        final_norm: whether the final layer norm is applied to the context (SD1.5 does, SDXL does not).
    """

    spec: EncoderSpec
    module: Any
    skip: int
    final_norm: bool

    @property
    def table(self) -> Tensor:
        """The token table, (vocabulary, width)."""
        weight: Tensor = self.module.get_input_embeddings().weight
        return weight

    def encode(self, batch: Sequence[Sequence[Chunk]], vectors: Vectors) -> tuple[Tensor, Tensor | None]:
        """Encode prompts that are already split.

        Args:
            batch: the chunks of each prompt.
            vectors: what the splices in them stand for.

        Returns:
            context (batch, 77 * most chunks, width), short prompts filled up with empty chunks; pooled state
            (batch, projection width) of each first chunk, None where the encoder has no projection.
        """
        length = max(len(chunks) for chunks in batch)
        filled = [(*chunks, *[EMPTY_CHUNK] * (length - len(chunks))) for chunks in batch]
        # the same text in several rows is encoded once
        places = {chunk: i for i, chunk in enumerate(dict.fromkeys(c for chunks in filled for c in chunks))}
        unique = list(places)
        hidden, pooled = self._encode_chunks(unique, vectors)
        rows = torch.tensor([[places[c] for c in chunks] for chunks in filled], device=hidden.device)
        context = hidden[rows].flatten(1, 2)
        return context, None if pooled is None else pooled[rows[:, 0]]

    def _encode_chunks(self, chunks: Sequence[Chunk], vectors: Vectors) -> tuple[Tensor, Tensor | None]:
        device = self.table.device
        pad = self.spec.pad_id if self.spec.pad_id is not None else 0
        ids = torch.tensor([chunk.padded(pad) for chunk in chunks], device=device)
        with _spliced(self.module.get_input_embeddings(), chunks, vectors, self.spec):
            states = self.module(input_ids=ids, output_hidden_states=True)
        last = states.last_hidden_state  # after the final layer norm
        hidden = last
        if not (self.final_norm and self.skip == 1):
            hidden = states.hidden_states[-self.skip]
            hidden = self._text_model.final_layer_norm(hidden) if self.final_norm else hidden
        pooled = None
        if hasattr(self.module, "text_projection"):
            ends = torch.tensor([chunk.end for chunk in chunks], device=device)
            pooled = self.module.text_projection(last[torch.arange(len(chunks), device=device), ends])
        return _emphasised(hidden, chunks), pooled

    @property
    def _text_model(self) -> Any:
        """The transformer itself; transformers 5 no longer wraps it in `CLIPTextModel`."""
        return getattr(self.module, "text_model", self.module)


@contextmanager
def _spliced(table: nn.Module, chunks: Sequence[Chunk], vectors: Vectors, spec: EncoderSpec) -> Iterator[None]:
    """While open, the token table's output holds the vectors at the places that the chunks name."""
    rows: list[int] = []
    columns: list[int] = []
    blocks: list[Tensor] = []
    for i, chunk in enumerate(chunks):
        for splice in chunk.splices:
            block = vectors[splice.trigger].get(spec.key)
            # an encoder with fewer vectors sees token id 0 at the places that are left, as in the hosts
            count = 0 if block is None else min(splice.rows, block.shape[0])
            if block is not None and count:
                blocks.append(block[:count])
                rows += [i] * count
                columns += range(splice.start, splice.start + count)

    def splice_in(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
        values = torch.cat([block.to(output) for block in blocks])
        if values.shape[1] != output.shape[2]:
            raise WrongUse(
                f"The vectors for {spec.title} are {values.shape[1]} wide, this model's are {output.shape[2]}. "
                "Use an embedding made for this kind of model, or convert it."
            )
        where = torch.tensor(rows, device=output.device), torch.tensor(columns, device=output.device)
        return output.index_put(where, values)

    if not blocks:
        yield
        return
    handle = table.register_forward_hook(splice_in)
    try:
        yield
    finally:
        handle.remove()


def _emphasised(hidden: Tensor, chunks: Sequence[Chunk]) -> Tensor:
    """Scale each position by its weight and restore the chunk's mean (the WebUIs' “Original” emphasis).

    Args:
        hidden: (chunks, 77, width).
        chunks: where the weights stand.
    """
    if all(weight == 1.0 for chunk in chunks for weight in chunk.weights):
        return hidden
    weights = torch.tensor([chunk.weights for chunk in chunks], device=hidden.device, dtype=hidden.dtype)
    scaled = hidden * weights[..., None]
    plain = (weights == 1.0).all(dim=1)[:, None, None]
    restored = scaled * (hidden.mean(dim=(1, 2), keepdim=True) / scaled.mean(dim=(1, 2), keepdim=True))
    return torch.where(plain, hidden, restored)
