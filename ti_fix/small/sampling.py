"""A small sampler for experiments on the small models: DPM-Solver++(2M) in x0 form (Lu et al. 2022)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Predict = Callable[[Tensor, Tensor], Tensor]  # (latents (n, 4, h, w), timesteps (n,)) -> network output


def denoised(output: Tensor, x: Tensor, a: Tensor, prediction: str) -> Tensor:
    """Clean latents from the network output; ``a`` is alphas_cumprod at that time."""
    if prediction == "v_prediction":
        return a.sqrt() * x - (1 - a).sqrt() * output
    return (x - (1 - a).sqrt() * output) / a.sqrt()


def noise_for(seeds: list[int], shape: tuple[int, ...] = (4, 16, 16)) -> Tensor:
    """One noise per seed, whatever the batch it is drawn in."""
    return torch.stack([torch.randn(shape, generator=torch.Generator().manual_seed(s)) for s in seeds])


@torch.no_grad()
def sample(predict: Predict, noise: Tensor, alphas: Tensor, prediction: str, steps: int = 12) -> Tensor:
    """Latents after ``steps`` evaluations of ``predict`` (guidance is its business), times spaced evenly to 999."""
    times = torch.linspace(999, 0, steps + 1).round().long()[:-1]
    x, previous, last_h = noise, None, None
    for k, t in enumerate(times):
        a = alphas[t]
        b = alphas[times[k + 1]] if k + 1 < steps else torch.tensor(1.0)
        clean = denoised(predict(x, t.expand(len(x))), x, a, prediction)
        if k + 1 == steps:
            return clean
        h = 0.5 * (torch.log(b / (1 - b)) - torch.log(a / (1 - a)))
        direction = clean
        if previous is not None and last_h is not None and torch.isfinite(last_h):
            direction = clean + (clean - previous) * h / (2 * last_h)
        if torch.isfinite(h):
            x = ((1 - b) / (1 - a)).sqrt() * x - b.sqrt() * torch.expm1(-h) * direction
        else:  # zero terminal SNR: the first step starts from pure noise
            x = b.sqrt() * clean + (1 - b).sqrt() * x
        previous, last_h = clean, h
    return x
