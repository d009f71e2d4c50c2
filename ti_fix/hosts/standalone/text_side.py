"""The text encoders of a model on disk, or of a small one, running: a `TextModel` to encode with and to change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import CLIPTextModel, CLIPTextModelWithProjection

from ti_fix.embedding import FAMILIES, SD15
from ti_fix.hosts.standalone.checkpoint import load_text_encoders
from ti_fix.hosts.text_modules import encoder_of, tokenizer_of
from ti_fix.text_model import TextModel


def running(model: TextModel, path: Path) -> TextModel:
    """The same model with its text encoders loaded, in single precision.

    Args:
        model: as it was read from `path`, with a tokenizer for each encoder that has one.
        path: a diffusers folder or a single file.

    Raises:
        TiFixError: it cannot be loaded.
    """
    modules = _of_folder(model, path) if path.is_dir() else load_text_encoders(path)
    sdxl = model.family is not SD15
    encoders = tuple(
        encoder_of(
            e.place, e.spec, modules[e.spec.key], e.tokenizer, layer=2 if sdxl else 1, final_norm=None if sdxl else True
        )
        for e in model.encoders
        if e.spec.key in modules
    )
    return replace(model, encoders=encoders)


def _of_folder(model: TextModel, path: Path) -> dict[str, Any]:
    classes = {"text_encoder": CLIPTextModel, "text_encoder_2": CLIPTextModelWithProjection}
    return {
        e.spec.key: classes[e.place]
        .from_pretrained(path, subfolder=e.place, local_files_only=True, use_safetensors=True, dtype=torch.float32)
        .eval()
        for e in model.encoders
        if e.place in classes
    }


def text_model_of_small(small: Any) -> TextModel:
    """The text side of a small model (`ti_fix.small.load`)."""
    family = FAMILIES[small.family]
    encoders = tuple(
        encoder_of(spec.key, spec, small.text_encoders[spec.key], tokenizer_of(small.tokenizers[spec.key]))
        for spec in family.encoders
    )
    return TextModel(name=f"small {small.name}", family=family, encoders=encoders)
