"""Train the scene judge: ``python -m ti_fix.small.training.judge --work DIR``."""

from __future__ import annotations

import argparse
import math
import random
import time
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
from ti_fix.small.training.checkpoint import load_checkpoint, save_checkpoint

SECONDS = 400.0  # CPU
POOL = 6000
BATCH = 64
REDRAWN = 0.4  # share of the first pictures seen through the autoencoder
FRESH = 10  # new rendered pictures a step, in the place of older rendered ones


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


def train(work: Path, seconds: float = SECONDS) -> None:
    """Train and save ``judge.ckpt``; prints accuracies on new scenes, rendered and redrawn."""
    torch.manual_seed(5)
    random.seed(5)
    vae, rng = decoder_from(work), random.Random(501)
    drawn = [captions.draw(rng, 0.4) for _ in range(POOL)]
    first = int(POOL * REDRAWN)
    seen = Examples.of(drawn)
    if vae is not None:
        seen.put(list(range(first)), Examples.of(drawn[:first], vae))
    model = SceneJudge().to(memory_format=torch.channels_last)
    optimiser = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.02, fused=True)
    start, step, losses = time.process_time(), 0, []
    while (spent := time.process_time() - start) < seconds:
        optimiser.param_groups[0]["lr"] = 2e-3 * 0.5 * (1 + math.cos(math.pi * spent / seconds)) + 1e-5
        at = [rng.randrange(first, POOL) for _ in range(FRESH)]
        seen.put(at, Examples.of([captions.draw(rng, 0.4) for _ in range(FRESH)]))
        loss = loss_of(model, seen, torch.randint(0, POOL, (BATCH,)))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        step += 1
        if step % 200 == 0:
            report(step, f"loss {np.mean(losses[-200:]):.3f} cpu {spent:.0f} s")
    save_checkpoint(work / "judge.ckpt", {"judge": model.state_dict(), "width": 32})
    show_accuracy(model.eval(), vae)


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
    train(args.work, args.seconds)


if __name__ == "__main__":
    main()
