"""The denoising loss: noise, targets, weights, priors."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ti_fix.errors import WrongUse
from ti_fix.protocols import NoiseSchedule
from ti_fix.train.config import TrainConfig

EPSILON, VELOCITY = "epsilon", "v_prediction"

_MOST_SNR = 1000.0
"""Debiased weights stop falling there, so that the cleanest timesteps keep a little weight."""


def zero_terminal(alphas_cumprod: Tensor) -> Tensor:
    """The schedule shifted and scaled so that its last timestep is pure noise (Lin et al. 2023, arXiv 2305.08891)."""
    root = alphas_cumprod.double().sqrt()
    first, last = root[0], root[-1]
    return ((root - last) * (first / (first - last))).square().to(alphas_cumprod.dtype)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Objective:
    """How far a prediction is from what it should be.

    Attributes:
        alphas_cumprod: (timesteps,) share of signal left, float32 on the CPU.
        prediction: ``epsilon`` or ``v_prediction``.
        loss: ``mse`` or ``huber``.
        delta: of Huber.
        weighting: ``none``, ``min-snr`` or ``debiased``.
        gamma: of min-SNR.
        noise_offset: size of the random brightness per channel.
    """

    alphas_cumprod: Tensor
    prediction: str
    loss: str = "mse"
    delta: float = 0.1
    weighting: str = "none"
    gamma: float = 5.0
    noise_offset: float = 0.0

    @property
    def timesteps(self) -> int:
        return len(self.alphas_cumprod)

    def plain(self) -> Objective:
        """Mean squared error, all timesteps alike: comparable between settings."""
        return replace(self, loss="mse", weighting="none")

    def noise(self, latents: Tensor, generator: torch.Generator) -> Tensor:
        """Noise of the shape of latents (batch, channels, height, width); the offset is Guttenberg's (2023)."""
        noise = torch.randn(latents.shape, generator=generator)
        if self.noise_offset:
            noise = noise + self.noise_offset * torch.randn(*latents.shape[:2], 1, 1, generator=generator)
        return noise

    def noisy(self, latents: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
        """Latents with the noise of their timesteps (Ho et al. 2020, equation 4)."""
        signal, spread = self._factors(timesteps)
        return signal * latents + spread * noise

    def target(self, latents: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
        """What the model should predict: the noise, or the velocity (Salimans & Ho 2022, appendix D)."""
        if self.prediction == EPSILON:
            return noise
        signal, spread = self._factors(timesteps)
        return signal * noise - spread * latents

    def losses(self, output: Tensor, target: Tensor, timesteps: Tensor, mask: Tensor | None = None) -> Tensor:
        """The weighted loss of each picture, (batch,).

        Args:
            output: what the model answered, (batch, channels, height, width).
            target: what it should have.
            timesteps: (batch,).
            mask: (batch, 1, height, width) weights of places; the mean is over what they add up to.
        """
        return self.weights(timesteps) * _spatial_mean(self._errors(output - target), mask)

    def weights(self, timesteps: Tensor) -> Tensor:
        """Factor of each timestep, (batch,).

        Min-SNR: Hang et al. 2023 (arXiv 2303.09556), equations for noise and velocity; debiased: Yu et al. 2023
        (arXiv 2310.08442). At a signal of zero both are taken in their limit.
        """
        signal = self.alphas_cumprod[timesteps]
        snr = signal / (1 - signal).clamp_min(1e-12)
        if self.weighting == "min-snr":
            clipped = snr.clamp(max=self.gamma)
            return clipped / (snr + 1) if self.prediction == VELOCITY else torch.where(snr > 0, clipped / snr, 1.0)
        if self.weighting == "debiased":
            snr = snr.clamp(1e-3, _MOST_SNR)
            return 1 / (snr + 1) if self.prediction == VELOCITY else snr.rsqrt()
        return torch.ones_like(signal)

    def _errors(self, difference: Tensor) -> Tensor:
        """Squared, or pseudo-Huber 2 d (sqrt(x² + d²) - d), which is x² near zero and 2 d |x| far off."""
        if self.loss == "mse":
            return difference.square()
        return 2 * self.delta * ((difference.square() + self.delta**2).sqrt() - self.delta)

    def _factors(self, timesteps: Tensor) -> tuple[Tensor, Tensor]:
        signal = self.alphas_cumprod[timesteps][:, None, None, None]
        return signal.sqrt(), (1 - signal).sqrt()


def _spatial_mean(errors: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return errors.mean(dim=(1, 2, 3))
    weighted = (errors * mask).sum(dim=(1, 2, 3))
    return weighted / (mask.sum(dim=(1, 2, 3)) * errors.shape[1]).clamp_min(1e-12)


def objective(config: TrainConfig, schedule: NoiseSchedule, *, prediction: str | None = None) -> Objective:
    """The objective for a model.

    Args:
        config: the settings.
        schedule: what the model was trained on.
        prediction: overrides what setting and schedule say.

    Raises:
        WrongUse: a schedule whose last timestep is pure noise, with epsilon, or an unknown prediction type.
    """
    kind = prediction or (schedule.prediction_type if config.prediction == "auto" else config.prediction)
    if kind not in (EPSILON, VELOCITY):
        raise WrongUse(f"This model predicts {kind!r}, which is not supported; use an epsilon or v-prediction model.")
    alphas = schedule.alphas_cumprod.detach().float().cpu()
    if config.zero_snr == "on" and alphas[-1] > 0:
        alphas = zero_terminal(alphas)
    if kind == EPSILON and float(alphas[-1]) <= 0:
        raise WrongUse("The last timestep is pure noise, from which epsilon cannot be learned; set prediction.")
    return Objective(
        alphas_cumprod=alphas,
        prediction=kind,
        loss=config.loss,
        delta=config.huber_delta,
        weighting=config.weighting,
        gamma=config.snr_gamma,
        noise_offset=config.noise_offset,
    )


def draw_timesteps(count: int, total: int, generator: torch.Generator, *, stratified: bool) -> Tensor:
    """`count` timesteps from 0 to total - 1.

    Stratified: one from each of `count` equal stretches, in random order; each alone is still uniform.
    """
    if not stratified:
        return torch.randint(0, total, (count,), generator=generator)
    places = torch.randperm(count, generator=generator) + torch.rand(count, generator=generator)
    return (places * (total / count)).long().clamp(max=total - 1)


def norm_prior(block: Tensor, length: float) -> Tensor:
    """Mean squared relative distance of the rows' lengths from the vocabulary's."""
    lengths: Tensor = torch.linalg.vector_norm(block, dim=1)
    return (lengths / length - 1).square().mean()


def direction_prior(block: Tensor, start: Tensor) -> Tensor:
    """Mean of 1 - cosine to the start's rows: a von Mises-Fisher prior (arXiv 2512.13672) up to a constant."""
    return (1 - torch.nn.functional.cosine_similarity(block, start, dim=1)).mean()
