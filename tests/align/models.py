"""Small models on disk and in memory, made with transformers, for the checks to look at."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from ti_fix.embedding import CLIP_G, CLIP_L, VOCABULARY_SIZE, EncoderSpec
from ti_fix.tokenizer import published

PLACES = {"text_encoder": CLIP_L, "text_encoder_2": CLIP_G}
LEGACY = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}


@cache
def tokenizer(spec: EncoderSpec) -> CLIPTokenizer:
    """transformers' own, with the published vocabulary; not to be changed."""
    return changeable_tokenizer(spec)


def changeable_tokenizer(spec: EncoderSpec) -> CLIPTokenizer:
    """A new one."""
    return CLIPTokenizer(
        vocab=dict(published().ids),
        merges=list(published().ranks),
        model_max_length=77,
        pad_token="!" if spec is CLIP_G else "<|endoftext|>",
    )


def text_encoder(spec: EncoderSpec, *, seed: int = 0, ids: Mapping[str, int] = LEGACY) -> Any:
    """A random one, 32 wide, two layers."""
    torch.manual_seed(seed)
    config = CLIPTextConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=1,
        projection_dim=32,
        **ids,
    )
    module = (CLIPTextModelWithProjection if spec is CLIP_G else CLIPTextModel)(config)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.05 if "embedding" in name else parameter.shape[1] ** -0.5)
    return module.eval()


@cache
def healthy_folder(root: Path) -> Path:
    """The text side of a diffusers folder as SDXL is published: legacy ids in the configs."""
    for place, spec in PLACES.items():
        text_encoder(spec, seed=spec.width).save_pretrained(root / place)
        tokenizer(spec).save_pretrained(root / place.replace("text_encoder", "tokenizer"))
    (root / "model_index.json").write_text("{}")
    return root
