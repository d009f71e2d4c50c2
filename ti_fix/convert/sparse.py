"""Vectors as sums of a few words: orthogonal matching pursuit (Pati, Rezaiifar & Krishnaprasad 1993).

Embeddings that were merged from words come back exactly, and with the same weights over the other table they are the
same merge there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ti_fix.convert.tables import TablePair

EXACT = 1e-3
"""Relative residual below which a vector *is* the sum (float16 rounding stays below it)."""

HALF_A_SHARE = 0.5
"""Of m words that are still missing the weightiest explains a share of 1/m or more; below half of that for as many as
are left to find, a vector is no sum of so few words."""


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

    @property
    def exact(self) -> bool:
        """Whether nothing is left over but rounding."""
        return self.residual <= EXACT

    def of(self, rows: Tensor) -> Tensor:
        """The same sum of other rows (words, width) -> (width,)."""
        return self.weights @ rows


def decompose(
    vectors: Tensor, pair: TablePair, *, most: int = 16, gain: float = 0.0, only_exact: bool = False
) -> list[Combination]:
    """Express each vector by at most `most` words of the source table, all vectors at the same time.

    Args:
        vectors: (n, source width).
        pair: the words.
        most: words per vector.
        gain: stop when the next word would explain less than this share of the vector's squared length.
        only_exact: give a vector up as soon as it shows to be no sum of so few words.
    """
    vectors, source = vectors.float(), pair.source.cpu().float()
    lengths = torch.linalg.vector_norm(vectors, dim=1)
    found = [Combination(words=torch.zeros(0).long(), weights=torch.zeros(0), residual=float(n > 0)) for n in lengths]
    active = [i for i, each in enumerate(found) if each.residual]
    left = vectors
    for step in range(most):
        if not active:
            break
        words = _next_words(left[active], [found[i].words for i in active], source, pair.source_norms)
        rows = source[words]
        weights = _weights(rows, vectors[active])
        rest = vectors[active] - (weights[:, None] @ rows)[:, 0]
        residuals = (torch.linalg.vector_norm(rest, dim=1) / lengths[active]).tolist()
        left = left.index_copy(0, torch.tensor(active), rest)
        still = []
        for place, i in enumerate(active):
            before, now = found[i].residual, residuals[place]
            if before**2 - now**2 < gain:
                continue
            found[i] = Combination(words=words[place], weights=weights[place], residual=now)
            hopeless = only_exact and 1 - (now / before) ** 2 < HALF_A_SHARE / (most - step)
            if now > EXACT * 0.1 and not hopeless:
                still.append(i)
        active = still
    return [_without_idle(each, pair.source_norms, length) for each, length in zip(found, lengths, strict=True)]


def _without_idle(found: Combination, norms: Tensor, length: Tensor) -> Combination:
    """Without words that were tried on the way to an exact sum and take no part in it."""
    if not found.exact:
        return found
    used = found.weights.abs() * norms[found.words] > EXACT * length
    return replace(found, words=found.words[used], weights=found.weights[used])


def _next_words(left: Tensor, chosen: list[Tensor], source: Tensor, norms: Tensor) -> Tensor:
    """The words chosen so far and the one that explains most of what is left: (n, words)."""
    overlap = (left @ source.T).abs_().div_(norms)
    so_far = torch.stack(chosen)
    overlap.scatter_(1, so_far, -1.0)
    return torch.cat([so_far, overlap.argmax(dim=1, keepdim=True)], dim=1)


def _weights(rows: Tensor, vectors: Tensor) -> Tensor:
    """Least squares in float64, as words of one meaning are nearly parallel: (n, words, width) -> (n, words)."""
    solved = torch.linalg.lstsq(rows.mT.double(), vectors.double()[..., None]).solution
    weights: Tensor = solved[..., 0].float()
    return weights
