"""A linear map between two token tables, fitted in closed form (ridge regression, Hoerl & Kennard 1970)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ti_fix.convert.tables import TablePair, parted

PENALTIES = tuple(10.0**p for p in range(-4, 3))
"""Ridge penalties tried, in units of the mean eigenvalue of the source's covariance."""

MOST_JUDGED = 2000
"""Words at most that choose the penalty and are reported on; of a small vocabulary a tenth."""


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
        """Map rows (..., source width) to (..., target width)."""
        return (source - self.source_mean) @ self.weight + self.target_mean


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moments:
    """Sums over words, float64; those of a part can be taken off again, so that holding words out costs nothing."""

    count: int
    source: Tensor
    target: Tensor
    square: Tensor
    cross: Tensor

    @classmethod
    def of(cls, pair: TablePair) -> Moments:
        """Of all words of a pair."""
        sums = [_sums(source, target) for source, target in pair.blocks()]
        source, target, square, cross = (torch.stack(each).sum(0) for each in zip(*sums, strict=True))
        return cls(count=len(pair.ids), source=source, target=target, square=square, cross=cross)

    def __sub__(self, other: Moments) -> Moments:
        return Moments(
            count=self.count - other.count,
            source=self.source - other.source,
            target=self.target - other.target,
            square=self.square - other.square,
            cross=self.cross - other.cross,
        )

    @property
    def covariance(self) -> Tensor:
        """Of the source, summed over words, (source width, source width)."""
        return self.square - torch.outer(self.source, self.source) / self.count


def fit(pair: TablePair, *, held_out: int | None = None, seed: int = 0, moments: Moments | None = None) -> LinearMap:
    """Fit on all words after the penalty was chosen on held-out ones.

    Args:
        pair: the words.
        held_out: words kept back to choose the penalty and to report on; a tenth, 2,000 at most, by default.
        seed: of that choice.
        moments: of the words, where they are known already.
    """
    held_out = held_out if held_out is not None else max(1, min(MOST_JUDGED, len(pair.ids) // 10))
    judged = pair.take(parted(len(pair.ids), held_out, seed)[0])
    moments = moments or Moments.of(pair)
    solver = _Solver(moments - Moments.of(judged))
    scored = [(_centred(solver.at(p), judged), p) for p in PENALTIES]
    (r_squared, cosine), penalty = max(scored, key=lambda s: s[0][0])
    return replace(solve(moments, penalty), r_squared=r_squared, cosine=cosine)


def solve(moments: Moments, penalty: float) -> LinearMap:
    """The map for these words and this penalty."""
    return _Solver(moments).at(penalty)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LeftOut:
    """What the map would do for a word had it been fitted without it (the closed form of Allen 1974, PRESS).

    Attributes:
        mapping: fitted on all words.
        inverse: of the damped covariance, (source width, source width).
    """

    mapping: LinearMap
    inverse: Tensor

    @classmethod
    def of(cls, mapping: LinearMap, moments: Moments) -> LeftOut:
        """For the words that the map was fitted on."""
        covariance = moments.covariance
        damping = (mapping.penalty * covariance.diagonal().mean()).clamp(min=1e-12)
        return cls(
            mapping=mapping,
            inverse=torch.linalg.inv(covariance + damping * torch.eye(len(covariance)).double()).float(),
        )

    def map(self, vectors: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Map vectors (n, source width), each without one word whose rows in both tables are given."""
        residual = target - self.mapping(source)
        pulled = (source - self.mapping.source_mean) @ self.inverse
        share = ((vectors - self.mapping.source_mean) * pulled).sum(1) / (1 - self.leverage(source))
        return self.mapping(vectors) - share[:, None] * residual

    def worth(self, pair: TablePair) -> Tensor:
        """How well each word converts unseen: cosine with the truth, the common part taken off, and miss; (2, words).

        The miss is the length of what the map gets wrong.
        """
        centre = self.mapping.target_mean
        found = []
        for source, target in ((left.cpu(), right.cpu()) for left, right in pair.blocks()):
            missed = (target - self.mapping(source)) / (1 - self.leverage(source))[:, None]
            cosine = torch.cosine_similarity(target - missed - centre, target - centre, dim=1)
            found.append(torch.stack([cosine, torch.linalg.vector_norm(missed, dim=1)]))
        return torch.cat(found, dim=1)

    def leverage(self, source: Tensor) -> Tensor:
        """How much each word pulls the map to itself, (n,) below 1."""
        centred = source - self.mapping.source_mean
        return ((centred @ self.inverse) * centred).sum(1).clamp(max=0.999)


class _Solver:
    """The centred normal equations, diagonalised once for all penalties."""

    def __init__(self, moments: Moments) -> None:
        self.source_mean = moments.source / moments.count
        self.target_mean = moments.target / moments.count
        cross = moments.cross - moments.count * torch.outer(self.source_mean, self.target_mean)
        self._values, self._vectors = torch.linalg.eigh(moments.covariance)
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


def _sums(source: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    sums = source.sum(0), target.sum(0), source.T @ source, source.T @ target
    first, second, square, cross = (each.double().cpu() if not each.is_cuda else each.cpu().double() for each in sums)
    return first, second, square, cross


def _centred(fitted: LinearMap, judged: TablePair) -> tuple[float, float]:
    """R squared and mean centred cosine on words that the map has not seen."""
    truth = judged.target - fitted.target_mean
    guess = fitted(judged.source) - fitted.target_mean
    r_squared = 1 - float((truth - guess).square().sum() / truth.square().sum())
    return r_squared, float(torch.cosine_similarity(truth, guess, dim=1).mean())
