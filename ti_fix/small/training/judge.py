"""Train the scene judge: ``python -m ti_fix.small.training.judge --work DIR`` (resumable)."""

from __future__ import annotations

import argparse
import math
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL
from torch import Tensor

from ti_fix.small import captions, latents, scenes
from ti_fix.small.captions import Described
from ti_fix.small.judges import (
    HEADS,
    SLOT,
    WHOLE,
    SceneJudge,
    as_pixels,
    cut_outs,
    judge_input,
    obedience,
    read,
    truth,
)
from ti_fix.small.training import report
from ti_fix.small.training.checkpoint import Pacer, load_checkpoint, save_checkpoint

SECONDS = 850.0  # CPU
POOL = 5000
BATCH = 64
REDRAWN = 0.4  # share of the pictures seen through the autoencoder
FRESH = 10  # new pictures a step, in the place of older ones


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


def pixels(described: list[Described]) -> Tensor:
    """Scenes as pictures (n, 3, 128, 128) in -1..1."""
    return as_pixels(np.stack([scenes.render(d.scene) for d in described]))


@dataclass(slots=True, kw_only=True)
class Examples:
    """Scenes as the judge sees them: ``whole`` (n, 3, 64, 64), ``things`` (n, 2, 4, 40, 40), ``labels`` of (n,)."""

    whole: Tensor
    things: Tensor
    labels: dict[str, Tensor]

    @classmethod
    def of(cls, described: list[Described], vae: AutoencoderKL | None = None) -> Examples:
        """Rendered, or redrawn by the autoencoder; what is drawn is moved by a few pixels at random."""
        whole, things = [], []
        for i in range(0, len(described), 50):
            part = described[i : i + 50]
            x = pixels(part) if vae is None else redraw(pixels(part), vae)
            whole.append(judge_input(x))
            things.append(cut_outs(x, [d.layout for d in part]))
        labels = {h: torch.tensor([truth(d)[h] for d in described]) for h in HEADS}
        return cls(whole=torch.cat(whole), things=torch.cat(things), labels=labels)

    def put(self, at: list[int], new: Examples) -> None:
        """Replace examples."""
        self.whole[at], self.things[at] = new.whole, new.things
        for head, values in self.labels.items():
            values[at] = new.labels[head]


def shaken(x: Tensor) -> Tensor:
    """Cut-outs or pictures, moved by up to two pixels, with noise and a change of light."""
    x = torch.roll(x, (random.randint(-2, 2), random.randint(-2, 2)), (-2, -1))
    light = 1 + 0.12 * torch.randn(len(x), 1, 1, 1)
    return (x * light + 0.08 * torch.rand(len(x), 1, 1, 1) * torch.randn_like(x)).clamp(-1, 1)


def loss_of(model: SceneJudge, seen: Examples, chosen: Tensor) -> Tensor:
    """Sum of the heads' cross-entropies; of one-object scenes only the first slot counts."""
    labels = {h: v[chosen] for h, v in seen.labels.items()}
    out = model.about_whole(shaken(seen.whole[chosen]))
    losses = [F.cross_entropy(out[h], labels[h]) for h in WHOLE]
    wanted_of = {a: torch.stack([labels[f"{a}0"], labels[f"{a}1"]], 1).flatten() for a in SLOT}
    there = wanted_of["texture"] >= 0  # every object has one
    things = model.about_things(shaken(seen.things[chosen].flatten(0, 1)[there]))
    for attribute, logits in things.items():
        wanted = wanted_of[attribute][there]
        if (wanted >= 0).any():
            losses.append(F.cross_entropy(logits, wanted, ignore_index=-1))
    return torch.stack(losses).sum()


class Trainer:
    """The judge in training, with examples that are renewed."""

    def __init__(self, work: Path, seconds: float = SECONDS) -> None:
        self.path, self.seconds, self.vae = work / "judge.ckpt", seconds, decoder_from(work)
        state = load_checkpoint(self.path) or {"spent": 0.0, "step": 0}
        self.spent, self.step = float(state["spent"]), int(state["step"])
        torch.manual_seed(5 + self.step)
        random.seed(5 + self.step)
        self.rng = random.Random(501 + self.step)
        self.model = SceneJudge().to(memory_format=torch.channels_last)
        self.optimiser = torch.optim.AdamW(self.model.parameters(), 2e-3, weight_decay=0.02, fused=True)
        if "judge" in state:
            self.model.load_state_dict(state["judge"])
            self.optimiser.load_state_dict(state["optimiser"])
        self.seen = self._draw(POOL)

    def _draw(self, count: int) -> Examples:
        """New scenes; the first part redrawn by the autoencoder."""
        described = [captions.draw(self.rng, 0.4) for _ in range(count)]
        first = int(count * REDRAWN) if self.vae is not None else 0
        parts = [Examples.of(d, v) for d, v in ((described[:first], self.vae), (described[first:], None)) if d]
        return Examples(
            whole=torch.cat([p.whole for p in parts]),
            things=torch.cat([p.things for p in parts]),
            labels={h: torch.cat([p.labels[h] for p in parts]) for h in HEADS},
        )

    def save(self) -> None:
        """Write the resumable checkpoint."""
        state = {"judge": self.model.state_dict(), "optimiser": self.optimiser.state_dict(), "width": 32}
        save_checkpoint(self.path, state | {"spent": self.spent, "step": self.step})

    def train_step(self) -> float:
        """Renew a few examples and take one step."""
        self.optimiser.param_groups[0]["lr"] = 2e-3 * 0.5 * (1 + math.cos(math.pi * self.spent / self.seconds)) + 1e-5
        self.seen.put([self.rng.randrange(POOL) for _ in range(FRESH)], self._draw(FRESH))
        loss = loss_of(self.model, self.seen, torch.randint(0, POOL, (BATCH,)))
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        self.step += 1
        return loss.item()

    def run(self) -> None:
        """Train until the CPU budget is spent, then print the accuracies."""
        pacer, losses = Pacer(self.spent), []
        while self.spent < self.seconds:
            losses.append(self.train_step())
            self.spent = pacer.tick()
            if self.step % 200 == 0:
                report(self.step, f"loss {np.mean(losses[-200:]):.3f} cpu {self.spent:.0f} s")
            if pacer.due():
                self.save()
                pacer.leave_if_asked()
        self.save()
        show_accuracy(self.model.eval(), self.vae)


def show_accuracy(model: SceneJudge, vae: AutoencoderKL | None) -> None:
    """Print the share of right words on new scenes, rendered and redrawn."""
    rng = random.Random(777)
    test = [captions.draw(rng, 0.4) for _ in range(400)]
    for name, decoder in (("rendered", None), ("redrawn", vae)):
        shown = pixels(test)
        if name == "redrawn":
            if decoder is None:
                continue
            shown = torch.cat([redraw(p, decoder) for p in shown.split(50)])
        report(name, {k: round(v, 3) for k, v in obedience(test, read(shown, model)).items()})


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    Trainer(args.work, args.seconds).run()


if __name__ == "__main__":
    main()
