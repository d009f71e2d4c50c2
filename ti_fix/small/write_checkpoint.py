"""Small models as the files that programs load: a diffusers folder, or one checkpoint for a WebUI.

A WebUI knows the published sizes only, so a checkpoint of other depths comes with what its host reads beside it:
AUTOMATIC1111 a ``.yaml`` of the same name, Forge a folder of component configurations that a matcher extension
points to. Both hosts find the tensors under the names that the models were published with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file

from ti_fix import ldm_keys
from ti_fix.errors import WrongUse
from ti_fix.ldm_keys import Depth, Weights
from ti_fix.small.expand import expand
from ti_fix.small.host_yaml import webui_config
from ti_fix.small.tokenizer_files import write_tokenizer

LAYOUTS = ("a1111", "forge", "diffusers")

_PARTS = {"clip_l": ("text_encoder", "tokenizer"), "clip_g": ("text_encoder_2", "tokenizer_2")}


class Writable(Protocol):
    """A small model, `ti_fix.small.load`; ``scheduler`` holds a diffusers scheduler's arguments."""

    @property
    def unet(self) -> Any: ...
    @property
    def vae(self) -> Any: ...
    @property
    def text_encoders(self) -> Mapping[str, Any]: ...
    @property
    def tokenizers(self) -> Mapping[str, Any]: ...
    @property
    def scheduler(self) -> Mapping[str, Any]: ...


def write_demo_model(model: Writable, layout: str, out: Path) -> list[Path]:
    """Expand a small model to the real widths and write it in half precision.

    Args:
        model: the small model.
        layout: one of `LAYOUTS`.
        out: the folder to fill for ``diffusers``, the ``.safetensors`` file otherwise.

    Returns:
        the files written.

    Raises:
        WrongUse: another layout, or a file name that hosts would not see.
    """
    if layout not in LAYOUTS:
        raise WrongUse(f"There is no layout “{layout}”. Choose one of: {', '.join(LAYOUTS)}.")
    if layout != "diffusers" and out.suffix != ".safetensors":
        raise WrongUse(f"{out} must end with .safetensors, or the WebUI does not list it.")
    wide = expand(model)
    if layout == "diffusers":
        return _write_folder(wide, out, weights=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    save_file({k: _half(v) for k, v in checkpoint_weights(wide).items()}, out, metadata={"format": "pt"})
    beside = out.with_suffix("")
    if layout == "forge":
        return [out, *_write_folder(wide, beside, weights=False)]
    return [out, *_write_webui_files(wide, out, beside)]


def checkpoint_weights(model: Writable) -> Weights:
    """Every weight of a wide model under the names that single-file checkpoints use.

    ``v_pred`` and ``ztsnr`` are the empty markers by which hosts tell v-prediction and zero terminal SNR.
    """
    unet, vae = model.unet.config, model.vae.config
    unet_depth = Depth(
        levels=len(unet.block_out_channels),
        layers=unet.layers_per_block,
        transformers=tuple("CrossAttn" in kind for kind in unet.down_block_types),
    )
    vae_depth = Depth(levels=len(vae.block_out_channels), layers=vae.layers_per_block)
    clip_l = ldm_keys.without_wrapper(model.text_encoders["clip_l"].state_dict())
    l_prefix = ldm_keys.SDXL_L_PREFIX if "clip_g" in model.text_encoders else ldm_keys.SD15_TEXT_PREFIX
    parts = {
        ldm_keys.UNET_PREFIX: ldm_keys.unet_to_checkpoint(model.unet.state_dict(), unet_depth),
        ldm_keys.VAE_PREFIX: ldm_keys.vae_to_checkpoint(model.vae.state_dict(), vae_depth),
        l_prefix: clip_l,
    }
    if "clip_g" in model.text_encoders:
        parts[ldm_keys.SDXL_G_PREFIX] = ldm_keys.bigg_to_checkpoint(model.text_encoders["clip_g"].state_dict())
    weights = {prefix + key: weight for prefix, part in parts.items() for key, weight in part.items()}
    if model.scheduler.get("prediction_type") == "v_prediction":
        weights["v_pred"] = torch.empty(0)
    if model.scheduler.get("rescale_betas_zero_snr"):
        weights["ztsnr"] = torch.empty(0)
    return weights


def _half(weight: torch.Tensor) -> torch.Tensor:
    # a copy of its own: neither views nor two names of one tensor can be stored
    return weight.half().clone(memory_format=torch.contiguous_format)


def _write_webui_files(wide: Writable, out: Path, beside: Path) -> list[Path]:
    """The ``.yaml`` and what it points to, by absolute path: the host's working directory is its own."""
    clip_l, paths = wide.text_encoders["clip_l"], []
    folder = (beside / "clip-l").absolute()
    paths += write_tokenizer(wide.tokenizers["clip_l"], folder)
    paths.append(_write_json(folder / "config.json", clip_l.config.to_dict()))
    bigg = None
    if "clip_g" in wide.text_encoders:
        config = wide.text_encoders["clip_g"].config
        tower = {"context_length": 77, "vocab_size": config.vocab_size, "width": config.hidden_size}
        tower |= {"heads": config.num_attention_heads, "layers": config.num_hidden_layers}
        picture = {
            "image_size": 32,
            "layers": 1,
            "width": 64,
            "head_width": 64,
            "patch_size": 16,
        }  # thrown away by the host
        bigg = (beside / f"{out.stem}-bigg.json").absolute()
        about = {"embed_dim": config.projection_dim, "vision_cfg": picture, "text_cfg": tower}
        paths.append(_write_json(bigg, about))
    yaml = out.with_suffix(".yaml")
    # JSON is YAML, and needs no package to be written
    paths.append(_write_json(yaml, webui_config(wide, clip_l=folder, bigg=bigg)))
    return paths


def _write_folder(wide: Writable, folder: Path, *, weights: bool) -> list[Path]:
    """A diffusers folder; without weights it is the component configurations alone."""
    sdxl = "clip_g" in wide.text_encoders
    index: dict[str, Any] = {"_class_name": "StableDiffusionXLPipeline" if sdxl else "StableDiffusionPipeline"}
    index |= {"force_zeros_for_empty_prompt": True} if sdxl else {"safety_checker": [None, None]}
    index |= {} if sdxl else {"feature_extractor": [None, None], "requires_safety_checker": False}
    modules = {"unet": wide.unet, "vae": wide.vae}
    for key, encoder in wide.text_encoders.items():
        part, tokenizer = _PARTS[key]
        modules[part] = encoder
        index[tokenizer] = ["transformers", "CLIPTokenizer"]
        write_tokenizer(wide.tokenizers[key], folder / tokenizer)
    for part, module in modules.items():
        index[part] = [module.__module__.partition(".")[0], type(module).__name__]
        if weights:
            module.half().save_pretrained(folder / part)
        else:
            (folder / part).mkdir(parents=True, exist_ok=True)
            config = module.config
            _write_json(folder / part / "config.json", config.to_dict() if hasattr(config, "to_dict") else dict(config))
    scheduler = {"_class_name": "EulerDiscreteScheduler", **wide.scheduler}
    (folder / "scheduler").mkdir(exist_ok=True)
    _write_json(folder / "scheduler" / "scheduler_config.json", scheduler)
    index["scheduler"] = ["diffusers", "EulerDiscreteScheduler"]
    _write_json(folder / "model_index.json", index)
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _write_json(path: Path, content: Mapping[str, Any]) -> Path:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path
