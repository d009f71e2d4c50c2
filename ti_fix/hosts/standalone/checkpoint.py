"""Single-file checkpoints: the configuration is read off the tensors, so nothing is looked up anywhere.

What tensors cannot tell (heads, activations, latent scale) is the same in every model of a family and stands here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from ti_fix import ldm_keys
from ti_fix.embedding import CLIP_G, CLIP_L, SD15, SDXL, EncoderSpec, Family
from ti_fix.errors import TiFixError, UnreadableFile
from ti_fix.hosts.standalone.load import Parts, vae_dtype
from ti_fix.ldm_keys import Weights

_SDXL_HEAD_WIDTH = 64
_SD15_HEADS = 8
_LATENT_SCALE = {SD15.name: 0.18215, SDXL.name: 0.13025}
_TEXT_HEAD_WIDTH = 64
_OTHERS = {
    "conditioner.embedders.0.model.": "the SDXL refiner",
    "cond_stage_model.model.": "an SD 2.x model",
    "model.diffusion_model.joint_blocks.": "an SD3 model",
    "model.diffusion_model.double_blocks.": "a Flux model",
}


def load_checkpoint(
    path: Path, *, device: str = "cpu", dtype: torch.dtype = torch.float32, prediction_type: str | None = None
) -> Parts:
    """Load an SDXL or SD1.5 checkpoint in one ``.safetensors`` file.

    Args:
        path: the file.
        device: where the modules go.
        dtype: their precision.
        prediction_type: ``epsilon`` or ``v_prediction``; by default read off the markers that some files carry.

    Raises:
        TiFixError: another family, a missing part, or an unreadable file.
    """
    weights, told = _read(path, dtype)
    family = _family(path, weights)
    try:
        unet = _unet(_taken(weights, ldm_keys.UNET_PREFIX), family)
        vae = _vae(_taken(weights, ldm_keys.VAE_PREFIX), family, vae_dtype(dtype))
        encoders = _text_encoders(weights, family)
    except KeyError as missing:
        raise TiFixError(f"{path} lacks {missing} or holds it under another name. Use a whole checkpoint.") from None
    predicts = prediction_type or ("v_prediction" if "v_pred" in weights else "epsilon")
    return Parts(
        family=family,
        unet=unet.to(device),
        vae=vae.to(device),
        text_encoders={key: encoder.to(device) for key, encoder in encoders.items()},
        scheduler_config={"prediction_type": predicts, "rescale_betas_zero_snr": "ztsnr" in weights},
        described=(path.name, *told),
    )


def load_text_encoders(path: Path) -> dict[str, Any]:
    """Encoder key -> text encoder of a single file, in single precision; nothing else of the file is read.

    Raises:
        TiFixError: another family, a missing part, or an unreadable file.
    """
    weights, _ = _read(path, torch.float32, ("conditioner.", "cond_stage_model."))
    try:
        return _text_encoders(weights, _family(path, weights))
    except KeyError as missing:
        raise TiFixError(f"{path} lacks {missing} or holds it under another name. Use a whole checkpoint.") from None


def _read(path: Path, dtype: torch.dtype, prefixes: tuple[str, ...] = ("",)) -> tuple[Weights, list[str]]:
    """The tensors, and the texts of the header: titles, and the recipe that WebUIs write into merges."""
    try:
        with safe_open(path, framework="pt") as file:
            told = [text for key, text in (file.metadata() or {}).items() if "thumbnail" not in key]
            keys = [key for key in file.keys() if key.startswith(prefixes)]  # noqa: SIM118 - no mapping
            return {key: _as_type(file.get_tensor(key), dtype) for key in keys}, told
    except SafetensorError as error:
        raise UnreadableFile(
            "not-safetensors", f"{path} is no readable .safetensors file ({error}). Convert or download it again."
        ) from None


def _as_type(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _family(path: Path, weights: Mapping[str, Tensor]) -> Family:
    for prefix, title in _OTHERS.items():
        if any(key.startswith(prefix) for key in weights):
            raise TiFixError(f"{path} is {title}. Give an SDXL or SD1.5 model.")
    if any(key.startswith(ldm_keys.SDXL_G_PREFIX) for key in weights):
        return SDXL
    if any(key.startswith("cond_stage_model.transformer.") for key in weights):
        return SD15
    raise TiFixError(f"{path} has no text encoder. Give a whole checkpoint, not a UNet, VAE or LoRA alone.")


def _taken(weights: Mapping[str, Tensor], prefix: str) -> Weights:
    return {key[len(prefix) :]: tensor for key, tensor in weights.items() if key.startswith(prefix)}


def _unet(weights: Weights, family: Family) -> Any:
    config = unet_config(weights, sdxl=family == SDXL)
    if config["in_channels"] != 4:
        raise TiFixError("Inpainting models cannot be used here. Give the plain model that it was made from.")
    depth = ldm_keys.depth_of_unet(weights)
    return _filled(lambda: UNet2DConditionModel(**config), ldm_keys.unet_from_checkpoint(weights, depth))


def unet_config(weights: Mapping[str, Tensor], *, sdxl: bool) -> dict[str, Any]:
    """diffusers' arguments for a UNet.

    Args:
        weights: its weights under their checkpoint names.
        sdxl: whether heads and conditioning are SDXL's or SD1.5's.
    """
    depth = ldm_keys.depth_of_unet(weights)
    firsts = [1 + level * (depth.layers + 1) for level in range(depth.levels)]
    channels = [weights[f"input_blocks.{n}.0.out_layers.0.weight"].shape[0] for n in firsts]
    middle = ldm_keys.count(weights, "middle_block.1.transformer_blocks.{}.")
    depths = [ldm_keys.count(weights, f"input_blocks.{n}.1.transformer_blocks.{{}}.") or 1 for n in firsts]
    if not depth.transformers[-1]:
        depths[-1] = middle  # diffusers gives the middle block what the last level has
    down = ["CrossAttnDownBlock2D" if has else "DownBlock2D" for has in depth.transformers]
    up = ["CrossAttnUpBlock2D" if has else "UpBlock2D" for has in reversed(depth.transformers)]
    config = {
        "in_channels": weights["input_blocks.0.0.weight"].shape[1],
        "out_channels": weights["out.2.weight"].shape[0],
        "block_out_channels": channels,
        "layers_per_block": depth.layers,
        "down_block_types": down,
        "up_block_types": up,
        "transformer_layers_per_block": depths,
        "cross_attention_dim": weights["middle_block.1.transformer_blocks.0.attn2.to_k.weight"].shape[1],
        "use_linear_projection": weights["middle_block.1.proj_in.weight"].ndim == 2,
        "attention_head_dim": [c // _SDXL_HEAD_WIDTH for c in channels] if sdxl else _SD15_HEADS,
    }
    if sdxl:
        config["addition_embed_type"] = "text_time"
        config["addition_time_embed_dim"] = 256
        config["projection_class_embeddings_input_dim"] = weights["label_emb.0.0.weight"].shape[1]
    return config


def _vae(weights: Weights, family: Family, dtype: torch.dtype) -> Any:
    depth = ldm_keys.depth_of_vae(weights)
    config = {
        "block_out_channels": [weights[f"decoder.up.{i}.block.0.conv1.weight"].shape[0] for i in range(depth.levels)],
        "down_block_types": ["DownEncoderBlock2D"] * depth.levels,
        "up_block_types": ["UpDecoderBlock2D"] * depth.levels,
        "layers_per_block": depth.layers,
        "latent_channels": weights["post_quant_conv.weight"].shape[0],
        "scaling_factor": _LATENT_SCALE[family.name],
    }
    renamed = ldm_keys.vae_from_checkpoint(weights, depth)
    return _filled(lambda: AutoencoderKL(**config), {k: v.to(dtype) for k, v in renamed.items()})


def _text_encoders(weights: Weights, family: Family) -> dict[str, Any]:
    if family == SD15:
        text = ldm_keys.without_wrapper(_taken(weights, "cond_stage_model.transformer."))
        return {"clip_l": _text_encoder(CLIPTextModel, CLIP_L, "quick_gelu", text)}
    clip_l = ldm_keys.without_wrapper(_taken(weights, "conditioner.embedders.0.transformer."))
    clip_g = ldm_keys.bigg_from_checkpoint(_taken(weights, ldm_keys.SDXL_G_PREFIX))
    return {
        "clip_l": _text_encoder(CLIPTextModel, CLIP_L, "quick_gelu", clip_l),
        "clip_g": _text_encoder(CLIPTextModelWithProjection, CLIP_G, "gelu", clip_g),
    }


def _text_encoder(cls: Any, spec: EncoderSpec, activation: str, weights: Weights) -> Any:
    plain = ldm_keys.without_wrapper(weights)
    vocabulary, width = plain["embeddings.token_embedding.weight"].shape
    config = CLIPTextConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=plain["encoder.layers.0.mlp.fc1.weight"].shape[0],
        num_hidden_layers=ldm_keys.count(plain, "encoder.layers.{}."),
        num_attention_heads=width // _TEXT_HEAD_WIDTH,
        hidden_act=activation,
        projection_dim=width,
        bos_token_id=spec.bos_id,
        eos_token_id=spec.eos_id,
        pad_token_id=spec.pad_id,
    )
    module = _filled(lambda: cls(config), plain)
    text = getattr(module, "text_model", module)
    text.embeddings.position_ids = torch.arange(config.max_position_embeddings)[None]  # never stored
    return module


def _filled(make: Callable[[], Any], weights: Weights) -> Any:
    """A module that takes over the tensors themselves, without a random start in between.

    Raises:
        KeyError: a weight is missing.
    """
    with torch.device("meta"):
        module = make()
    wrapped = {name.removeprefix("text_model."): name for name in module.state_dict()}
    module.load_state_dict({wrapped.get(k, k): v for k, v in weights.items()}, strict=False, assign=True)
    for name, parameter in module.named_parameters():
        if parameter.is_meta:
            raise KeyError(name)
    return module.eval()
