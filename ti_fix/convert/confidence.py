"""What a conversion's score is worth: calibrated on words whose other half is known.

Words are held out, converted as they are and blurred by growing noise (trained vectors lie off the words, and noise has
no meaning that could carry over), and compared with the truth. A quadratic regression makes one score of the evidence;
the expected cosine as a function of the score is then the isotonic regression (Barlow et al. 1972) of those outcomes,
and the interval is where four fifths of them fell.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ti_fix.convert.ladder import Rung, climb
from ti_fix.convert.linear import fit
from ti_fix.convert.tables import TablePair

HELD_OUT = 1000
"""Words that calibrate; of a small vocabulary a fifth."""

MOST_NOISE = 3.0

WINDOW = 60
"""Outcomes around a score from which its interval is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confidence:
    """What to expect of one converted vector.

    Attributes:
        expected: cosine with what the vector would be in the other encoder, the common part of all words taken off.
        low, high: four of five held-out words of this score fell between.
    """

    expected: float
    low: float
    high: float


CERTAIN = Confidence(expected=1.0, low=1.0, high=1.0)
"""For words and exact sums of words: nothing is estimated."""

WORTHLESS = Confidence(expected=0.0, low=0.0, high=0.0)
"""For rows of zeros: there is nothing to convert."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calibration:
    """Outcomes of held-out words, by score.

    Attributes:
        weights: of the regression that makes one score of the evidence's `_terms`.
        scores: (words,) ascending.
        outcomes: (words,) the true cosine of each.
        expected: (words,) the isotonic fit through them.
    """

    weights: Tensor
    scores: Tensor
    outcomes: Tensor
    expected: Tensor

    def of(self, rung: Rung) -> Confidence:
        """The confidence of one conversion; beyond the scores that were seen, that of the nearest."""
        if rung.evidence is None:
            return CERTAIN if bool(rung.vector.any()) else WORTHLESS
        score = (_terms(torch.tensor([rung.evidence])) @ self.weights)[0]
        place = int(torch.searchsorted(self.scores, score).clamp(0, len(self.scores) - 1))
        start = max(0, min(place - WINDOW // 2, len(self.scores) - WINDOW))
        around = self.outcomes[start : start + WINDOW]
        low, high = (float(q) for q in torch.quantile(around, torch.tensor([0.1, 0.9])))
        expected = float(self.expected[place])
        return Confidence(expected=expected, low=min(low, expected), high=max(high, expected))


def calibrate(pair: TablePair, *, held_out: int = HELD_OUT, seed: int = 1) -> Calibration:
    """Hold words out, convert them by the map, compare.

    Args:
        pair: the words of both tables.
        held_out: how many to hold out; a fifth of all at most.
        seed: of the choice.
    """
    fitted, judged = pair.split(max(2, min(held_out, len(pair.ids) // 5)), seed)
    mapping = fit(fitted, seed=seed)
    rungs = climb(torch.cat([judged.source, _blurred(judged, seed)]), fitted, mapping, "linear")
    guess = torch.stack([r.vector for r in rungs]) - mapping.target_mean
    truth = (judged.target - mapping.target_mean).repeat(2, 1)
    outcomes = torch.cosine_similarity(truth, guess, dim=1)
    terms = _terms(torch.tensor([r.evidence for r in rungs]))
    weights = _regression(terms, outcomes)
    scores, order = (terms @ weights).sort()
    outcomes = outcomes[order]
    return Calibration(weights=weights, scores=scores, outcomes=outcomes, expected=isotonic(outcomes))


def _terms(evidence: Tensor) -> Tensor:
    """Constant, evidence and its products: (n, evidence) -> (n, terms)."""
    count = evidence.shape[1]
    first, second = torch.triu_indices(count, count)
    return torch.cat([torch.ones(len(evidence), 1), evidence, evidence[:, first] * evidence[:, second]], dim=1)


def _regression(terms: Tensor, outcomes: Tensor) -> Tensor:
    """Least squares with a slight pull to zero, since a few hundred words stand against some twenty terms."""
    x, y = terms.double(), outcomes.double()
    square = x.T @ x
    square += 1e-4 * len(x) * torch.eye(len(square), dtype=torch.float64)
    weights: Tensor = torch.linalg.solve(square, x.T @ y)
    return weights.float()


def _blurred(words: TablePair, seed: int) -> Tensor:
    """The words with noise of up to `MOST_NOISE` times their length."""
    random = torch.Generator().manual_seed(seed)
    noise = normalize(torch.randn(words.source.shape, generator=random), dim=1) * words.source_norms.mean()
    level = torch.linspace(0, MOST_NOISE, len(words.ids))
    return words.source + level[:, None] * noise


def isotonic(values: Tensor) -> Tensor:
    """The non-decreasing sequence nearest to `values` (n,) in squared distance, by pooling adjacent violators."""
    blocks: list[tuple[float, int]] = []
    for value in values.tolist():
        mean, count = value, 1
        while blocks and blocks[-1][0] > mean:
            before, others = blocks.pop()
            mean, count = (before * others + mean * count) / (others + count), others + count
        blocks.append((mean, count))
    return torch.cat([torch.full((count,), mean) for mean, count in blocks])
