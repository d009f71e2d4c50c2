"""Small judges with random weights, in the layouts that real ones come in."""

from __future__ import annotations

from functools import cache

import torch
from transformers import CLIPConfig, CLIPModel, Dinov2Config, Dinov2Model

SIDE = 32


@cache
def transformers_clip(act: str = "quick_gelu", seed: int = 0) -> CLIPModel:
    """A CLIP with heads of 64, two layers, pictures of 32 x 32."""
    torch.manual_seed(seed)
    shared = {"hidden_act": act, "num_hidden_layers": 2, "intermediate_size": 256}
    config = CLIPConfig(
        text_config={
            **shared,
            "hidden_size": 128,
            "num_attention_heads": 2,
            "vocab_size": 49408,
            "bos_token_id": 49406,
            "eos_token_id": 49407,
            "pad_token_id": 0,
        },
        vision_config={**shared, "hidden_size": 128, "num_attention_heads": 2, "image_size": SIDE, "patch_size": 8},
        projection_dim=48,
    )
    return lively(CLIPModel(config))


def lively(model):
    """Weights large enough that every part of the network shows in what comes out."""
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            if parameter.ndim > 1 and "embedding" not in name:
                parameter.copy_(torch.randn(parameter.shape) * parameter[0].numel() ** -0.5)
            elif parameter.ndim == 1 and "scale" not in name:
                parameter.add_(torch.randn(parameter.shape) * 0.1)
            elif "embedding" in name:
                parameter.copy_(torch.randn(parameter.shape) * 0.3)
    return model.eval().requires_grad_(False)


@cache
def transformers_dino() -> Dinov2Model:
    """A DINOv2 whose position table is for another size than the pictures."""
    torch.manual_seed(3)
    config = Dinov2Config(
        hidden_size=128, num_hidden_layers=2, num_attention_heads=2, mlp_ratio=2, image_size=70, patch_size=14
    )
    return lively(Dinov2Model(config))


def published_dino(model: Dinov2Model) -> dict[str, torch.Tensor]:
    """The same weights under the names that the authors of DINOv2 publish."""
    names = {
        "embeddings.cls_token": "cls_token",
        "embeddings.mask_token": "mask_token",
        "embeddings.position_embeddings": "pos_embed",
        "embeddings.patch_embeddings.projection.weight": "patch_embed.proj.weight",
        "embeddings.patch_embeddings.projection.bias": "patch_embed.proj.bias",
        "layernorm.weight": "norm.weight",
        "layernorm.bias": "norm.bias",
    }
    inner = {
        "attention.o_proj": "attn.proj",
        "layer_scale1.lambda1": "ls1.gamma",
        "layer_scale2.lambda1": "ls2.gamma",
    }
    state = model.state_dict()
    new = {names[k]: v for k, v in state.items() if k in names}
    for key, tensor in state.items():
        if not key.startswith("encoder.layer."):
            continue
        number, rest = key.removeprefix("encoder.layer.").split(".", 1)
        if rest.startswith(("attention.q_", "attention.k_", "attention.v_")):
            continue
        for theirs, ours in inner.items():
            rest = rest.replace(theirs, ours)
        new[f"blocks.{number}.{rest}"] = tensor
    for number in range(model.config.num_hidden_layers):
        for kind in ("weight", "bias"):
            parts = [state[f"encoder.layer.{number}.attention.{letter}_proj.{kind}"] for letter in "qkv"]
            new[f"blocks.{number}.attn.qkv.{kind}"] = torch.cat(parts)
    return new
