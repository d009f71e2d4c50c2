"""What a conversion's score is worth: calibrated on words whose other half is known.

Each word is converted by the map as it would be had the word not been there, as it is and blurred by growing noise
(trained vectors lie off the words, and noise has no meaning that could carry over), and compared with the truth; and
blurred once more with the word there, as a vector may have moved away from a word that is known. A
regression makes one score of the evidence; the expected cosine as a function of the score is then the isotonic
regression (Barlow et al. 1972), rising between the centres of its steps (Oron & Flournoy 2017), of outcomes that the
regression has not seen. The interval cuts equal tails off the
outcomes of like scores, so wide that four fifths of the unblurred words lie inside.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ti_fix.convert.evidence import Around, evidence_of
from ti_fix.convert.ladder import SAME_WORD, Rung
from ti_fix.convert.linear import LeftOut
from ti_fix.convert.local import TOGETHER, LocalMap
from ti_fix.convert.tables import TablePair, parted

ASKED = 3000
"""Words at most that calibrate."""

FEWEST = 1000
"""Trials at least: words of a small dictionary are asked again, with other noise."""

MOST_NOISE = 3.0
"""Length of the strongest noise, in lengths of a word."""

BLURRED = 2
"""Every so-manieth word is blurred."""

PULL = 0.01
"""Of the regression's weights to zero, in variances of the evidence."""

NOBODY = -1
"""No word is left out."""

WINDOW = 60
"""Outcomes around a score from which its interval is read."""

INSIDE = 0.8
"""Share of the unblurred words whose outcome lies in their interval."""

TAILS = [n / 200 for n in range(20, 3, -1)]
"""Shares of the outcomes to cut off at each end, the first that leaves `INSIDE` is taken."""


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
        worth: (2, words) of the map for each word of the dictionary (`LeftOut.worth`).
        scale: (2, evidence) mean and spread of the evidence.
        weights: of the regression that makes one score of the evidence's `_terms`.
        scores: (n,) ascending.
        outcomes: (n,) the true cosine of each.
        expected: (n,) the rising fit through them.
        tail: (), share of the outcomes of like scores that lies above the interval, and below.
    """

    worth: Tensor
    scale: Tensor
    weights: Tensor
    scores: Tensor
    outcomes: Tensor
    expected: Tensor
    tail: Tensor

    def of(self, rung: Rung) -> Confidence:
        """The confidence of one conversion; beyond the scores that were seen, that of the nearest."""
        if rung.certain:
            return CERTAIN
        if rung.evidence is None:
            return WORTHLESS
        score = (_terms(torch.tensor([rung.evidence]), self.scale) @ self.weights)[0]
        place = int(torch.searchsorted(self.scores, score).clamp(0, len(self.scores) - 1))
        around = _like(self.outcomes, place)
        low, high = (float(q) for q in torch.quantile(around, torch.stack([self.tail, 1 - self.tail])))
        expected = float(self.expected[place])
        return Confidence(expected=expected, low=min(low, expected), high=max(high, expected))


def calibrate(pair: TablePair, left_out: LeftOut, maps: LocalMap, *, asked: int = ASKED, seed: int = 1) -> Calibration:
    """Convert words as if they were unknown, compare.

    Args:
        pair: the words of both tables.
        left_out: the map without each of them.
        maps: the map and what it misses.
        asked: how many words to ask.
        seed: of the choice.
    """
    worth = left_out.worth(pair)
    words, _ = parted(len(pair.ids), min(asked, len(pair.ids)), seed)
    words = words.repeat(max(1, FEWEST // len(words)))
    evidence, outcomes = _tried(words, pair, left_out, maps, worth, seed)
    scale = torch.stack([evidence.mean(0), evidence.std(0).clamp(min=1e-6)])
    terms = _terms(evidence, scale)
    first = torch.arange(len(outcomes)) % 2 == 0  # what calibrates was not in the regression, and the other way round
    scores = torch.empty(len(outcomes))
    for half in (first, ~first):
        scores[half] = terms[half] @ _regression(terms[~half], outcomes[~half])
    scores, order = scores.sort()
    outcomes = outcomes[order]
    unblurred = order < len(words)
    return Calibration(
        worth=worth,
        scale=scale,
        weights=_regression(terms, outcomes[order.argsort()]),
        scores=scores,
        outcomes=outcomes,
        expected=rising(scores, isotonic(outcomes)),
        tail=torch.tensor(_tail(outcomes, unblurred)),
    )


def _like(outcomes: Tensor, place: int) -> Tensor:
    """The outcomes whose scores are nearest to that of one, (`WINDOW`,)."""
    start = max(0, min(place - WINDOW // 2, len(outcomes) - WINDOW))
    return outcomes[start : start + WINDOW]


def _tail(outcomes: Tensor, judged: Tensor) -> float:
    """The largest of `TAILS` that leaves `INSIDE` of the judged outcomes within what is like them."""
    places = judged.nonzero()[:, 0]
    around = torch.stack([_like(outcomes, int(place)) for place in places])
    for tail in TAILS:
        low, high = torch.quantile(around, torch.tensor([tail, 1 - tail]), dim=1)
        if float(((low <= outcomes[places]) & (outcomes[places] <= high)).float().mean()) >= INSIDE:
            break
    return tail


def _tried(
    words: Tensor, pair: TablePair, left_out: LeftOut, maps: LocalMap, worth: Tensor, seed: int
) -> tuple[Tensor, Tensor]:
    """Evidence (n, evidence) and outcome (n,) of unknown words, of some of them blurred, and of blurred known ones."""
    blurred, near = words[::BLURRED], words[1::BLURRED]
    noise = [torch.linspace(0, MOST_NOISE, len(blurred)), torch.linspace(0.05, MOST_NOISE, len(near))]
    level = torch.cat([torch.zeros(len(words)), *noise])
    known = torch.cat([torch.zeros(len(words) + len(blurred)), torch.ones(len(near))]).bool()
    random = torch.Generator().manual_seed(seed)
    evidence, outcomes = [], []
    every = torch.cat([words, blurred, near])
    for some in torch.arange(len(every)).split(TOGETHER):
        source, target = pair.source_rows(every[some]), pair.target_rows(every[some])
        noise_ = normalize(torch.randn(source.shape, generator=random), dim=1) * pair.source_norms.mean()
        vectors = source + level[some][:, None] * noise_
        around = Around.of(vectors, pair, every[some].masked_fill(known[some], NOBODY))
        asked = around.everyday(vectors)
        mapped = left_out.map(asked, source, target)
        mapped[known[some]] = left_out.mapping(asked[known[some]])
        near = (around.cosine >= SAME_WORD)[:, None]
        answers = around.usual(torch.where(near, around.target[:, 0], maps.add(mapped, around)))
        centre = left_out.mapping.target_mean
        evidence.append(evidence_of(vectors, answers, around, pair, left_out.mapping, worth))
        outcomes.append(torch.cosine_similarity(answers - centre, target - centre, dim=1))
    return torch.cat(evidence), torch.cat(outcomes)


def _terms(evidence: Tensor, scale: Tensor) -> Tensor:
    """Constant, scaled evidence and its products: (n, evidence) -> (n, terms)."""
    scaled = ((evidence - scale[0]) / scale[1]).clamp(-4, 4)
    first, second = torch.triu_indices(scaled.shape[1], scaled.shape[1])
    return torch.cat([torch.ones(len(scaled), 1), scaled, scaled[:, first] * scaled[:, second]], dim=1)


def _regression(terms: Tensor, outcomes: Tensor) -> Tensor:
    """Ridge regression of the outcomes' ranks: a score is to order, and few very bad outcomes are not to rule it."""
    x, y = terms.double(), outcomes.argsort().argsort() / len(outcomes)
    square = x.T @ x
    square += PULL * len(x) * torch.eye(len(square), dtype=torch.float64)
    weights: Tensor = torch.linalg.solve(square, x.T @ y.double())
    return weights.float()


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


def rising(scores: Tensor, steps: Tensor) -> Tensor:
    """A non-decreasing fit (n,) at ascending scores (n,), in straight lines from the middle of one step to the next.

    Without it, many scores would share one expectation and lose their order.
    """
    heights, which, counts = torch.unique_consecutive(steps, return_inverse=True, return_counts=True)
    middles = torch.zeros(len(heights), dtype=torch.float64).index_add_(0, which, scores.double()) / counts
    return torch.from_numpy(np.interp(scores.numpy(), middles.numpy(), heights.numpy())).float()
