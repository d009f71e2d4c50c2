"""Names of a Stable Diffusion's weights: diffusers and transformers on one side, single-file checkpoints on the other.

Checkpoints keep the layout of the code that the models were published with: ``ldm`` (Rombach et al. 2022,
arXiv 2112.10752) for SD1.5 and ``sgm`` (Podell et al. 2023, arXiv 2307.01952) for SDXL, whose second text encoder has
open_clip's names. Most of it is renaming of module prefixes, kept in tables that are read in both directions; three
things change shape: open_clip packs query, key and value into one matrix, its text projection is transposed, and the
VAE's attention uses 1 x 1 convolutions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Weights = dict[str, Tensor]
Pairs = tuple[tuple[str, str], ...]
"""(module prefix in diffusers or transformers, module prefix in the checkpoint)."""

UNET_PREFIX = "model.diffusion_model."
VAE_PREFIX = "first_stage_model."
SD15_TEXT_PREFIX = "cond_stage_model.transformer.text_model."
SDXL_L_PREFIX = "conditioner.embedders.0.transformer.text_model."
SDXL_G_PREFIX = "conditioner.embedders.1.model."

_UNET_ENDS: Pairs = (
    ("conv_in", "input_blocks.0.0"),
    ("time_embedding.linear_1", "time_embed.0"),
    ("time_embedding.linear_2", "time_embed.2"),
    ("add_embedding.linear_1", "label_emb.0.0"),
    ("add_embedding.linear_2", "label_emb.0.2"),
    ("mid_block.attentions.0", "middle_block.1"),
    ("conv_norm_out", "out.0"),
    ("conv_out", "out.2"),
)
_UNET_RESNET: Pairs = (
    ("norm1", "in_layers.0"),
    ("conv1", "in_layers.2"),
    ("time_emb_proj", "emb_layers.1"),
    ("norm2", "out_layers.0"),
    ("conv2", "out_layers.3"),
    ("conv_shortcut", "skip_connection"),
)
_VAE_ATTENTION: Pairs = (
    ("group_norm", "norm"),
    ("to_q", "q"),
    ("to_k", "k"),
    ("to_v", "v"),
    ("to_out.0", "proj_out"),
)
_VAE_ENDS: Pairs = (
    *((f"{half}.{end}", f"{half}.{end}") for half in ("encoder", "decoder") for end in ("conv_in", "conv_out")),
    *((f"{half}.conv_norm_out", f"{half}.norm_out") for half in ("encoder", "decoder")),
    ("quant_conv", "quant_conv"),
    ("post_quant_conv", "post_quant_conv"),
)
_OPEN_CLIP_LAYER: Pairs = (
    ("layer_norm1", "ln_1"),
    ("layer_norm2", "ln_2"),
    ("mlp.fc1", "mlp.c_fc"),
    ("mlp.fc2", "mlp.c_proj"),
    ("self_attn.out_proj", "attn.out_proj"),
)
_QKV = ("q_proj", "k_proj", "v_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """How deep a network is, as far as names depend on it.

    Attributes:
        levels: resolutions.
        layers: resnets per level on the way down; there is one more on the way up.
        transformers: per level on the way down, whether its resnets are followed by transformers.
    """

    levels: int
    layers: int
    transformers: tuple[bool, ...] = ()


def depth_of_unet(weights: Iterable[str]) -> Depth:
    """Read off the names that a UNet's weights have in a checkpoint, without `UNET_PREFIX`."""
    names = set(weights)
    blocks = count(names, "input_blocks.{}.")
    downs = [n for n in range(blocks) if f"input_blocks.{n}.0.op.weight" in names]
    layers = (downs[0] if downs else blocks) - 1
    firsts = range(1, blocks, layers + 1)
    return Depth(
        levels=len(downs) + 1,
        layers=layers,
        transformers=tuple(f"input_blocks.{n}.1.norm.weight" in names for n in firsts),
    )


def depth_of_vae(weights: Iterable[str]) -> Depth:
    """Read off the names that a VAE's weights have in a checkpoint, without `VAE_PREFIX`."""
    names = set(weights)
    return Depth(levels=count(names, "decoder.up.{}."), layers=count(names, "decoder.up.0.block.{}.") - 1)


def unet_to_checkpoint(weights: Mapping[str, Tensor], depth: Depth) -> Weights:
    """Weights of diffusers' ``UNet2DConditionModel`` under their checkpoint names, without `UNET_PREFIX`."""
    return _renamed(weights, dict(_unet_pairs(depth)))


def unet_from_checkpoint(weights: Mapping[str, Tensor], depth: Depth) -> Weights:
    """The way back; what a UNet does not have is left out."""
    return _renamed(weights, {theirs: ours for ours, theirs in _unet_pairs(depth)}, leave_out=True)


def vae_to_checkpoint(weights: Mapping[str, Tensor], depth: Depth) -> Weights:
    """Weights of diffusers' ``AutoencoderKL`` under their checkpoint names, without `VAE_PREFIX`."""
    renamed = _renamed(weights, dict(_vae_pairs(depth)))
    return {k: v[:, :, None, None] if _is_vae_attention(k) and v.ndim == 2 else v for k, v in renamed.items()}


def vae_from_checkpoint(weights: Mapping[str, Tensor], depth: Depth) -> Weights:
    """The way back; what the checkpoint keeps for training the VAE is left out."""
    kept = {k: v[:, :, 0, 0] if _is_vae_attention(k) and v.ndim == 4 else v for k, v in weights.items()}
    return _renamed(kept, {theirs: ours for ours, theirs in _vae_pairs(depth)}, leave_out=True)


def _is_vae_attention(key: str) -> bool:
    return ".attn_1." in key and key.endswith(".weight") and not key.endswith("norm.weight")


def bigg_to_checkpoint(weights: Mapping[str, Tensor]) -> Weights:
    """Weights of transformers' ``CLIPTextModelWithProjection`` in open_clip's layout, without `SDXL_G_PREFIX`."""
    plain = without_wrapper(weights)
    result = {
        "token_embedding.weight": plain["embeddings.token_embedding.weight"],
        "positional_embedding": plain["embeddings.position_embedding.weight"],
        "text_projection": plain["text_projection.weight"].T,
        "ln_final.weight": plain["final_layer_norm.weight"],
        "ln_final.bias": plain["final_layer_norm.bias"],
        "logit_scale": torch.tensor(100.0).log(),  # for comparing with pictures only; kept for completeness
    }
    for layer in range(count(plain, "encoder.layers.{}.")):
        ours, theirs = f"encoder.layers.{layer}", f"transformer.resblocks.{layer}"
        for kind in ("weight", "bias"):
            for a, b in _OPEN_CLIP_LAYER:
                result[f"{theirs}.{b}.{kind}"] = plain[f"{ours}.{a}.{kind}"]
            packed = [plain[f"{ours}.self_attn.{part}.{kind}"] for part in _QKV]
            result[f"{theirs}.attn.in_proj_{kind}"] = torch.cat(packed)
    return result


def bigg_from_checkpoint(weights: Mapping[str, Tensor]) -> Weights:
    """The way back, with the ``text_model.`` prefix that transformers writes for this class."""
    result = {
        "embeddings.token_embedding.weight": weights["token_embedding.weight"],
        "embeddings.position_embedding.weight": weights["positional_embedding"],
        "final_layer_norm.weight": weights["ln_final.weight"],
        "final_layer_norm.bias": weights["ln_final.bias"],
    }
    for layer in range(count(weights, "transformer.resblocks.{}.")):
        ours, theirs = f"encoder.layers.{layer}", f"transformer.resblocks.{layer}"
        for kind in ("weight", "bias"):
            for a, b in _OPEN_CLIP_LAYER:
                result[f"{ours}.{a}.{kind}"] = weights[f"{theirs}.{b}.{kind}"]
            for part, block in zip(_QKV, weights[f"{theirs}.attn.in_proj_{kind}"].chunk(3), strict=True):
                result[f"{ours}.self_attn.{part}.{kind}"] = block
    wrapped = {f"text_model.{k}": v for k, v in result.items()}
    return wrapped | {"text_projection.weight": weights["text_projection"].T}


def without_wrapper(weights: Mapping[str, Tensor]) -> Weights:
    """A CLIP text encoder's weights without the ``text_model.`` that only some versions of transformers write."""
    return {k.removeprefix("text_model."): v for k, v in weights.items() if not k.endswith("position_ids")}


def count(weights: Iterable[str], pattern: str) -> int:
    """How many numbers from 0 on the pattern matches the beginning of a key with."""
    names = tuple(weights)
    return next(n for n in itertools.count() if not any(k.startswith(pattern.format(n)) for k in names))


def _renamed(weights: Mapping[str, Tensor], prefixes: Mapping[str, str], *, leave_out: bool = False) -> Weights:
    """Exchange the longest known module prefix of each key.

    Raises:
        KeyError: a key that no prefix covers, unless such keys are to be left out.
    """
    result: Weights = {}
    for key, weight in weights.items():
        parts = key.split(".")
        known = next((n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in prefixes), None)
        if known is None and leave_out:
            continue
        if known is None:
            raise KeyError(key)
        result[".".join([prefixes[".".join(parts[:known])], *parts[known:]])] = weight
    return result


def _unet_pairs(depth: Depth) -> Iterator[tuple[str, str]]:
    yield from _UNET_ENDS
    for i, place in enumerate((0, 2)):
        yield from _unet_resnet(f"mid_block.resnets.{i}", f"middle_block.{place}")
    place = 1
    for level in range(depth.levels):
        for layer in range(depth.layers):
            yield from _unet_resnet(f"down_blocks.{level}.resnets.{layer}", f"input_blocks.{place}.0")
            yield f"down_blocks.{level}.attentions.{layer}", f"input_blocks.{place}.1"
            place += 1
        yield f"down_blocks.{level}.downsamplers.0.conv", f"input_blocks.{place}.0.op"
        place += 1
    for level, transformer in enumerate(reversed(depth.transformers)):
        for layer in range(depth.layers + 1):
            place = level * (depth.layers + 1) + layer
            yield from _unet_resnet(f"up_blocks.{level}.resnets.{layer}", f"output_blocks.{place}.0")
            yield f"up_blocks.{level}.attentions.{layer}", f"output_blocks.{place}.1"
        yield f"up_blocks.{level}.upsamplers.0.conv", f"output_blocks.{place}.{2 if transformer else 1}.conv"


def _unet_resnet(ours: str, theirs: str) -> Iterator[tuple[str, str]]:
    return ((f"{ours}.{a}", f"{theirs}.{b}") for a, b in _UNET_RESNET)


def _vae_pairs(depth: Depth) -> Iterator[tuple[str, str]]:
    yield from _VAE_ENDS
    for half in ("encoder", "decoder"):
        for i in (0, 1):
            yield from _vae_resnet(f"{half}.mid_block.resnets.{i}", f"{half}.mid.block_{i + 1}")
        for a, b in _VAE_ATTENTION:
            yield f"{half}.mid_block.attentions.0.{a}", f"{half}.mid.attn_1.{b}"
    for level in range(depth.levels):
        down, up = f"encoder.down.{level}", f"decoder.up.{depth.levels - 1 - level}"
        for layer in range(depth.layers):
            yield from _vae_resnet(f"encoder.down_blocks.{level}.resnets.{layer}", f"{down}.block.{layer}")
        for layer in range(depth.layers + 1):
            yield from _vae_resnet(f"decoder.up_blocks.{level}.resnets.{layer}", f"{up}.block.{layer}")
        yield f"encoder.down_blocks.{level}.downsamplers.0.conv", f"{down}.downsample.conv"
        yield f"decoder.up_blocks.{level}.upsamplers.0.conv", f"{up}.upsample.conv"


def _vae_resnet(ours: str, theirs: str) -> Iterator[tuple[str, str]]:
    yield ours, theirs
    yield f"{ours}.conv_shortcut", f"{theirs}.nin_shortcut"
