"""Noise schedules and Euler sampling with classifier-free guidance, by diffusers' schedulers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from diffusers import DDPMScheduler, EulerDiscreteScheduler
from PIL import Image
from torch import Tensor

from ti_fix.errors import WrongUse
from ti_fix.protocols import Conditioning, NoiseSchedule

_BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "num_train_timesteps": 1000}
_TAKEN = (*_BETAS, "prediction_type", "rescale_betas_zero_snr")


def noise_schedule(config: Mapping[str, Any]) -> NoiseSchedule:
    """The process a model was trained on, from its ``scheduler_config.json``; Stable Diffusion's betas by default."""
    trained: Any = DDPMScheduler(**_settings(config))
    return NoiseSchedule(alphas_cumprod=trained.alphas_cumprod, prediction_type=trained.config.prediction_type)


def starting_noise(seeds: Sequence[int], height: int, width: int, latent_scale: int) -> Tensor:
    """Standard normal latents (batch, 4, height / scale, width / scale), each from its own seed, always on the CPU.

    Raises:
        WrongUse: the size is no multiple of the latent scale.
    """
    if height % latent_scale or width % latent_scale or min(height, width) <= 0:
        raise WrongUse(f"{width} x {height} pixels cannot be made. Use multiples of {latent_scale}.")
    shape = 4, height // latent_scale, width // latent_scale
    return torch.stack([torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds])


def joined(conditionings: Sequence[Conditioning]) -> Conditioning:
    """One batch out of several of the same context length."""
    vectors = [c.vector for c in conditionings if c.vector is not None]
    return Conditioning(
        context=torch.cat([c.context for c in conditionings]), vector=torch.cat(vectors) if vectors else None
    )


def sample(
    predict: Callable[[Tensor, Tensor, Conditioning], Tensor],
    scheduler_config: Mapping[str, Any],
    noise: Tensor,
    wanted: Conditioning,
    unwanted: Conditioning,
    *,
    steps: int,
    cfg_scale: float,
) -> Tensor:
    """Latents (batch, 4, …) after Euler steps from the last timestep to the first, as the WebUIs' “Euler” walks.

    Guidance: Ho & Salimans 2022 (arXiv 2207.12598).
    """
    settings = _settings(scheduler_config)
    scheduler: Any = EulerDiscreteScheduler(**settings, timestep_spacing="linspace")
    scheduler.set_timesteps(steps)
    latents: Tensor = noise * scheduler.init_noise_sigma
    for timestep in scheduler.timesteps:
        inputs = scheduler.scale_model_input(latents, timestep)
        times = timestep.expand(len(latents))
        output = _guided(predict, inputs, times, wanted, unwanted, cfg_scale)
        latents = scheduler.step(output, timestep, latents).prev_sample
    return latents


def _guided(
    predict: Callable[[Tensor, Tensor, Conditioning], Tensor],
    inputs: Tensor,
    times: Tensor,
    wanted: Conditioning,
    unwanted: Conditioning,
    cfg_scale: float,
) -> Tensor:
    if cfg_scale == 1:
        return predict(inputs, times, wanted)
    if wanted.context.shape == unwanted.context.shape:
        both = predict(torch.cat([inputs, inputs]), torch.cat([times, times]), joined([wanted, unwanted]))
        towards, away = both.chunk(2)
    else:  # prompts of different numbers of chunks do not fit one batch
        towards, away = predict(inputs, times, wanted), predict(inputs, times, unwanted)
    return away + cfg_scale * (towards - away)


def to_images(pixels: Tensor) -> list[Image.Image]:
    """Pixels (batch, 3, height, width) in -1…1 -> PIL pictures."""
    levels = ((pixels.float() + 1) * 127.5).round().clamp(0, 255).byte().cpu()
    return [Image.fromarray(np.asarray(picture.permute(1, 2, 0))) for picture in levels]


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    return {**_BETAS, **{key: config[key] for key in _TAKEN if key in config}}
