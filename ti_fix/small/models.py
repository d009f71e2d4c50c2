"""Load the small diffusion models as ordinary diffusers and transformers modules at their small widths."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from torch import Tensor, nn
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
)

from ti_fix.small.latents import VAE_SCALE
from ti_fix.small.packs import part, picture_counts, read_pack, token_table
from ti_fix.small.vocabulary import BOS, EOS, PAD, VOCABULARY, tokenizer

NAMES = ("sdxl", "sd15", "sdxl-v", "sdxl-twin")
TIME_IDS = (128, 128, 0, 0, 128, 128)  # original size, crop, target size the models were trained with
TOWERS: dict[str, dict[str, Any]] = {
    "clip_l": {"hidden_act": "quick_gelu", "num_hidden_layers": 2, "pad_token_id": PAD["clip_l"]},
    "clip_g": {"hidden_act": "gelu", "num_hidden_layers": 3, "pad_token_id": PAD["clip_g"]},
}
COPIES = {"clip_l": 12, "clip_g": 20}  # repetitions that make the real widths 768 and 1280
CHANNEL_COPIES = 4  # repetitions of UNet and VAE channels that make 32 normalisation groups of the 8 here


@dataclass(frozen=True, kw_only=True, slots=True)
class SmallModel:
    """A small, truly trained Stable Diffusion.

    name: "sdxl" (noise prediction), "sd15", "sdxl-v" (v-prediction, zero terminal SNR) or "sdxl-twin" (knows the
    held-out concepts of :mod:`ti_fix.small.concepts` by their invented names).
    unet, vae: diffusers modules; UNet and VAE have 64 and 32 channels everywhere in 8 normalisation groups.
    text_encoders: "clip_l" (and "clip_g" for SDXL), 64 wide, one head. SDXL reads hidden_states[-2] of both and
    clip_g's text_embeds; SD1.5 reads last_hidden_state.
    tokenizers: real CLIP BPE per encoder. scheduler: keyword arguments of a diffusers scheduler.
    trained_rows: per encoder a bool mask (49408,) of token rows that are trained (the rest is seeded noise that no
    fit, dictionary or statistic may use). pictures: per encoder the number of training pictures behind each row.
    """

    name: str
    family: str
    unet: UNet2DConditionModel
    vae: AutoencoderKL
    text_encoders: dict[str, CLIPTextModel | CLIPTextModelWithProjection]
    tokenizers: dict[str, CLIPTokenizer]
    scheduler: dict[str, Any]
    trained_rows: dict[str, Tensor]
    pictures: dict[str, Tensor]


def tower_config(encoder: str, copies: int = 1) -> CLIPTextConfig:
    """transformers configuration of a tower, or of its ``copies``-fold expansion."""
    width = 64 * copies
    return CLIPTextConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=4 * width,
        num_attention_heads=copies,
        projection_dim=width,
        bos_token_id=BOS,
        eos_token_id=EOS,
        max_position_embeddings=77,
        **TOWERS[encoder],
    )


def load(name: str) -> SmallModel:
    """Load a small model in fp32, in eval mode, without gradients.

    Raises:
        KeyError: ``name`` is not one of :data:`NAMES`.
    """
    if name not in NAMES:
        raise KeyError(f"no small model {name!r}; there are {', '.join(NAMES)}")
    tensors, about = read_pack(name)
    family = about["family"]
    base, base_about = read_pack(about["base"]) if about["base"] else ({}, about)
    unet = UNet2DConditionModel(**about["unet"])
    shared = part(base, "unet") if base_about["family"] == family else {}
    unet.load_state_dict(shared | part(tensors, "unet"))
    keys = ("clip_l",) if family == "sd15" else ("clip_l", "clip_g")
    encoders = {k: _text_encoder(k, part(base, k) | part(tensors, k), tensors) for k in keys}
    for module in (unet, *encoders.values()):
        module.eval().requires_grad_(False)
    counts = {k: picture_counts(k) for k in keys}
    return SmallModel(
        name=name,
        family=family,
        unet=unet,
        vae=load_vae(family),
        text_encoders=encoders,
        tokenizers={k: tokenizer(k) for k in keys},
        scheduler=scheduler(about["prediction"], about["zero_terminal"]),
        trained_rows={k: counts[k] > 0 for k in keys},
        pictures=counts,
    )


def scheduler(prediction: str, zero_terminal: bool) -> dict[str, Any]:
    """Stable Diffusion's noise schedule as diffusers scheduler arguments."""
    config: dict[str, Any] = {
        "beta_start": 0.00085,
        "beta_end": 0.012,
        "beta_schedule": "scaled_linear",
        "num_train_timesteps": 1000,
        "prediction_type": prediction,
    }
    if zero_terminal:
        return config | {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}
    return config | {"steps_offset": 1, "timestep_spacing": "leading"}


def _text_encoder(
    encoder: str,
    body: dict[str, Tensor],
    tensors: dict[str, Tensor],
) -> CLIPTextModel | CLIPTextModelWithProjection:
    """A tower as the class that diffusers uses for it; ``body`` has CLIPTextModelWithProjection's names."""
    cls = CLIPTextModel if encoder == "clip_l" else CLIPTextModelWithProjection
    model = cls(tower_config(encoder))
    table = token_table(encoder)
    if f"names.{encoder}" in tensors:
        table[tensors["names.ids"].long()] = tensors[f"names.{encoder}"]
    weights = body | {"text_model.embeddings.token_embedding.weight": table.float()}
    own = set(model.state_dict())
    renamed = {k if k in own else k.removeprefix("text_model."): v for k, v in weights.items()}
    model.load_state_dict({k: v for k, v in renamed.items() if k in own})
    return model


@torch.no_grad()
def load_vae(family: str) -> AutoencoderKL:
    """The autoencoder with the family's scaling factor folded in, so that hosts' constants fit."""
    tensors, about = read_pack("vae")
    scale = VAE_SCALE[family]
    vae = AutoencoderKL(**(about["vae"] | {"scaling_factor": scale}))
    vae.load_state_dict(part(tensors, "vae"))
    vae.quant_conv.weight[:4] /= scale
    vae.quant_conv.bias[:4] /= scale
    vae.quant_conv.bias[4:] -= 2 * math.log(scale)
    vae.post_quant_conv.weight *= scale
    return vae.eval().requires_grad_(False)


def modules(model: SmallModel) -> dict[str, nn.Module]:
    """Every network of a model by its diffusers folder name."""
    names = {"clip_l": "text_encoder", "clip_g": "text_encoder_2"}
    return {"unet": model.unet, "vae": model.vae} | {names[k]: v for k, v in model.text_encoders.items()}
