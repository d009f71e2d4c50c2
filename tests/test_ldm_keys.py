"""Checkpoint names against diffusers' own conversion functions, at the published depths and few channels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from diffusers.loaders.single_file_utils import convert_ldm_unet_checkpoint, convert_ldm_vae_checkpoint

from ti_fix import ldm_keys
from ti_fix.hosts.standalone.checkpoint import unet_config
from ti_fix.ldm_keys import Depth

SDXL: dict[str, Any] = {
    "block_out_channels": (32, 64, 128),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "transformer_layers_per_block": (1, 2, 10),
    "attention_head_dim": (1, 1, 2),
    "use_linear_projection": True,
    "cross_attention_dim": 16,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 1600,
}
SD15: dict[str, Any] = {
    "block_out_channels": (32, 64, 128, 128),
    "attention_head_dim": 8,
    "cross_attention_dim": 16,
}
VAE: dict[str, Any] = {
    "block_out_channels": (32, 64, 128, 128),
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "layers_per_block": 2,
}


def depth_of(config: Any) -> Depth:
    return Depth(
        levels=len(config.block_out_channels),
        layers=config.layers_per_block,
        transformers=tuple("CrossAttn" in kind for kind in config.down_block_types),
    )


@pytest.fixture(scope="module", params=[SDXL, SD15], ids=["sdxl", "sd15"])
def unet(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    return UNet2DConditionModel(**request.param)


def assert_equal(found: Any, expected: Any) -> None:
    assert set(found) == set(expected)
    for key, weight in expected.items():
        assert torch.equal(found[key], weight), key


def test_unet_names_are_those_that_diffusers_reads(unet: Any) -> None:
    weights = unet.state_dict()
    named = ldm_keys.unet_to_checkpoint(weights, depth_of(unet.config))
    stored = {ldm_keys.UNET_PREFIX + key: weight for key, weight in named.items()}
    config = {"layers_per_block": 2, "class_embed_type": None, "addition_embed_type": unet.config.addition_embed_type}
    assert_equal(convert_ldm_unet_checkpoint(stored, config), weights)


def test_unet_depth_and_sizes_are_read_off_the_names(unet: Any) -> None:
    weights = unet.state_dict()
    named = ldm_keys.unet_to_checkpoint(weights, depth_of(unet.config))
    assert ldm_keys.depth_of_unet(named) == depth_of(unet.config)
    assert_equal(ldm_keys.unet_from_checkpoint(named, depth_of(unet.config)), weights)
    sdxl = unet.config.addition_embed_type is not None
    again = UNet2DConditionModel(**unet_config(named, sdxl=sdxl))
    assert {k: v.shape for k, v in again.state_dict().items()} == {k: v.shape for k, v in weights.items()}


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("down_blocks.2.attentions.1.transformer_blocks.9.attn2.to_k.weight", "input_blocks.8.1.transformer_blocks.9"),
        ("down_blocks.0.downsamplers.0.conv.bias", "input_blocks.3.0.op.bias"),
        ("up_blocks.1.upsamplers.0.conv.weight", "output_blocks.5.2.conv.weight"),
        ("add_embedding.linear_2.bias", "label_emb.0.2.bias"),
    ],
)
def test_some_names_as_the_published_sdxl_file_has_them(key: str, name: str) -> None:
    depth = Depth(levels=3, layers=2, transformers=(False, True, True))
    (found,) = ldm_keys.unet_to_checkpoint({key: torch.zeros(1)}, depth)
    assert found.startswith(name)


def test_vae_names_are_those_that_diffusers_reads() -> None:
    torch.manual_seed(0)
    vae = AutoencoderKL(**VAE)
    weights, depth = vae.state_dict(), Depth(levels=4, layers=2)
    named = ldm_keys.vae_to_checkpoint(weights, depth)
    stored = {ldm_keys.VAE_PREFIX + key: weight for key, weight in named.items()}
    assert_equal(convert_ldm_vae_checkpoint(stored, vae.config), weights)
    assert ldm_keys.depth_of_vae(named) == depth
    assert_equal(ldm_keys.vae_from_checkpoint(named | {"loss.logvar": torch.zeros(1)}, depth), weights)


def test_unknown_names_are_refused_on_the_way_out() -> None:
    with pytest.raises(KeyError, match="unheard_of"):
        ldm_keys.unet_to_checkpoint({"unheard_of.weight": torch.zeros(1)}, Depth(levels=1, layers=1))
