"""Checks of the loaded model before the first step: does the gradient tell the truth, and what does it predict?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ti_fix.errors import TiFixError
from ti_fix.train.engine import Batch, Engine
from ti_fix.train.objective import EPSILON, VELOCITY, Objective

STEPS = (0.003, 0.01, 0.001, 0.03, 0.1, 0.3)
"""Lengths of the trial steps, as shares of the vectors' length: small ones drown in rounding, large ones bend."""

_CLOSE = 0.005
"""Disagreement at which no further step is tried."""

_TOLERANCE = {torch.float32: 0.02, torch.float64: 0.02}
_HALF_TOLERANCE = 0.25


def check_gradient(engine: Engine, batch: Batch, vectors: Mapping[str, Tensor]) -> dict[str, float]:
    """Compare the gradient with central differences of the loss along it, encoder by encoder.

    Args:
        engine: with the model.
        batch: what the loss is computed on.
        vectors: encoder key -> (vectors, width).

    Returns:
        Encoder key -> smallest relative disagreement over the trial steps.

    Raises:
        TiFixError: no gradient arrives, or it disagrees: training would do nothing, or harm.
    """
    scale = engine.first_scale()
    tolerance = _HALF_TOLERANCE if scale > 1 or _is_half(engine) else 0.02
    gradients = _gradients(engine, batch, vectors, scale)
    found = {}
    for key, gradient in gradients.items():
        if not bool(gradient.isfinite().all()) or float(gradient.norm()) == 0:
            raise TiFixError(
                f"No usable gradient reaches the vectors of {key}. The attention that is loaded cannot be trained "
                "through, or the name fell out of the prompt; choose another attention (for example sdp) and try again."
            )
        found[key] = _disagreement(engine, batch, vectors, key, gradient)
        if found[key] > tolerance:
            raise TiFixError(
                f"The gradient for {key} is wrong by {found[key]:.0%} against finite differences, so training would go "
                "astray. Choose another attention (for example sdp), switch checkpointing and other optimisations off, "
                "and try again."
            )
    return found


def _is_half(engine: Engine) -> bool:
    return any(p.dtype not in _TOLERANCE for p in engine.model.unet.parameters())


def _gradients(engine: Engine, batch: Batch, vectors: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    with torch.inference_mode(False), torch.enable_grad():
        leaves = {key: block.detach().clone().requires_grad_() for key, block in vectors.items()}
        loss = engine.losses(batch, leaves).mean()
        if not loss.requires_grad:
            return {key: torch.zeros_like(block) for key, block in leaves.items()}
        try:
            found = torch.autograd.grad(loss * scale, list(leaves.values()), allow_unused=True)
        except NotImplementedError as error:
            raise TiFixError(
                f"The backward pass cannot be done ({error}); choose another attention (for example sdp) and try again."
            ) from None
    return {
        key: torch.zeros_like(block) if gradient is None else gradient / scale
        for (key, block), gradient in zip(leaves.items(), found, strict=True)
    }


@torch.no_grad()
def _disagreement(engine: Engine, batch: Batch, vectors: Mapping[str, Tensor], key: str, gradient: Tensor) -> float:
    direction = gradient / gradient.norm()
    worst_rounding = 1e-6 if not _is_half(engine) else 1e-3
    errors = []
    for share in STEPS:
        step = share * vectors[key].norm() * direction
        ahead, behind = (
            engine.losses(batch, {**vectors, key: vectors[key] + sign * step}).double().mean() for sign in (1, -1)
        )
        expected = float((gradient.double() * step.double()).sum())
        if abs(expected) < worst_rounding * float(ahead.abs()):
            continue  # the difference would be rounding alone
        errors.append(abs(float(ahead - behind) / 2 / expected - 1))
        if errors[-1] < _CLOSE:
            break
    return min(errors, default=0.0)


@torch.no_grad()
def measured_prediction(engine: Engine, batches: Sequence[Batch], vectors: Mapping[str, Tensor]) -> str | None:
    """What the model's output looks like at high noise: ``epsilon``, ``v_prediction``, or None where it is unclear.

    There the noise and the velocity differ most: a model of noise answers with nearly its input, one of velocity with
    nearly the picture's negative.
    """
    objective = engine.objective
    errors = {EPSILON: 0.0, VELOCITY: 0.0}
    for batch in batches:
        timesteps = torch.full_like(batch.timesteps, int(0.85 * objective.timesteps))
        conditioning = engine.model.encode_prompts(batch.prompts, {engine.config.name: vectors}, batch.sizes)
        noisy = objective.noisy(batch.latents, batch.noise, timesteps)
        output = engine.model.predict(noisy, timesteps, conditioning)
        for kind in errors:
            wanted = _as(objective, kind).target(batch.latents, batch.noise, timesteps)
            errors[kind] += float((output - wanted).square().mean()) / float(wanted.square().mean()) / len(batches)
    better, worse = sorted(errors, key=lambda kind: errors[kind])
    return better if errors[better] < 0.8 and errors[better] < 0.5 * errors[worse] else None


def _as(objective: Objective, kind: str) -> Objective:
    return Objective(alphas_cumprod=objective.alphas_cumprod, prediction=kind)
