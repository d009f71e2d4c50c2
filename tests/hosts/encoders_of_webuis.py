"""Real text encoders (two layers, real widths) inside objects that are built like A1111's and Forge's.

Our own code; attribute names are those that docs/hosts.md lists.
"""

from __future__ import annotations

import sys
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from tests.align import models
from tests.hosts.standin import Model
from ti_fix.embedding import CLIP_G, CLIP_L, EncoderSpec
from ti_fix.prompt import split_prompt
from ti_fix.tokenizer import published


@cache
def transformer(spec: EncoderSpec) -> Any:
    """transformers' module; not to be changed without being put back."""
    torch.manual_seed(0)
    config = CLIPTextConfig(
        vocab_size=49408, hidden_size=spec.width, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        projection_dim=spec.width, bos_token_id=0, eos_token_id=2, pad_token_id=1,
    )  # fmt: skip
    return (CLIPTextModelWithProjection if spec is CLIP_G else CLIPTextModel)(config).eval()


class OpenClip(nn.Module):
    """What A1111 uses of an open_clip model: table, positions, and a pooled state at the highest id."""

    def __init__(self) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(49408, CLIP_G.width)

    def forward(self, ids: Tensor) -> Tensor:
        return self.token_embedding(ids).cumsum(dim=1)


class Spliced(nn.Module):
    """The wrapper that both hosts put around a token table."""

    def __init__(self, wrapped: nn.Module) -> None:
        super().__init__()
        self.wrapped = wrapped

    def forward(self, ids: Tensor) -> Tensor:
        return self.wrapped(ids)


class Engine:
    """Cuts prompts and encodes ids; base of the wrappers of both hosts."""

    chunk_length, id_start, id_end = 75, 49406, 49407

    def __init__(self, spec: EncoderSpec) -> None:
        self.id_pad = spec.pad_id

    def process_texts(self, texts: list[str]) -> tuple[list[Any], int]:
        cut = (split_prompt(text, {}, lambda t: self.tokenize([t])[0]) for text in texts)
        return [[SimpleNamespace(tokens=list(chunk.ids), fixes=[]) for chunk in chunks] for chunks in cut], 0

    def tokenize(self, texts: list[str]) -> list[list[int]]:
        raise NotImplementedError


class WithTransformers(Engine):
    """A1111's CLIP-L (``wrapped``) or an encoder of Forge (``text_encoder``)."""

    def __init__(self, spec: EncoderSpec, *, forge: bool) -> None:
        super().__init__(spec)
        module = transformer(spec)
        text = getattr(module, "text_model", module)
        inner = SimpleNamespace(transformer=SimpleNamespace(text_model=text, config=module.config))
        inner.transformer.call, inner.tokenizer = module, models.tokenizer(spec)
        if not isinstance(text.embeddings.token_embedding, Spliced):
            text.embeddings.token_embedding = Spliced(text.embeddings.token_embedding)
        if forge:
            self.text_encoder, self.tokenizer, self.embedding_key = inner, inner.tokenizer, spec.key
            self.embeddings = SimpleNamespace(fixes=None)
            self.clip_skip, self.minimal_clip_skip, self.final_layer_norm = 1, 2, False
        else:
            inner.layer, inner.layer_idx = "hidden", 1
            self.wrapped, self.hijack = inner, SimpleNamespace(fixes=["left over"])

    def tokenize(self, texts: list[str]) -> list[list[int]]:
        inner = getattr(self, "wrapped", None) or self.text_encoder
        return inner.tokenizer(texts, truncation=False, add_special_tokens=False)["input_ids"]

    def encode_with_transformers(self, ids: Tensor) -> Tensor:
        inner = getattr(self, "wrapped", None) or self.text_encoder
        states = inner.transformer.call(input_ids=ids, output_hidden_states=True)
        hidden = states.hidden_states[-2]
        if hasattr(states, "text_embeds"):
            hidden.pooled = states.text_embeds
        return hidden


class WithOpenClip(Engine):
    """A1111's bigG."""

    def __init__(self) -> None:
        super().__init__(CLIP_G)
        torch.manual_seed(1)
        self.wrapped = SimpleNamespace(model=OpenClip(), layer="penultimate", legacy=False)
        self.wrapped.model.token_embedding = Spliced(self.wrapped.model.token_embedding)
        self.hijack = SimpleNamespace(fixes=None)

    def tokenize(self, texts: list[str]) -> list[list[int]]:
        return [published().encode(text) for text in texts]

    def encode_with_transformers(self, ids: Tensor) -> Tensor:
        hidden: Any = self.wrapped.model(ids)
        hidden.pooled = hidden[torch.arange(len(ids)), ids.argmax(dim=1)]
        return hidden


def open_clip_tokenizer() -> Any:
    """open_clip's object: a dictionary of its own names and of ranks."""
    names = {"<|startoftext|>": "<start_of_text>", "<|endoftext|>": "<end_of_text>"}
    return SimpleTokenizer({names.get(t, t): i for t, i in published().ids.items()}, dict(published().ranks))


class SimpleTokenizer:
    """See `open_clip_tokenizer`."""

    def __init__(self, encoder: dict[str, int], bpe_ranks: dict[tuple[str, str], int]) -> None:
        self.encoder, self.bpe_ranks = encoder, bpe_ranks


def a1111_sdxl(monkeypatch: Any) -> Any:
    """An SDXL model as A1111 holds it."""
    module = ModuleType("standin_open_clip")
    module.tokenizer = open_clip_tokenizer()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(WithOpenClip, "__module__", module.__name__)
    info = SimpleNamespace(filename="/models/my.safetensors")
    stage = SimpleNamespace(embedders=[WithTransformers(CLIP_L, forge=False), WithOpenClip(), object()])
    return Model(cond_stage_model=stage, sd_checkpoint_info=info)


def forge_sdxl() -> Any:
    """An SDXL model as Forge holds it."""
    return Model(
        text_processing_engine_l=WithTransformers(CLIP_L, forge=True),
        text_processing_engine_g=WithTransformers(CLIP_G, forge=True),
        sd_checkpoint_info=SimpleNamespace(filename="/models/my.safetensors"),
    )
