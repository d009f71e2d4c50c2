"""Means with bootstrap intervals, and paired differences."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean with what is known of it.

    Attributes:
        mean: of the values.
        low, high: 95 % interval; equal to the mean where there is only one value.
        n: values behind it.
    """

    mean: float
    low: float
    high: float
    n: int

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out 0 (for a difference)."""
        return self.low > 0 or self.high < 0


def estimate(values: Tensor, *, seed: int = 0) -> Estimate | None:
    """Mean and percentile bootstrap interval (Efron 1979); values that are NaN are left out.

    Args:
        values: (n,).
        seed: of the resampling, so that a report can be made again.

    Returns:
        None where no value is left.
    """
    kept = values.double()[~values.isnan()]
    count = len(kept)
    if not count:
        return None
    generator = torch.Generator().manual_seed(seed)
    places = torch.randint(count, (RESAMPLES, count), generator=generator)
    means = kept[places].mean(dim=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = means.quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return Estimate(mean=float(kept.mean()), low=low, high=high, n=count)


def difference(values: Tensor, baseline: Tensor, *, seed: int = 0) -> Estimate | None:
    """Mean of values - baseline over pairs made from the same prompt and seed.

    Args:
        values: (n,).
        baseline: (n,), in the same order.
        seed: see `estimate`.
    """
    return estimate(values.double() - baseline.double(), seed=seed)
