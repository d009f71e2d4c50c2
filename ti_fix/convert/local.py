"""The linear map and, on top of it, what it misses for the words around (kernel smoothing: Nadaraya 1964, Watson 1964).

What a map misses for a word it misses for words of like meaning too. So the mean of what it would have missed for the
words around, had it been fitted without each of them, is added.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ti_fix.convert.evidence import Around
from ti_fix.convert.linear import LeftOut, LinearMap
from ti_fix.convert.tables import TablePair, parted

SHARES = (0.0, 0.5, 1.0)
"""Of what is missed around, tried."""

SHARPNESSES = (4.0, 8.0, 16.0, 32.0)
"""Tried: weights are e to the power of so many times the likeness."""

ASKED = 1000
"""Words at most that choose between them."""

MOST_NOISE = 0.5
"""Length of the strongest noise, in lengths of a word."""

TOGETHER = 256
"""Vectors that are looked at together."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalMap:
    """The linear map with what it misses around.

    Attributes:
        mapping: the linear map.
        leverage: (words,) how much each word pulls that to itself.
        share: of what is missed that is added; 0 is the linear map.
        sharpness: of the weights.
    """

    mapping: LinearMap
    leverage: Tensor
    share: float
    sharpness: float

    @classmethod
    def of(cls, pair: TablePair, left_out: LeftOut, asked: int = ASKED) -> LocalMap:
        """With the share and the sharpness that serve words best, half as if unknown and half known but blurred.

        Trained vectors are both: they start at a word that is known, and move away from it.
        """
        leverage = torch.cat([left_out.leverage(source.cpu()) for source, _ in pair.blocks()])
        tried = [
            cls(mapping=left_out.mapping, leverage=leverage, share=share, sharpness=sharpness)
            for share, sharpness in itertools.product(SHARES, SHARPNESSES)
        ]
        words, _ = parted(len(pair.ids), min(asked, len(pair.ids)), 2)
        random, scores = torch.Generator().manual_seed(2), torch.zeros(len(tried))
        for some in words.split(TOGETHER):
            source, target = pair.source_rows(some), pair.target_rows(some)
            unknown = Around.of(source, pair, some)
            noise = normalize(torch.randn(source.shape, generator=random), dim=1) * pair.source_norms.mean()
            vectors = source + torch.linspace(0, MOST_NOISE, len(some))[:, None] * noise
            known = Around.of(vectors, pair)
            for around, mapped in (
                (unknown, left_out.map(unknown.everyday(source), source, target)),
                (known, left_out.mapping(known.everyday(vectors))),
            ):
                for i, each in enumerate(tried):
                    scores[i] += _likeness(each.add(mapped, around), target, left_out.mapping)
        return tried[int(scores.argmax())]

    def __call__(self, vectors: Tensor, around: Around) -> Tensor:
        """Map vectors (n, source width) of everyday length."""
        return self.add(self.mapping(vectors), around)

    def add(self, mapped: Tensor, around: Around) -> Tensor:
        """What the linear map says (n, target width) and what it misses around."""
        if self.share == 0:
            return mapped
        weights = torch.softmax(self.sharpness * around.likeness, dim=1) / (1 - self.leverage[around.words])
        whole = weights.sum(1, keepdim=True)
        source, target = ((weights[:, None] @ rows)[:, 0] for rows in (around.source, around.target))
        guess = self.mapping(source / whole) * whole  # the map is affine: the sum of what it says of each word
        missed: Tensor = target - guess
        return mapped + self.share * missed


def _likeness(answers: Tensor, target: Tensor, mapping: LinearMap) -> float:
    centre = mapping.target_mean
    return float(torch.cosine_similarity(answers - centre, target - centre, dim=1).sum())
