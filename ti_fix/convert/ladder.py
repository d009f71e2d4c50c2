"""The ladder: for each vector the first rung that holds.

1. vocabulary: the vector is a word (exactly or nearly, whatever its length): the same word in the other table.
2. sparse: it is a sum of a few words: the same sum in the other table.
3. linear: the map between the two tables.
Mixtures of both: the part that words explain goes by words, the rest by the map ("sparse+linear").

Lengths. The map is asked about directions of everyday length, since trained SD1.5 vectors are up to forty times as long
as words and it was fitted on words; the result gets the length of the words around it, times the same multiple.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ti_fix.convert.linear import LinearMap
from ti_fix.convert.sparse import EXACT, decompose
from ti_fix.convert.tables import TablePair

Method = Literal["vocabulary", "sparse", "linear", "sparse+linear", "nearest"]

SAME_WORD = 0.995
"""Cosine above which a vector is the word itself: rounding and a few steps of training, no other meaning."""

NEIGHBOURS = 8
"""Words around a vector that tell how long it should be in the other table."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rung:
    """One vector's conversion.

    Attributes:
        vector: (target width,).
        method: the rung that made it.
        words: token ids of the words it rests on, the weightiest first; the nearest ones for the linear map.
        score: how near known ground the vector lies, 0 to 1; `confidence` turns it into an expectation.
    """

    vector: Tensor
    method: Method
    words: tuple[int, ...]
    score: float


def climb(vectors: Tensor, pair: TablePair, mapping: LinearMap, method: str = "auto") -> list[Rung]:
    """Convert vectors by the ladder, or all by one rung.

    Args:
        vectors: (n, source width); rows of length 0 stay 0.
        pair: the words of both tables.
        mapping: the linear map fitted on them.
        method: ``auto``, or the one rung to use: ``vocabulary`` (the nearest word whatever its distance), ``sparse``,
            ``linear``, ``sparse+linear``.
    """
    vectors = vectors.float()
    cosines = normalize(vectors, dim=1) @ pair.directions.T
    near = cosines.topk(min(NEIGHBOURS, cosines.shape[1]), dim=1)
    return [
        _zero(pair) if not bool(vector.any()) else _one(vector, values, words, pair, mapping, method)
        for vector, values, words in zip(vectors, near.values, near.indices, strict=True)
    ]


def _one(vector: Tensor, cosines: Tensor, near: Tensor, pair: TablePair, mapping: LinearMap, method: str) -> Rung:
    if method == "vocabulary" or (method == "auto" and float(cosines[0]) >= SAME_WORD):
        return _word(vector, cosines, near, pair)
    if method == "linear":
        return _linear(vector, cosines, near, pair, mapping)
    (found,) = decompose(vector[None], pair)
    if method == "sparse" or (method == "auto" and found.residual <= EXACT):
        score = 1 - found.residual
        return Rung(vector=found.over(pair.target), method="sparse", words=_ids(found.words, pair), score=score)
    if method == "auto":
        return _linear(vector, cosines, near, pair, mapping)
    rest = vector - found.over(pair.source)
    mapped = found.over(pair.target) + (rest @ mapping.weight)
    return Rung(
        vector=_with_length(mapped, vector, near, pair),
        method="sparse+linear",
        words=_ids(found.words, pair),
        score=float(cosines[0]),
    )


def _word(vector: Tensor, cosines: Tensor, near: Tensor, pair: TablePair) -> Rung:
    word = int(near[0])
    multiple = torch.linalg.vector_norm(vector) / pair.source_norms[word]
    return Rung(
        vector=pair.target[word] * multiple,
        method="vocabulary",
        words=_ids(near[:1], pair),
        score=float(cosines[0]),
    )


def _linear(vector: Tensor, cosines: Tensor, near: Tensor, pair: TablePair, mapping: LinearMap) -> Rung:
    everyday = normalize(vector, dim=0) * pair.source_norms[near].mean()
    mapped = _with_length(mapping(everyday[None])[0], vector, near, pair)
    return Rung(vector=mapped, method="linear", words=_ids(near[:3], pair), score=float(cosines[0]))


def _with_length(mapped: Tensor, vector: Tensor, near: Tensor, pair: TablePair) -> Tensor:
    """The length of the words around the vector, times the vector's own multiple of theirs."""
    multiple = torch.linalg.vector_norm(vector) / pair.source_norms[near].mean()
    return normalize(mapped, dim=0) * pair.target_norms[near].mean() * multiple


def _zero(pair: TablePair) -> Rung:
    return Rung(vector=torch.zeros(pair.target.shape[1]), method="vocabulary", words=(), score=0.0)


def _ids(words: Tensor, pair: TablePair) -> tuple[int, ...]:
    return tuple(int(i) for i in pair.ids[words])
