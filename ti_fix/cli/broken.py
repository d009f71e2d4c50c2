"""Example files for the demo: the ways in which embeddings reach people broken, each with what a WebUI does today."""

from __future__ import annotations

import json
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

SKIPPED = "skipped, no reason"
CRASH = "listed, then crashes"
ERROR = "error line"


def make_broken_folder(folder: Path) -> dict[str, str]:
    """Write the files.

    Returns:
        File name -> what A1111 1.10 and Forge do with it while an SDXL model is loaded (seen in the running hosts).
    """
    folder.mkdir(parents=True, exist_ok=True)
    left, right = _vectors(4)
    tensors: dict[str, tuple[str, dict[str, Tensor]]] = {
        "healthy-style.safetensors": ("loads", {"clip_l": left, "clip_g": right}),
        "swapped-labels.safetensors": (CRASH, {"clip_l": right, "clip_g": left}),
        "renamed-keys.safetensors": (ERROR, {"text_encoders_0": left, "text_encoders_1": right}),
        "uneven-halves.safetensors": ("overwrites words", {"clip_l": left, "clip_g": right[:2]}),
        "one-row-flat.safetensors": (CRASH, {"clip_l": left[0], "clip_g": right[0]}),
        "side-by-side.safetensors": (CRASH, {"emb_params": torch.cat([left, right], dim=1)}),
        "sideways-lying.safetensors": (SKIPPED, {"clip_l": left.T.contiguous(), "clip_g": right.T.contiguous()}),
        "hosted-trainer.pti": ("not opened", {"text_encoders_0": left, "text_encoders_1": right}),
        "from-sd15.safetensors": (SKIPPED, {"emb_params": left}),
        "learned_embeds.safetensors": (SKIPPED, {"<my-toy>": left[:1]}),
        "learned_embeds_2.safetensors": (SKIPPED, {"<my-toy>": right[:1]}),
        "diverged.safetensors": ("breaks pictures", {"clip_l": left, "clip_g": right * float("nan")}),
        "too-many.safetensors": (CRASH, {"clip_l": left.repeat(20, 1), "clip_g": right.repeat(20, 1)}),
        "a-lora.safetensors": (ERROR, {"lora_unet_mid.lora_down.weight": left, "bundle_emb.hero.clip_l": left}),
    }
    for name, (_, content) in tensors.items():
        halves = {key: block.clone(memory_format=torch.contiguous_format) for key, block in content.items()}
        safetensors.torch.save_file(halves, folder / name)
    return {name: today for name, (today, _) in tensors.items()} | _other_files(folder, left, right)


def _other_files(folder: Path, left: Tensor, right: Tensor) -> dict[str, str]:
    torch.save([{"a": left}, {"b": right}], folder / "list-of-parts.pt")
    torch.save({"string_to_param": {"*": torch.randn(2, 1024)}, "name": "sd2"}, folder / "for-sd2.pt")
    (folder / "login-page.safetensors").write_text("<!DOCTYPE html><title>Log in</title>", encoding="utf-8")
    (folder / "not-signed-in.safetensors").write_text(json.dumps({"error": "Unauthorized"}), encoding="utf-8")
    (folder / "empty.pt").write_bytes(b"")
    return {
        "list-of-parts.pt": ERROR,
        "for-sd2.pt": SKIPPED,
        "login-page.safetensors": ERROR,
        "not-signed-in.safetensors": ERROR,
        "empty.pt": "nothing said",
    }


def _vectors(rows: int) -> tuple[Tensor, Tensor]:
    """Vectors of the lengths that everyday words have in SDXL's two token tables."""
    random = torch.Generator().manual_seed(7)
    left = torch.nn.functional.normalize(torch.randn(rows, 768, generator=random), dim=1) * 0.37
    right = torch.nn.functional.normalize(torch.randn(rows, 1280, generator=random), dim=1) * 0.58
    return left, right
