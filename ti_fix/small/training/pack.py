"""Write the trained checkpoints as fp16 packs; skips what is not trained yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ti_fix.small.clip import CONFIG as CLIP_CONFIG
from ti_fix.small.packs import FOLDER, write_pack
from ti_fix.small.training import report
from ti_fix.small.training.checkpoint import load_checkpoint
from ti_fix.small.training.diffusion import RECIPES, UNET, Model, Recipe, load_average
from ti_fix.small.training.encoders import TOWER_OF, finished_tower
from ti_fix.small.training.towers import KINDS
from ti_fix.small.training.vae import CONFIG as VAE_CONFIG


def pack_rows(encoder: str, work: Path, folder: Path) -> None:
    """Trained token rows and the pictures behind them."""
    tower, kind = finished_tower(encoder, work), KINDS[TOWER_OF[encoder]]
    tensors = {"ids": tower.used.to(torch.int32), "rows": tower.rows, "pictures": tower.pictures.to(torch.int32)}
    write_pack(f"rows_{encoder}", tensors, {"filler_seed": kind.seed, "row_length": kind.row_length}, folder)


def pack_model(name: str, work: Path, folder: Path) -> None:
    """A diffusion model: averaged UNet, and the text weights that differ from its base model's."""
    recipe, state = RECIPES[name], load_checkpoint(work / f"model_{name}.ckpt")
    if state is None:
        return
    model = Model(recipe.family, work, named=recipe.named)
    load_average(model, state)
    weights: dict[str, Tensor] = {f"unet.{k}": v for k, v in model.unet.state_dict().items()}
    for key, encoder in model.encoders.items():
        weights |= {f"{key}.{k}": v for k, v in encoder.body().items()}
        if recipe.named:
            weights[f"names.{key}"] = encoder.table.extra
            weights["names.ids"] = encoder.table.extra_ids.to(torch.int32)
    about: dict[str, Any] = {
        "family": recipe.family,
        "prediction": recipe.prediction,
        "zero_terminal": recipe.zero_terminal,
        "unet": UNET[recipe.family],
        "base": recipe.base,
        "steps": state["step"],
        "cpu_seconds": round(state["spent"]),
    }
    if recipe.base:
        weights = _without_shared(weights, recipe, work)
    write_pack(name, weights, about, folder)


def _without_shared(weights: dict[str, Tensor], recipe: Recipe, work: Path) -> dict[str, Tensor]:
    """Only the tensors whose fp16 form differs from the base model's (a UNet of another family shares nothing)."""
    base = str(recipe.base)
    state = load_checkpoint(work / f"model_{base}.ckpt")
    if state is None:
        raise FileNotFoundError(f"{base} has no checkpoint in {work}")
    model = Model(RECIPES[base].family, work)
    load_average(model, state)
    same = RECIPES[base].family == recipe.family
    shared: dict[str, Tensor] = {f"unet.{k}": v for k, v in model.unet.state_dict().items()} if same else {}
    for key, encoder in model.encoders.items():
        shared |= {f"{key}.{k}": v for k, v in encoder.body().items()}
    return {
        k: v
        for k, v in weights.items()
        if k not in shared or shared[k].shape != v.shape or not torch.equal(shared[k].half(), v.half())
    }


def pack_all(work: Path, folder: Path = FOLDER) -> None:
    """Write every pack whose checkpoint exists and print the sizes."""
    for encoder in TOWER_OF:
        if (work / f"tower_{TOWER_OF[encoder]}.ckpt").exists():
            pack_rows(encoder, work, folder)
    vae = load_checkpoint(work / "vae.ckpt")
    if vae is not None:
        write_pack("vae", {f"vae.{k}": v for k, v in vae["vae"].items()}, {"vae": VAE_CONFIG}, folder)
    judge = load_checkpoint(work / "judge.ckpt")
    if judge is not None:
        write_pack("judge", {f"judge.{k}": v for k, v in judge["judge"].items()}, {"width": judge["width"]}, folder)
    clip = load_checkpoint(work / "clip.ckpt")
    if clip is not None:
        table = "token_embedding.weight"
        tensors = {f"clip.{k}": v for k, v in clip["model"].items() if k != table}
        write_pack(
            "clip", tensors | {"ids": clip["ids"].to(torch.int32), "rows": clip["model"][table]}, CLIP_CONFIG, folder
        )
    for name in RECIPES:
        pack_model(name, work, folder)
    for path in sorted(folder.glob("*.safetensors")):
        report(path.name, f"{path.stat().st_size / 1e6:.2f} MB")
