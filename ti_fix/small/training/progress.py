"""How far a diffusion model is: ``python -m ti_fix.small.training.progress NAME --work DIR [--pictures N]``.

Prints the x0 error by time with the right, a shuffled and the empty caption (cheap), then obedience of sampled
pictures by the scene judge.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ti_fix.small import captions, latents
from ti_fix.small.judges import SceneJudge, obedience, read
from ti_fix.small.sampling import denoised, noise_for, sample
from ti_fix.small.schedule import alphas_cumprod
from ti_fix.small.training import report
from ti_fix.small.training.checkpoint import load_checkpoint
from ti_fix.small.training.diffusion import RECIPES, Model, load_average
from ti_fix.small.training.judge import decoder_from
from ti_fix.small.training.pool import guide_latents


def load_model(name: str, work: Path) -> Model:
    """The averaged weights of a training checkpoint."""
    state = load_checkpoint(work / f"model_{name}.ckpt")
    if state is None:
        raise FileNotFoundError(f"no checkpoint of {name} in {work}")
    model = Model(RECIPES[name].family, work, RECIPES[name].named)
    load_average(model, state)
    report(name, "steps", state["step"], f"cpu {state['spent']:.0f} s")
    return model.eval().requires_grad_(False)


@torch.no_grad()
def x0_errors(model: Model, name: str, count: int = 48) -> None:
    """Mean squared x0 error for the right, a shuffled and the empty caption."""
    rng = random.Random(4242)
    described = [captions.draw(rng, 0.34) for _ in range(count)]
    z, texts = guide_latents(described), [captions.plain_caption(d, rng) for d in described]
    alphas, noise = alphas_cumprod(RECIPES[name].zero_terminal), noise_for(list(range(count)))
    for t in (980, 900, 750, 500, 250):
        a = alphas[t]
        x = a.sqrt() * z + (1 - a).sqrt() * noise
        row = []
        for lines in (texts, texts[1:] + texts[:1], [""] * count):
            out = model.predict(x, torch.full((count,), t), *model.condition(lines))
            row.append(((denoised(out, x, a, RECIPES[name].prediction) - z) ** 2).mean().item())
        report(f"t {t}: right {row[0]:.3f} shuffled {row[1]:.3f} empty {row[2]:.3f}")


@torch.no_grad()
def generate(
    model: Model, name: str, texts: list[str], guidance: float, steps: int, seed: int = 0, batch: int = 64
) -> Tensor:
    """Latents for captions, classifier-free guidance against the zeroed (SDXL) or empty (SD1.5) condition."""
    alphas, parts = alphas_cumprod(RECIPES[name].zero_terminal), []
    for i in range(0, len(texts), batch):
        lines = texts[i : i + batch]
        states, pooled = model.condition(lines)
        if pooled is None:
            empty, no_pool = model.condition([""] * len(lines))[0], None
        else:
            empty, no_pool = torch.zeros_like(states), torch.zeros_like(pooled)

        def predict(
            x: Tensor,
            t: Tensor,
            states: Tensor = states,
            pooled: Tensor | None = pooled,
            empty: Tensor = empty,
            no_pool: Tensor | None = no_pool,
        ) -> Tensor:
            both = torch.cat([empty, states])
            pools = None if pooled is None or no_pool is None else torch.cat([no_pool, pooled])
            bare, full = model.predict(torch.cat([x, x]), torch.cat([t, t]), both, pools).chunk(2)
            return bare + guidance * (full - bare)

        noise = noise_for([seed + i + k for k in range(len(lines))])
        parts.append(sample(predict, noise, alphas, RECIPES[name].prediction, steps))
    return torch.cat(parts)


def pictures_of(z: Tensor, work: Path) -> Tensor:
    """Decoded pictures (n, 3, 128, 128); enlarged thumbnails while there is no decoder."""
    vae = decoder_from(work)
    if vae is None:
        return latents.thumbnail(z).clamp(-1, 1).repeat_interleave(8, 2).repeat_interleave(8, 3)
    with torch.no_grad():
        return torch.cat([vae.decoder(vae.post_quant_conv(p)) for p in z.split(32)]).clamp(-1, 1)


def sheet(x: Tensor, path: Path, columns: int = 12) -> None:
    """Save pictures (n, 3, h, w) as one contact sheet."""
    a = ((x.permute(0, 2, 3, 1).numpy() + 1) * 127.5).clip(0, 255).astype(np.uint8)
    rows = [np.concatenate(list(a[i : i + columns]), 1) for i in range(0, len(a) - columns + 1, columns)]
    Image.fromarray(np.concatenate(rows, 0)).save(path)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted(RECIPES))
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--pictures", type=int, default=96)
    parser.add_argument("--guidance", type=float, default=4.0)
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(args.name, args.work)
    x0_errors(model, args.name)
    if not args.pictures:
        return
    rng = random.Random(31)
    described = [captions.draw(rng, 0.34) for _ in range(args.pictures)]
    texts = [captions.plain_caption(d, rng) for d in described]
    x = pictures_of(generate(model, args.name, texts, args.guidance, args.steps), args.work)
    sheet(x, args.work / f"sheet_{args.name}.png")
    report("\n".join(texts[:12]))
    state = load_checkpoint(args.work / "judge.ckpt")
    if state is not None:
        judge = SceneJudge(state["width"])
        judge.load_state_dict(state["judge"])
        report({k: round(v, 3) for k, v in obedience(described, read(x, judge.eval())).items()})


if __name__ == "__main__":
    main()
