"""Repeat the channels of the small UNet and autoencoder, exactly.

Hosts hard-code 32 normalisation groups; the small networks have 8. A network whose channels are repeated ``copies``
times, with block-diagonal weights, computes the same: every copy is the small network, and each of its normalisation
groups is one of the small ones. (Text widths are another matter: see the expansion of the towers.)
"""
from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def block_diagonal(weight: Tensor, copies: int) -> Tensor:
    """(o, i, ...) -> (copies * o, copies * i, ...): each copy reads only itself."""
    o, i = weight.shape[:2]
    out = weight.new_zeros(copies * o, copies * i, *weight.shape[2:])
    for k in range(copies):
        out[k * o : (k + 1) * o, k * i : (k + 1) * i] = weight
    return out


def _read_side_by_side(weight: Tensor, copies: int, width: int) -> Tensor:
    """Block-diagonal for inputs that are ``width``-channel tensors side by side, each of them repeated."""
    return torch.cat([block_diagonal(w, copies) for w in weight.split(width, 1)], 1)


def _repeat(vector: Tensor, copies: int, width: int) -> Tensor:
    """Vector over such side-by-side channels, each part repeated."""
    return torch.cat([v.repeat(copies) for v in vector.split(width)])


def _read_first(weight: Tensor, copies: int) -> Tensor:
    """Output layer: reads the mean of the copies."""
    return weight.repeat(1, copies, *[1] * (weight.ndim - 2)) / copies


def _written(weight: Tensor, copies: int) -> Tensor:
    """Input layer: writes every copy."""
    return weight.repeat(copies, *[1] * (weight.ndim - 1))


def _time_columns(weight: Tensor, copies: int) -> Tensor:
    """First timestep layer: the wider sinusoid holds every small frequency at each ``copies``-th place."""
    half = weight.shape[1] // 2
    wide = weight.new_zeros(weight.shape[0], copies * 2 * half)
    places = torch.arange(half) * copies
    wide[:, places], wide[:, copies * half + places] = weight[:, :half], weight[:, half:]
    return _written(wide, copies)


def _unet_tensor(name: str, value: Tensor, copies: int, width: int) -> Tensor:
    if name == "conv_out.bias":
        return value
    if value.ndim == 1:
        if "ff.net.0.proj" in name:
            return torch.cat([half.repeat(copies) for half in value.chunk(2)])
        return _repeat(value, copies, width) if len(value) == 2 * width else value.repeat(copies)
    if name.startswith("conv_in") or name == "add_embedding.linear_1.weight":
        return _written(value, copies)
    if name.startswith("conv_out"):
        return _read_first(value, copies)
    if name == "time_embedding.linear_1.weight":
        return _time_columns(value, copies)
    if "attn2.to_k" in name or "attn2.to_v" in name:
        return _written(value, copies)
    if "ff.net.0.proj" in name:  # GEGLU: values, then gates
        return torch.cat([block_diagonal(half, copies) for half in value.chunk(2)])
    if "resnets" in name and value.shape[1] == 2 * width and "time_emb" not in name:
        return _read_side_by_side(value, copies, width)
    return block_diagonal(value, copies)


def tile_unet(state: dict[str, Tensor], config: dict[str, Any], copies: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """State dict and configuration of the UNet with its channels repeated; context and pooled widths stay.

    Args:
        state: state dict of a small UNet, all levels of which have the same number of channels.
        config: its diffusers configuration.
        copies: repetitions; heads keep their width and become ``copies`` times as many.
    """
    (width,) = set(config["block_out_channels"])
    heads = config["attention_head_dim"]
    wider = {
        "block_out_channels": tuple(copies * width for _ in config["block_out_channels"]),
        "norm_num_groups": copies * config["norm_num_groups"],
        "attention_head_dim": copies * heads if isinstance(heads, int) else tuple(copies * h for h in heads)}
    return {**config, **wider}, {k: _unet_tensor(k, v, copies, width) for k, v in state.items()}


def _vae_tensor(name: str, value: Tensor, copies: int) -> Tensor:
    if name.startswith(("quant_conv", "post_quant_conv")) or name.endswith("coder.conv_out.bias"):
        return value
    if ".to_q." in name:  # one head over all channels: the dot product grows copies-fold, its scale by the root
        value = value / math.sqrt(copies)
    if value.ndim == 1:
        return value.repeat(copies)
    if name.endswith("coder.conv_in.weight"):
        return _written(value, copies)
    if name.endswith("coder.conv_out.weight"):
        return _read_first(value, copies)
    return block_diagonal(value, copies)


def tile_vae(state: dict[str, Tensor], config: dict[str, Any], copies: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """State dict and configuration of the autoencoder with its channels repeated."""
    wider = {"block_out_channels": tuple(copies * c for c in config["block_out_channels"]),
             "norm_num_groups": copies * config["norm_num_groups"]}
    return {**config, **wider}, {k: _vae_tensor(k, v, copies) for k, v in state.items()}
