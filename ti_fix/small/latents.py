"""The latent space of the small models: what the autoencoder is guided to.

A latent cell stands for 8 x 8 pixels. Channels: mean lightness, two opponent colours, and the local contrast, each
scaled to about zero mean and unit variance over the training scenes. Nearly linear, hence learned in minutes, and
colours are exact. ``VAE_SCALE`` are the scaling factors that hosts expect for the two families.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

CHANNELS = 4
VAE_SCALE = {"sdxl": 0.13025, "sd15": 0.18215}
_MEAN = torch.tensor([-0.08, 0.03, -0.03, 0.10])[None, :, None, None]
_DEVIATION = torch.tensor([0.42, 0.25, 0.25, 0.19])[None, :, None, None]


def target(pixels: Tensor) -> Tensor:
    """Pixels (n, 3, 8h, 8w) in -1..1 -> guide latents (n, 4, h, w)."""
    mean = F.avg_pool2d(pixels, 8)
    variance = (F.avg_pool2d(pixels * pixels, 8) - mean * mean).clamp_min(0)
    contrast = (variance.mean(1, keepdim=True) + 1e-4).sqrt().sqrt() - 0.1
    r, g, b = mean.unbind(1)
    opponent = torch.stack([(r + g + b) / 3, (r - g) / 2, (2 * b - r - g) / 4], 1)
    return (torch.cat([opponent, contrast], 1) - _MEAN) / _DEVIATION


def thumbnail(latents: Tensor) -> Tensor:
    """Latents (n, 4, h, w) -> mean colours (n, 3, h, w) in -1..1; the exact inverse of the colour channels."""
    light, red_green, blue = (latents * _DEVIATION + _MEAN)[:, :3].unbind(1)
    b = light + blue * 4 / 3
    rest = (3 * light - b) / 2
    return torch.stack([rest + red_green, rest - red_green, b], 1)
