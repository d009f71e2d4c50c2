"""The fixed loss: one figure for a state of the vectors that can be compared between steps, rates and starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ti_fix.train.buckets import View
from ti_fix.train.engine import Batch, Engine

_NOISED = 0.3, 0.95
"""Shares of the timesteps between which the loss is looked at: below, hardly anything depends on the prompt; above, one
draw of noise decides. Per timestep of 1000 the rank correlation with the measured error of a hue was -0.02 at 50, 0.32
at 350, 0.71 at 500 and 0.92 to 0.98 from 650 to 930 (`benchmarks/fixed_loss.py` has the means)."""

_LEAST = 1e-12


class FixedLoss:
    """What is left of the loss beside that of captions without the name, on the same noise.

    Every timestep counts alike: its loss over pictures and noises is divided by that of the captions without the name.
    The plain mean is all but decided by the cleanest timesteps, whose loss is the largest and hardly depends on the
    prompt. Pictures, crops, captions, noise and timesteps are the same every time, so differences are not blurred by
    chance, and 1 means no better than without the embedding.

    Args:
        engine: inside `trainable()`.
        views: of the pictures to look at.

    Attributes:
        batches: what goes through the model, in order.
    """

    def __init__(self, engine: Engine, views: Sequence[View]) -> None:
        self._engine = engine
        count = engine.config.validation_timesteps
        low, high = (share * engine.objective.timesteps for share in _NOISED)
        self._timesteps = (low + (torch.arange(count) + 0.5) * ((high - low) / count)).long()
        self.batches = [
            engine.fixed_batch(view, self._timesteps[start : start + engine.config.batch_size])
            for view in views
            for start in range(0, count, engine.config.batch_size)
        ]
        self._without: Tensor | None = None

    def __call__(self, vectors: Mapping[str, Tensor]) -> float:
        """The figure, the same for the same vectors."""
        if self._without is None:
            name = self._engine.config.name
            self._without = self._by_timestep([_without(batch, name) for batch in self.batches], {})
        return float((self._by_timestep(self.batches, vectors) / self._without.clamp_min(_LEAST)).mean())

    @torch.no_grad()
    def _by_timestep(self, batches: Sequence[Batch], vectors: Mapping[str, Tensor]) -> Tensor:
        """Mean plain loss at each timestep, (timesteps,)."""
        losses = torch.cat([self._engine.losses(batch, vectors, plain=True).double() for batch in batches])
        times = torch.cat([batch.timesteps for batch in batches])
        return torch.stack([losses[times == each].mean() for each in self._timesteps.unique()])


def _without(batch: Batch, name: str) -> Batch:
    return replace(batch, prompts=tuple(" ".join(prompt.replace(name, " ").split()) for prompt in batch.prompts))
