"""Random models with the geometry of the small real ones: L and G 64 wide with one head, a shallow UNet and VAE."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    EulerDiscreteScheduler,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from ti_fix.embedding import SD15, SDXL, VOCABULARY_SIZE
from ti_fix.hosts.standalone.load import Parts
from ti_fix.tokenizer import BPE_FILE

WIDTH = 64
_VAE: dict[str, Any] = {
    "block_out_channels": (32, 32, 32, 32),
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "layers_per_block": 0,
    "latent_channels": 4,
    "norm_num_groups": 8,
    "force_upcast": False,
}
_UNET: dict[str, Any] = {
    "sample_size": 8,
    "in_channels": 4,
    "out_channels": 4,
    "layers_per_block": 1,
    "norm_num_groups": 8,
}


def tiny_text(layers: int, act: str, *, projection: bool, pad: int, seed: int) -> Any:
    """A CLIP text tower, 64 wide, one head of 64, with rows of the published length."""
    config = CLIPTextConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=layers,
        num_attention_heads=1,
        hidden_act=act,
        projection_dim=WIDTH,
        bos_token_id=49406,
        eos_token_id=49407,
        pad_token_id=pad,
    )
    torch.manual_seed(seed)
    module = (CLIPTextModelWithProjection if projection else CLIPTextModel)(config)
    return _lively(module, seed)


def _lively(module: Any, seed: int) -> Any:
    """Weights large enough that every part of the network matters, also those that start at zero."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        with torch.no_grad():
            if name.endswith("final_layer_norm.bias"):
                # emphasis divides by the mean of these states, so it must not be near zero
                parameter.copy_(noise * 0.1 - 0.3)
            elif parameter.ndim == 1:
                parameter.copy_(noise * 0.1 + (1.0 if "norm" in name and name.endswith("weight") else 0.0))
            elif "embedding.weight" in name:
                parameter.copy_(noise * 0.03)
            else:
                parameter.copy_(noise * parameter[0].numel() ** -0.5)
    return module.eval()


def tiny_scheduler(prediction_type: str) -> dict[str, Any]:
    return {
        "beta_start": 0.00085,
        "beta_end": 0.012,
        "beta_schedule": "scaled_linear",
        "prediction_type": prediction_type,
        "steps_offset": 1,
    }


@cache
def tiny_sdxl(prediction_type: str = "epsilon") -> Parts:
    """SDXL's layout: three levels, attention on the lower two and in the middle, pooled text and sizes."""
    unet = UNet2DConditionModel(
        **_UNET,
        block_out_channels=(64, 64, 64),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=(1, 1, 2),
        attention_head_dim=(2, 2, 2),
        use_linear_projection=True,
        cross_attention_dim=2 * WIDTH,
        addition_embed_type="text_time",
        addition_time_embed_dim=256,
        projection_class_embeddings_input_dim=WIDTH + 6 * 256,
    )
    return Parts(
        family=SDXL,
        unet=_lively(unet, 1),
        vae=_lively(AutoencoderKL(**_VAE, scaling_factor=0.5), 2),
        text_encoders={
            "clip_l": tiny_text(2, "quick_gelu", projection=False, pad=49407, seed=3),
            "clip_g": tiny_text(3, "gelu", projection=True, pad=0, seed=4),
        },
        scheduler_config=tiny_scheduler(prediction_type),
    )


@cache
def tiny_sd15() -> Parts:
    """SD1.5's layout: four levels, attention on the upper three, convolutions around the transformers."""
    unet = UNet2DConditionModel(
        **_UNET,
        block_out_channels=(64, 64, 64, 64),
        down_block_types=("CrossAttnDownBlock2D",) * 3 + ("DownBlock2D",),
        up_block_types=("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 3,
        attention_head_dim=2,
        cross_attention_dim=WIDTH,
    )
    return Parts(
        family=SD15,
        unet=_lively(unet, 5),
        vae=_lively(AutoencoderKL(**_VAE, scaling_factor=0.5), 6),
        text_encoders={"clip_l": tiny_text(2, "quick_gelu", projection=False, pad=49407, seed=3)},
        scheduler_config=tiny_scheduler("epsilon"),
    )


@cache
def clip_tokenizer(key: str) -> CLIPTokenizer:
    """transformers' tokenizer of an encoder, its vocabulary written out as OpenAI's own code does it."""
    with gzip.open(BPE_FILE, "rt", encoding="utf-8") as file:
        merges = [tuple(line.split()) for line in file.read().split("\n")[1 : 49152 - 256 - 2 + 1]]
    codes = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    symbols = [chr(c) for c in codes] + [chr(256 + n) for n in range(256 - len(codes))]
    tokens = [*symbols, *(s + "</w>" for s in symbols), *map("".join, merges), "<|startoftext|>", "<|endoftext|>"]
    pad = "!" if key == "clip_g" else "<|endoftext|>"
    return CLIPTokenizer(
        vocab={token: i for i, token in enumerate(tokens)}, merges=merges, model_max_length=77, pad_token=pad
    )


def sdxl_pipeline(parts: Parts) -> Any:
    """The stock diffusers pipeline over the same modules."""
    return StableDiffusionXLPipeline(
        vae=parts.vae,
        text_encoder=parts.text_encoders["clip_l"],
        text_encoder_2=parts.text_encoders["clip_g"],
        tokenizer=clip_tokenizer("clip_l"),
        tokenizer_2=clip_tokenizer("clip_g"),
        unet=parts.unet,
        scheduler=EulerDiscreteScheduler(**parts.scheduler_config, timestep_spacing="linspace"),
        add_watermarker=False,
    )


def sd15_pipeline(parts: Parts) -> Any:
    """The stock diffusers pipeline over the same modules."""
    return StableDiffusionPipeline(
        vae=parts.vae,
        text_encoder=parts.text_encoders["clip_l"],
        tokenizer=clip_tokenizer("clip_l"),
        unet=parts.unet,
        scheduler=EulerDiscreteScheduler(**parts.scheduler_config, timestep_spacing="linspace"),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


@dataclass(frozen=True, kw_only=True)
class Small:
    """What `ti_fix.small.load` gives, as far as writing needs it."""

    family: str
    unet: Any
    vae: Any
    text_encoders: Mapping[str, Any]
    tokenizers: Mapping[str, Any]
    scheduler: Mapping[str, Any]


@cache
def small(name: str) -> Small:
    parts = tiny_sdxl() if name.startswith("sdxl") else tiny_sd15()
    other = {"prediction_type": "v_prediction", "rescale_betas_zero_snr": True} if name.endswith("-v") else {}
    return Small(
        family=parts.family.name,
        unet=parts.unet,
        vae=parts.vae,
        text_encoders=parts.text_encoders,
        tokenizers={key: clip_tokenizer(key) for key in parts.text_encoders},
        scheduler={**parts.scheduler_config, **other},
    )


@contextmanager
def broken_row(table: torch.Tensor, row: int = 2368) -> Iterator[None]:
    """A NaN in a row of a token table meanwhile: tiny models are shared by all tests."""
    whole = table[row].detach().clone()
    with torch.no_grad():
        table[row, 1] = float("nan")
    try:
        yield
    finally:
        with torch.no_grad():
            table[row] = whole
