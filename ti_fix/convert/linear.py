"""A linear map between two token tables, fitted in closed form (ridge regression, Hoerl & Kennard 1970)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ti_fix.convert.tables import TablePair

PENALTIES = tuple(10.0**p for p in range(-4, 3))
"""Ridge penalties tried, in units of the mean eigenvalue of the source's covariance."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinearMap:
    """target - target_mean = (source - source_mean) @ weight.

    Attributes:
        weight: (source width, target width).
        source_mean, target_mean: means of the words it was fitted on.
        penalty: the ridge penalty that served held-out words best.
        r_squared: share of the target's variance that it explains on held-out words.
        cosine: mean cosine on held-out words after the target's mean is taken off.
    """

    weight: Tensor
    source_mean: Tensor
    target_mean: Tensor
    penalty: float
    r_squared: float
    cosine: float

    def __call__(self, source: Tensor) -> Tensor:
        """Map rows (n, source width) to (n, target width)."""
        return (source - self.source_mean) @ self.weight + self.target_mean


def fit(pair: TablePair, *, held_out: int | None = None, seed: int = 0) -> LinearMap:
    """Fit on all words after the penalty was chosen on held-out ones.

    Args:
        pair: the words.
        held_out: words kept back to choose the penalty and to report on; a tenth, 2,000 at most, by default.
        seed: of that choice.
    """
    held_out = held_out if held_out is not None else max(1, min(2000, len(pair.ids) // 10))
    fitted, judged = pair.split(held_out, seed)
    moments = _Moments.of(fitted)
    solver = _Solver(moments)
    scored = [(_centred(solver.at(p), judged), p) for p in PENALTIES]
    (r_squared, cosine), penalty = max(scored, key=lambda s: s[0][0])
    whole = _Solver(moments + _Moments.of(judged)).at(penalty)
    return replace(whole, r_squared=r_squared, cosine=cosine)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Moments:
    """Sums over words; those of disjoint parts add up, so that the whole costs nothing extra."""

    count: int
    source: Tensor
    target: Tensor
    square: Tensor
    cross: Tensor

    @classmethod
    def of(cls, pair: TablePair) -> _Moments:
        return cls(
            count=len(pair.ids),
            source=pair.source.double().sum(0),
            target=pair.target.double().sum(0),
            square=(pair.source.T @ pair.source).double(),
            cross=(pair.source.T @ pair.target).double(),
        )

    def __add__(self, other: _Moments) -> _Moments:
        return _Moments(
            count=self.count + other.count,
            source=self.source + other.source,
            target=self.target + other.target,
            square=self.square + other.square,
            cross=self.cross + other.cross,
        )


class _Solver:
    """The centred normal equations, diagonalised once for all penalties."""

    def __init__(self, moments: _Moments) -> None:
        self.source_mean = moments.source / moments.count
        self.target_mean = moments.target / moments.count
        covariance = moments.square - moments.count * torch.outer(self.source_mean, self.source_mean)
        cross = moments.cross - moments.count * torch.outer(self.source_mean, self.target_mean)
        self._values, self._vectors = torch.linalg.eigh(covariance)
        self._cross = self._vectors.T @ cross

    def at(self, penalty: float) -> LinearMap:
        values = self._values.clamp(min=0)
        damped = values + penalty * values.mean() + 1e-12 * values.max()
        weight = self._vectors @ (self._cross / damped[:, None])
        return LinearMap(
            weight=weight.float(),
            source_mean=self.source_mean.float(),
            target_mean=self.target_mean.float(),
            penalty=penalty,
            r_squared=float("nan"),
            cosine=float("nan"),
        )


def _centred(fitted: LinearMap, judged: TablePair) -> tuple[float, float]:
    """R squared and mean centred cosine on words that the map has not seen."""
    truth = judged.target - fitted.target_mean
    guess = fitted(judged.source) - fitted.target_mean
    r_squared = 1 - float((truth - guess).square().sum() / truth.square().sum())
    return r_squared, float(torch.cosine_similarity(truth, guess, dim=1).mean())
