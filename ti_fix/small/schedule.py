"""Stable Diffusion's noise schedule."""

from __future__ import annotations

import torch
from torch import Tensor


def alphas_cumprod(zero_terminal: bool = False) -> Tensor:
    """Scaled-linear schedule, (1000,); rescaled to zero terminal SNR by Lin et al. 2023 (arXiv 2305.08891), alg. 1."""
    betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=torch.float64) ** 2
    root = (1 - betas).cumprod(0).sqrt()
    if zero_terminal:
        root = (root - root[-1]) * root[0] / (root[0] - root[-1])
    return (root**2).float()
