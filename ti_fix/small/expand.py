"""Small models at the real widths: exact copies, 12 of CLIP-L's 64 numbers, 20 of bigG's, 4 of each UNet channel.

The wide model computes what the small one does (`ti_fix.small.axes`): 768 and 1280 wide text encoders with 12 and 20
heads, a UNet that reads 2048 (768) wide contexts and 2816 wide size and text vectors, 32 normalisation groups, the
published heads and latent scales. Embedding files have the real widths and are folded where they meet a small model.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from torch import Tensor
from transformers import CLIPTextConfig

from ti_fix.embedding import Embedding
from ti_fix.small import axes
from ti_fix.small.axes import Axis
from ti_fix.small.latents import VAE_SCALE
from ti_fix.small.models import CHANNEL_COPIES, COPIES
from ti_fix.small.packs import WIDTH

M = TypeVar("M", bound=Any)

_SDXL_HEAD_WIDTH = 64
_SD15_HEADS = 8
_UP_INPUT = re.compile(r"up_blocks\.(\d+)\.resnets\.(\d+)\.(?:norm1|conv1|conv_shortcut)\.")


def fold(embedding: Embedding) -> Embedding:
    """Vectors of the real widths as the small models take them: the mean of the copies; small ones pass through."""
    return embedding.with_vectors({key: _fold(key, block) for key, block in embedding.vectors.items()})


def unfold(embedding: Embedding) -> Embedding:
    """Vectors of the small models at the real widths: one copy after the other; wide ones pass through."""
    return embedding.with_vectors(
        {k: b.repeat(1, COPIES[k]) if b.shape[1] == WIDTH else b for k, b in embedding.vectors.items()}
    )


def expand(model: M) -> M:
    """The same model at the real widths.

    Args:
        model: a dataclass with ``unet``, ``vae`` and ``text_encoders``, such as a small model.
    """
    family = "sdxl" if "clip_g" in model.text_encoders else "sd15"
    wide: M = dataclasses.replace(
        model,
        unet=expand_unet(model.unet),
        vae=expand_vae(model.vae, VAE_SCALE[family]),
        text_encoders={key: expand_text_encoder(key, encoder) for key, encoder in model.text_encoders.items()},
    )
    return wide


def _fold(key: str, block: Tensor) -> Tensor:
    if key not in COPIES or block.shape[1] != WIDTH * COPIES[key]:
        return block
    return block.reshape(len(block), COPIES[key], WIDTH).mean(dim=1)


@torch.no_grad()
def expand_text_encoder(key: str, small: Any) -> Any:
    """A text encoder at its real width, 768 for ``clip_l`` and 1280 for ``clip_g``."""
    count, config = COPIES[key], small.config
    wider = {
        "hidden_size": config.hidden_size * count,
        "intermediate_size": config.intermediate_size * count,
        "num_attention_heads": config.num_attention_heads * count,
        "projection_dim": config.projection_dim * count,
    }
    wide = _unfilled(lambda: type(small)(CLIPTextConfig(**{**config.to_dict(), **wider})))
    for name, target in wide.named_parameters():
        weight = small.get_parameter(name)
        if "embedding" in name:
            target.copy_(weight.repeat(1, count))
        elif weight.ndim == 1:
            target.copy_(weight.repeat(count))
        else:
            out, into = (axes.copies(size, count) for size in weight.shape)
            target.copy_(axes.tile_matrix(weight, out, into))
    for name, buffer in wide.named_buffers():
        buffer.copy_(small.get_buffer(name))
    return wide.eval().requires_grad_(False)


@torch.no_grad()
def expand_unet(small: Any) -> Any:
    """The UNet with four times the channels, the context and adm widths of the published models and their heads."""
    config = small.config
    sdxl = config.addition_embed_type == "text_time"
    channels = [c * CHANNEL_COPIES for c in config.block_out_channels]
    wider: dict[str, Any] = {
        "block_out_channels": channels,
        "norm_num_groups": config.norm_num_groups * CHANNEL_COPIES,
        "cross_attention_dim": sum(WIDTH * COPIES[key] for key in _context_keys(small)),
        "attention_head_dim": [c // _SDXL_HEAD_WIDTH for c in channels] if sdxl else _SD15_HEADS,
    }
    if sdxl:
        wider["projection_class_embeddings_input_dim"] = (
            config.projection_class_embeddings_input_dim - WIDTH + WIDTH * COPIES["clip_g"]
        )
    return _filled(small, _unfilled(lambda: UNet2DConditionModel(**{**_arguments(config), **wider})))


@torch.no_grad()
def expand_vae(small: Any, scaling_factor: float) -> Any:
    """The autoencoder with four times the channels, its latents rescaled to the published factor."""
    config = small.config
    wider = {
        "block_out_channels": [c * CHANNEL_COPIES for c in config.block_out_channels],
        "norm_num_groups": config.norm_num_groups * CHANNEL_COPIES,
        "scaling_factor": scaling_factor,
    }
    wide = _filled(small, _unfilled(lambda: AutoencoderKL(**{**_arguments(config), **wider})))
    _rescale_latents(wide, config.scaling_factor / scaling_factor)
    return wide


def _unfilled(make: Callable[[], Any]) -> Any:
    """A module without the random start that would be thrown away."""
    with torch.device("meta"):
        module = make()
    return module.to_empty(device="cpu")


def _rescale_latents(vae: Any, factor: float) -> None:
    """Multiply the unscaled latents, so that another scaling factor gives the same scaled ones."""
    mean = slice(0, vae.config.latent_channels)
    vae.quant_conv.weight[mean] *= factor
    vae.quant_conv.bias[mean] *= factor
    vae.quant_conv.bias[vae.config.latent_channels :] += 2 * math.log(factor)  # the second half is a log variance
    vae.post_quant_conv.weight /= factor


def _arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if not key.startswith("_")}


def _context_keys(unet: Any) -> tuple[str, ...]:
    return ("clip_l", "clip_g") if unet.config.cross_attention_dim == 2 * WIDTH else ("clip_l",)


def _filled(small: Any, wide: Any) -> Any:
    """Lay out every parameter of the wide diffusers module from the small one's."""
    for name, target in wide.named_parameters():
        weight = small.get_parameter(name)
        out, into = _layout(small, wide, name, weight)
        tiled = axes.tile_vector(weight, out) if into is None else axes.tile_matrix(weight, out, into)
        target.copy_(tiled)
    return wide.eval().requires_grad_(False)


def _layout(small: Any, wide: Any, name: str, weight: Tensor) -> tuple[Axis, Axis | None]:
    """The layout of one parameter: its outgoing and, for weights of layers, its incoming axis."""
    module, leaf = name.rsplit(".", 2)[-2], name.rsplit(".", 1)[-1]
    out: Axis = axes.copies(weight.shape[0], CHANNEL_COPIES)
    into = axes.copies(weight.shape[1], CHANNEL_COPIES) if weight.ndim > 1 else None
    if module in ("quant_conv", "post_quant_conv"):
        return axes.once(weight.shape[0]), None if into is None else axes.once(weight.shape[1])
    if module == "conv_out":
        out = axes.once(weight.shape[0])
    if module in ("to_q", "to_k", "to_v"):
        out = _head_axis(small, wide, name, weight.shape[0], queries=module == "to_q")
    if name.endswith(f"ff.net.0.proj.{leaf}"):  # GEGLU: values and gates, each copied
        half = weight.shape[0] // 2
        out = axes.joined(*[axes.copies(half, CHANNEL_COPIES)] * 2, offsets=(0, half))
    skip = _UP_INPUT.match(name) if isinstance(small, UNet2DConditionModel) else None
    if skip is not None and (leaf == "weight" or module == "norm1"):
        joint = _skip_axis(small, int(skip[1]), int(skip[2]), weight.shape[min(weight.ndim - 1, 1)])
        out, into = (joint, None) if into is None else (out, joint)
    if into is not None:
        into = _reading_axis(small, wide, name, weight, into)
    return out, into


def _reading_axis(small: Any, wide: Any, name: str, weight: Tensor, usual: Axis) -> Axis:
    """The incoming axis of a layer that reads something else than the copies of the state."""
    size = weight.shape[1]
    if ".conv_in." in f".{name}":
        return axes.once(size)
    if name.endswith("to_out.0.weight"):
        return _head_axis(small, wide, name, size, queries=False)
    if re.search(r"attn2\.to_[kv]\.", name):
        texts = [axes.averaged(WIDTH, COPIES[key]) for key in _context_keys(small)]
        return axes.joined(*texts, offsets=(0, WIDTH)[: len(texts)])
    if name == "time_embedding.linear_1.weight":
        return axes.frequencies(size, CHANNEL_COPIES)
    if name == "add_embedding.linear_1.weight":
        return axes.joined(axes.averaged(WIDTH, COPIES["clip_g"]), axes.once(size - WIDTH), offsets=(0, WIDTH))
    return usual


def _head_axis(small: Any, wide: Any, name: str, size: int, *, queries: bool) -> Axis:
    """Attention's inner axis. The copies of a state attend alike, so every head is needed once only."""
    attention = re.split(r"\.to_(?:q|k|v|out)\.", name)[0]
    shape = size, small.get_submodule(attention).heads, size * CHANNEL_COPIES, wide.get_submodule(attention).heads
    axis = axes.heads(*shape)
    return axis.scaled(axes.head_scale(*shape)) if queries else axis


def _skip_axis(unet: Any, block: int, resnet: int, size: int) -> Axis:
    """What an upward resnet reads: copies of the state, then copies of the skip connection.

    Raises:
        ValueError: a normalisation group would span both, which copies cannot reproduce.
    """
    channels = list(reversed(unet.config.block_out_channels))
    state = channels[block] if resnet else channels[max(block - 1, 0)]
    if state % (size // unet.config.norm_num_groups):
        raise ValueError(f"A group of {size // unet.config.norm_num_groups} channels spans state and skip connection.")
    parts = (state, size - state)
    return axes.joined(*(axes.copies(part, CHANNEL_COPIES) for part in parts), offsets=(0, state))
