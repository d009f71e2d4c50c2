"""Is the checkpoint distilled (Turbo, Lightning, Hyper, LCM, merges with them)? By its name, and by its answers."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from ti_fix.train.engine import Batch, Engine
from ti_fix.train.objective import EPSILON, Objective

LEVELS = (499, 749)
"""Timesteps of the probe, of 1000: those that models of four steps were distilled at, among them."""

GUESSING = 0.4
"""Share of guessed detail from which a model counts as distilled; see `guessed_detail`."""

_PICTURES = 4
_BLOCK = 4
"""Side of the squares of latents whose mean is taken away: what is left is detail."""

_NAMES = {
    "Turbo": r"turbo",
    "Lightning": r"lightning",
    "LCM": r"(?-i:LCM)|(?<![a-z])lcm(?![a-z])|latent[ _-]?consistency",
    "Hyper-SD": r"hyper[ _-]?(?:sd|\d+[ _-]?steps?)|(?-i:(?<=[a-z\d])Hyper|(?<![A-Za-z])[Hh]yper)(?![ _-]?[a-z])",
    "DMD": r"(?<![a-z])dmd2?(?![a-z])",
    "TCD": r"(?-i:TCD)(?![a-z])|(?<![a-z])tcd(?![a-z])",
    "few steps": r"(?<!\d)(?:1|2|4|6|8|12|16)[ _-]?steps?(?![a-z])|distill(?:ed|ation)",
}
"""Kind -> how file names and merge recipes write it. “Hyper” alone counts, “hyperrealistic” does not."""


def named(texts: Sequence[str]) -> list[str]:
    """Kinds of distillation that file names, titles, merge recipes or schedulers tell of."""
    return [kind for kind, sign in _NAMES.items() if any(re.search(sign, text, re.IGNORECASE) for text in texts)]


@torch.no_grad()
def guessed_detail(engine: Engine, batches: Sequence[Batch]) -> float | None:
    """How much of the detail that noise has hidden is made up: 0 for a denoiser, about 1 for a distilled model.

    A network that was trained to predict noise answers with the mean of all pictures that can lie under it, so its
    error is uncorrelated with its answer; detail that cannot be known is missing. A distilled one answers with one
    such picture. With d the detail of the picture and a that of the answer, the figure is
    ``(a·a - a·d) / (d·d - a·d)``: what was added wrongly over what is not known. The lowest of `LEVELS`, since a badly
    trained network answers with noise at the higher ones.

    Returns:
        None where the model does not work as a denoiser at all, so that nothing can be said.
    """
    objective, found = engine.objective, []
    rows = [batch.rows([0]) for batch in {batch.pictures[0]: batch for batch in batches}.values()][:_PICTURES]
    for level in LEVELS:
        added = missing = wrong = total = 0.0
        for batch in rows:
            timesteps = torch.full_like(batch.timesteps, int(level / 1000 * objective.timesteps))
            told = engine.model.encode_prompts([""], {}, batch.sizes)  # words that do not fit would add wrong detail
            noisy = objective.noisy(batch.latents, batch.noise, timesteps)
            output = engine.model.predict(noisy, timesteps, told)
            target = objective.target(batch.latents, batch.noise, timesteps)
            wrong, total = wrong + _product(output - target, output - target), total + _product(target, target)
            answer, picture = _detail(_clean(objective, noisy, output, timesteps)), _detail(batch.latents)
            added += _product(answer, answer - picture)
            missing += max(_product(picture, picture - answer), 0.1 * _product(picture, picture))
        if wrong > 0.5 * total or missing == 0:
            return None
        found.append(added / missing)
    return min(found, default=None)


def _clean(objective: Objective, noisy: Tensor, output: Tensor, timesteps: Tensor) -> Tensor:
    """The latents that an answer stands for."""
    signal = objective.alphas_cumprod[timesteps][:, None, None, None]
    if objective.prediction == EPSILON:
        return (noisy - (1 - signal).sqrt() * output) / signal.sqrt()
    return signal.sqrt() * noisy - (1 - signal).sqrt() * output


def _detail(latents: Tensor) -> Tensor:
    means = torch.nn.functional.avg_pool2d(latents, _BLOCK, ceil_mode=True)
    return latents - torch.nn.functional.interpolate(means, size=latents.shape[-2:])


def _product(one: Tensor, other: Tensor) -> float:
    return float((one.double() * other.double()).sum())
