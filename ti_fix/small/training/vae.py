"""Train the autoencoder: ``python -m ti_fix.small.training.vae --work DIR`` (resumable).

The encoder regresses to the guide latents of :mod:`ti_fix.small.latents`; the decoder learns to draw 128-pixel
pictures from them. Both halves are independent, so that diffusion models can train on the guide while the decoder
still learns.
"""

from __future__ import annotations

import argparse
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL
from torch import Tensor

from ti_fix.small import captions, latents, scenes
from ti_fix.small.training import report
from ti_fix.small.training.checkpoint import Pacer, load_checkpoint, save_checkpoint

CONFIG: dict[str, Any] = {
    "block_out_channels": (32, 32, 32, 32),
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "layers_per_block": 0,
    "latent_channels": 4,
    "norm_num_groups": 8,
    "sample_size": 128,
    "scaling_factor": 1.0,
    "force_upcast": False,
}
ENCODER_SECONDS, DECODER_SECONDS = 150.0, 360.0  # CPU
BATCH = 8
POOL = 3000  # rendered pictures kept; a few are replaced every step
LATENT_NOISE = 0.08  # the decoder must forgive what a diffusion model leaves


def scene_pixels(count: int, rng: random.Random) -> Tensor:
    """Random scenes as (n, 3, 128, 128) in -1..1."""
    pictures = np.stack([scenes.render(captions.draw(rng, two=0.4).scene) for _ in range(count)])
    return torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 127.5 - 1


def psnr(a: Tensor, b: Tensor) -> float:
    """Peak signal to noise ratio in dB for pictures in -1..1."""
    return 10 * math.log10(4 / F.mse_loss(a.clamp(-1, 1), b).item())


class Trainer:
    """The autoencoder and one optimiser per half."""

    def __init__(self, work: Path) -> None:
        torch.manual_seed(11)
        self.path, self.rng = work / "vae.ckpt", random.Random(11)
        self.vae = AutoencoderKL(**CONFIG)
        with torch.no_grad():
            self.vae.quant_conv.bias[4:] = -12.0  # little sampling noise
        half = {
            "encoder": [self.vae.encoder, self.vae.quant_conv],
            "decoder": [self.vae.decoder, self.vae.post_quant_conv],
        }
        self.parameters = {k: [p for m in v for p in m.parameters()] for k, v in half.items()}
        self.optimisers = {
            k: torch.optim.AdamW(p, lr=3e-3, weight_decay=0.0, betas=(0.9, 0.98), fused=True)
            for k, p in self.parameters.items()
        }
        self.spent = {"encoder": 0.0, "decoder": 0.0}
        self.steps = 0
        state = load_checkpoint(self.path)
        if state:
            self.vae.load_state_dict(state["vae"])
            for key, optimiser in self.optimisers.items():
                optimiser.load_state_dict(state[key])
            self.spent, self.steps = state["spent"], state["steps"]
            self.rng.seed(11_000 + self.steps)
        self.pool = scene_pixels(POOL // 10, self.rng)

    def save(self) -> None:
        """Write the resumable checkpoint."""
        state = {k: o.state_dict() for k, o in self.optimisers.items()}
        save_checkpoint(self.path, state | {"vae": self.vae.state_dict(), "spent": self.spent, "steps": self.steps})

    def _pictures(self) -> Tensor:
        fresh = scene_pixels(BATCH, self.rng)
        if len(self.pool) < POOL:
            self.pool = torch.cat([self.pool, fresh])
        else:
            self.pool[torch.randint(0, POOL, (BATCH,))] = fresh
        return torch.cat([fresh, self.pool[torch.randint(0, len(self.pool), (BATCH // 2,))]])

    def train_step(self, half: str, progress: float) -> float:
        """One step of the encoder (latent MSE) or the decoder (L1 + MSE in pixels)."""
        rate = 3e-3 * min(1.0, (self.steps + 1) / 60) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))
        optimiser = self.optimisers[half]
        optimiser.param_groups[0]["lr"] = rate
        x = self._pictures()
        guide = latents.target(x)
        if half == "encoder":
            loss = F.mse_loss(self.vae.quant_conv(self.vae.encoder(x))[:, :4], guide)
        else:
            noisy = guide + LATENT_NOISE * torch.rand(len(x), 1, 1, 1) * torch.randn_like(guide)
            y = self.vae.decoder(self.vae.post_quant_conv(noisy))
            loss = F.l1_loss(y, x) + F.mse_loss(y, x)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters[half], 1.0)
        optimiser.step()
        self.steps += 1
        return loss.item()

    def run(self, half: str, seconds: float) -> None:
        """Train one half until its CPU budget is spent."""
        pacer, losses = Pacer(self.spent[half]), []
        while self.spent[half] < seconds:
            losses.append(self.train_step(half, self.spent[half] / seconds))
            self.spent[half] = pacer.tick()
            if self.steps % 25 == 0:
                recent = losses[-25:]
                report(half, self.steps, f"loss {sum(recent) / len(recent):.4f} cpu {pacer.spent:.0f} s")
            if pacer.due():
                self.save()
                pacer.leave_if_asked()
        self.save()

    @torch.no_grad()
    def report(self) -> dict[str, float]:
        """Errors on unseen scenes."""
        x = scene_pixels(64, random.Random(977))
        guide = latents.target(x)
        mean = self.vae.quant_conv(self.vae.encoder(x))[:, :4]
        out = {"latent_mse": F.mse_loss(mean, guide).item()}
        for name, z in (("guide", guide), ("encoded", mean)):
            out[f"psnr_{name}"] = psnr(self.vae.decoder(self.vae.post_quant_conv(z)), x)
        return {k: round(v, 4) for k, v in out.items()}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    trainer = Trainer(args.work)
    trainer.run("encoder", ENCODER_SECONDS)
    trainer.run("decoder", DECODER_SECONDS)
    report(trainer.report())


if __name__ == "__main__":
    main()
