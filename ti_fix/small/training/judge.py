"""Train the scene judge: ``python -m ti_fix.small.training.judge --work DIR``."""

from __future__ import annotations

import argparse
import math
import random
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL
from torch import Tensor

from ti_fix.small import captions, latents, scenes
from ti_fix.small.captions import Described
from ti_fix.small.judges import HEADS, SceneJudge, judge_input, obedience, read, truth
from ti_fix.small.training import report
from ti_fix.small.training.checkpoint import load_checkpoint, save_checkpoint

SECONDS = 130.0  # CPU
POOL = 6000
BATCH = 64
REDRAWN = 0.4  # share of pictures seen through the autoencoder


def decoder_from(work: Path) -> AutoencoderKL | None:
    """The autoencoder as trained so far (latents of unit scale), or None."""
    from ti_fix.small.training.vae import CONFIG

    state = load_checkpoint(work / "vae.ckpt")
    if state is None:
        return None
    vae = AutoencoderKL(**CONFIG)
    vae.load_state_dict(state["vae"])
    return vae.eval().requires_grad_(False)


@torch.no_grad()
def redraw(x: Tensor, vae: AutoencoderKL) -> Tensor:
    """Pictures drawn from their own, slightly noisy latents."""
    z = latents.target(x)
    z = z + 0.1 * torch.rand(len(z), 1, 1, 1) * torch.randn_like(z)
    return vae.decoder(vae.post_quant_conv(z)).clamp(-1, 1)


def examples(count: int, seed: int, vae: AutoencoderKL | None) -> tuple[Tensor, list[Described]]:
    """Judge inputs (n, 3, 64, 64), the first part redrawn, and their scenes."""
    rng = random.Random(seed)
    described = [captions.draw(rng, 0.4) for _ in range(count)]
    parts = []
    for i in range(0, count, 50):
        pictures = np.stack([scenes.render(d.scene) for d in described[i : i + 50]])
        x = torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 127.5 - 1
        if vae is not None and i < REDRAWN * count:
            x = redraw(x, vae)
        parts.append(judge_input(x))
    return torch.cat(parts), described


def train(work: Path, seconds: float = SECONDS) -> None:
    """Train and save ``judge.ckpt``; prints accuracies on new scenes, rendered and redrawn."""
    torch.manual_seed(5)
    vae = decoder_from(work)
    x, described = examples(POOL, 501, vae)
    labels = {h: torch.tensor([truth(d)[h] for d in described]) for h in HEADS}
    model = SceneJudge()
    optimiser = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.02, fused=True)
    start, step, losses = time.process_time(), 0, []
    while (spent := time.process_time() - start) < seconds:
        optimiser.param_groups[0]["lr"] = 2e-3 * 0.5 * (1 + math.cos(math.pi * spent / seconds)) + 1e-5
        i = torch.randint(0, POOL, (BATCH,))
        shift = (random.randint(-3, 3), random.randint(-3, 3))
        batch = torch.roll(x[i], shift, (2, 3)) + 0.06 * torch.rand(BATCH, 1, 1, 1) * torch.randn(BATCH, 3, 64, 64)
        out = model(batch)
        known = [h for h in HEADS if (labels[h][i] >= 0).any()]
        loss = torch.stack([F.cross_entropy(out[h], labels[h][i], ignore_index=-1) for h in known]).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        step += 1
        if step % 200 == 0:
            report(step, f"loss {np.mean(losses[-200:]):.3f} cpu {spent:.0f} s")
    save_checkpoint(work / "judge.ckpt", {"judge": model.state_dict(), "width": 32})
    model.eval()
    for name, decoder in (("rendered", None), ("redrawn", vae)):
        if name == "rendered" or decoder is not None:
            rng = random.Random(777)
            test = [captions.draw(rng, 0.4) for _ in range(400)]
            pixels = torch.from_numpy(np.stack([scenes.render(d.scene) for d in test])).permute(0, 3, 1, 2) / 127.5 - 1
            if decoder is not None:
                pixels = torch.cat([redraw(p, decoder) for p in pixels.split(50)])
            report(name, {k: round(v, 3) for k, v in obedience(test, read(pixels, model)).items()})


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    train(args.work, args.seconds)


if __name__ == "__main__":
    main()
