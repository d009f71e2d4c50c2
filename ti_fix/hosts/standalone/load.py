"""Models from disk: diffusers folders and single-file checkpoints, read from local files only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from torch import Tensor
from transformers import CLIPTextModel, CLIPTextModelWithProjection

from ti_fix.embedding import FAMILIES, SD15, SDXL, Family
from ti_fix.errors import TiFixError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parts:
    """A model's modules; see `ti_fix.hosts.standalone.ModelParts`.

    Attributes:
        trained: which rows of the token tables mean anything, None where all do: `Vocabulary.trained`.
        described: what is written about the model: its file name, titles, merge recipes, the kind of scheduler.
    """

    family: Family
    unet: Any
    vae: Any
    text_encoders: Mapping[str, Any]
    scheduler_config: Mapping[str, Any]
    trained: Tensor | None = None
    described: tuple[str, ...] = ()


def parts_of_small(model: Any) -> Parts:
    """The modules of a small model (`ti_fix.small.load`), or of its expanded form."""
    return Parts(
        family=FAMILIES[model.family],
        unet=model.unet,
        vae=model.vae,
        text_encoders=model.text_encoders,
        scheduler_config=model.scheduler,
        trained=next(iter(getattr(model, "trained_rows", {}).values()), None),
        described=(f"small:{name}",) if (name := getattr(model, "name", "")) else (),
    )


def load_folder(folder: Path, *, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Parts:
    """Load a diffusers folder.

    Raises:
        TiFixError: the folder lacks a part, or the model is of a family that is not supported here.
    """
    config = _read_json(folder / "text_encoder" / "config.json")
    if config.get("projection_dim") == 1024 or config["hidden_size"] == 1024:
        raise TiFixError(f"{folder} holds an SD 2.x model. Give an SDXL or SD1.5 model.")
    sdxl = (folder / "text_encoder_2").is_dir()
    encoders = {"clip_l": _from_folder(CLIPTextModel, folder, "text_encoder", dtype)}
    if sdxl:
        encoders["clip_g"] = _from_folder(CLIPTextModelWithProjection, folder, "text_encoder_2", dtype)
    scheduler = _read_json(folder / "scheduler" / "scheduler_config.json")
    return Parts(
        family=SDXL if sdxl else SD15,
        unet=_from_folder(UNet2DConditionModel, folder, "unet", dtype).to(device),
        vae=_from_folder(AutoencoderKL, folder, "vae", vae_dtype(dtype)).to(device),
        text_encoders={key: encoder.to(device) for key, encoder in encoders.items()},
        scheduler_config=scheduler,
        described=(folder.name, str(scheduler.get("_class_name", ""))),
    )


def vae_dtype(dtype: torch.dtype) -> torch.dtype:
    """SDXL's VAE overflows in half precision, so it keeps single precision there."""
    return torch.float32 if dtype == torch.float16 else dtype


def _from_folder(cls: Any, folder: Path, part: str, dtype: torch.dtype) -> Any:
    files = [f.name for f in (folder / part).glob("*.safetensors")]
    if not files:
        raise TiFixError(f"{folder / part} holds no .safetensors file. Save the model again in that format.")
    half = all(".fp16." in name for name in files)
    # transformers calls the precision by its new name only
    named: dict[str, Any] = {"dtype" if cls.__module__.startswith("transformers") else "torch_dtype": dtype}
    variant = "fp16" if half else None
    model = cls.from_pretrained(
        folder, subfolder=part, local_files_only=True, use_safetensors=True, variant=variant, **named
    )
    return model.eval()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TiFixError(f"{path} is missing. Give the folder that holds a model's model_index.json.") from None
    return content
