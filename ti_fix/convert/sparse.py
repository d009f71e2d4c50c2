"""Vectors as sums of a few words: orthogonal matching pursuit (Pati, Rezaiifar & Krishnaprasad 1993).

Embeddings that were merged from words come back exactly, and with the same weights over the other table they are the
same merge there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ti_fix.convert.tables import TablePair

EXACT = 1e-3
"""Relative residual below which a vector *is* the sum (float16 rounding stays below it)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Combination:
    """One vector as a weighted sum of words.

    Attributes:
        words: rows of the table pair, in the order in which they were found.
        weights: one a word.
        residual: length of what is left over, relative to the vector.
    """

    words: Tensor
    weights: Tensor
    residual: float

    def over(self, table: Tensor) -> Tensor:
        """The same sum over another table (words, width) -> (width,)."""
        return self.weights @ table[self.words]


def decompose(vectors: Tensor, pair: TablePair, *, most: int = 16, gain: float = 0.0) -> list[Combination]:
    """Express each vector by at most `most` words of the source table.

    Args:
        vectors: (n, source width).
        pair: the words.
        most: words per vector.
        gain: stop when the next word would explain less than this share of the vector's squared length.
    """
    return [_pursue(vector, pair, most, gain) for vector in vectors.float()]


def _pursue(vector: Tensor, pair: TablePair, most: int, gain: float) -> Combination:
    length = float(torch.linalg.vector_norm(vector))
    chosen: list[int] = []
    weights = torch.zeros(0)
    left = vector
    residual = 1.0 if length else 0.0
    while len(chosen) < most and residual > EXACT * 0.1:
        overlap = (pair.source @ left).abs() / pair.source_norms
        overlap[chosen] = -1
        word = int(overlap.argmax())
        rows = pair.source[[*chosen, word]]
        # float64: words of one meaning are nearly parallel
        solved = torch.linalg.lstsq(rows.T.double(), vector.double()[:, None]).solution.flatten().float()
        left = vector - solved @ rows
        now = float(torch.linalg.vector_norm(left)) / length
        if residual**2 - now**2 < gain:
            break
        chosen, weights, residual = [*chosen, word], solved, now
    return Combination(words=torch.tensor(chosen, dtype=torch.long), weights=weights, residual=residual)
