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
from ti_fix.errors import WrongUse

Method = Literal["vocabulary", "sparse", "linear", "sparse+linear"]

SAME_WORD = 0.995
"""Cosine above which a vector is the word itself: rounding and a few steps of training, no other meaning."""

METHODS = ("auto", "vocabulary", "sparse", "linear", "sparse+linear")

MIXED_GAIN = 0.02
"""Share of a vector's squared length that a word must explain to go by words and not by the map."""

NEIGHBOURS = 8
"""Words around a vector that tell how long it should be in the other table."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rung:
    """One vector's conversion.

    Attributes:
        vector: (target width,).
        method: the rung that made it.
        words: token ids of the words it rests on, the weightiest first; the nearest ones for the linear map.
        evidence: what speaks for the answer (`evidence_of`), from which `confidence` makes an expectation; None for a
            word and for an exact sum of words, where nothing is estimated.
    """

    vector: Tensor
    method: Method
    words: tuple[int, ...]
    evidence: tuple[float, ...] | None


def climb(vectors: Tensor, pair: TablePair, mapping: LinearMap, method: str = "auto") -> list[Rung]:
    """Convert vectors by the ladder, or all by one rung.

    Args:
        vectors: (n, source width); rows of length 0 stay 0.
        pair: the words of both tables.
        mapping: the linear map fitted on them.
        method: ``auto``, or the one rung to use: ``vocabulary`` (the nearest word whatever its distance), ``sparse``,
            ``linear``, ``sparse+linear``.

    Raises:
        WrongUse: there is no such method.
    """
    vectors = vectors.float()
    if method not in METHODS:
        raise WrongUse(f"there is no conversion method {method!r}; choose one of: {', '.join(METHODS)}.")
    cosines = pair.cosines(vectors)
    near = cosines.topk(min(NEIGHBOURS, cosines.shape[1]), dim=1)
    return [
        _zero(pair) if not bool(vector.any()) else _one(vector, values, words, pair, mapping, method)
        for vector, values, words in zip(vectors, near.values, near.indices, strict=True)
    ]


def _one(vector: Tensor, cosines: Tensor, near: Tensor, pair: TablePair, mapping: LinearMap, method: str) -> Rung:
    if method == "vocabulary" or (method == "auto" and float(cosines[0]) >= SAME_WORD):
        return _word(vector, cosines, near, pair, mapping)
    if method == "linear":
        return _linear(vector, cosines, near, pair, mapping)
    (found,) = decompose(vector[None], pair, gain=0.0 if method != "sparse+linear" else MIXED_GAIN)
    exact = found.residual <= EXACT
    if method == "auto" and not exact:
        return _linear(vector, cosines, near, pair, mapping)
    mapped, used = found.over(pair.target), _ids(found.words, pair)
    if method == "sparse+linear" and not exact:
        rest = vector - found.over(pair.source)
        mapped = _with_length(mapped + rest @ mapping.weight, vector, near, pair)
    evidence = None if exact else evidence_of(vector, mapped, cosines, near, pair, mapping)
    named: Method = "sparse+linear" if method == "sparse+linear" and not exact else "sparse"
    return Rung(vector=mapped, method=named, words=used, evidence=evidence)


def _word(vector: Tensor, cosines: Tensor, near: Tensor, pair: TablePair, mapping: LinearMap) -> Rung:
    word = int(near[0])
    multiple = torch.linalg.vector_norm(vector) / pair.source_norms[word]
    same = float(cosines[0]) >= SAME_WORD
    evidence = None if same else evidence_of(vector, pair.target[word], cosines, near, pair, mapping)
    return Rung(vector=pair.target[word] * multiple, method="vocabulary", words=_ids(near[:1], pair), evidence=evidence)


def _linear(vector: Tensor, cosines: Tensor, near: Tensor, pair: TablePair, mapping: LinearMap) -> Rung:
    mapped = mapping(_everyday(vector, near, pair)[None])[0]
    return Rung(
        vector=_with_length(mapped, vector, near, pair),
        method="linear",
        words=_ids(near[:3], pair),
        evidence=evidence_of(vector, mapped, cosines, near, pair, mapping),
    )


def evidence_of(
    vector: Tensor, mapped: Tensor, cosines: Tensor, near: Tensor, pair: TablePair, mapping: LinearMap
) -> tuple[float, ...]:
    """What speaks for an answer: numbers that are high for words that carry over and low for noise.

    How far it agrees with the words around the vector (their mean in the other table is a second, independent way to
    convert), how much of the vector the map can see at all, how near the nearest word is, how well the map does for the
    words around, and how much those mean one thing in the other table.
    """
    centre = mapping.target_mean
    around = pair.target[near] - centre
    agreement = float(torch.cosine_similarity(mapped - centre, around.mean(0), dim=0))
    offset = _everyday(vector, near, pair) - mapping.source_mean
    seen = float(torch.linalg.vector_norm(offset @ mapping.weight) / torch.linalg.vector_norm(offset).clamp(min=1e-12))
    fits = float(torch.cosine_similarity(mapping(pair.source[near]) - centre, around, dim=1).mean())
    coherence = float(torch.linalg.vector_norm(normalize(around, dim=1).mean(0)))
    return agreement, seen, float(cosines[0]), fits, coherence


def _everyday(vector: Tensor, near: Tensor, pair: TablePair) -> Tensor:
    """The vector with the length of the words around it."""
    direction: Tensor = normalize(vector, dim=0)
    return direction * pair.source_norms[near].mean()


def _with_length(mapped: Tensor, vector: Tensor, near: Tensor, pair: TablePair) -> Tensor:
    """The length of the words around the vector, times the vector's own multiple of theirs."""
    multiple = torch.linalg.vector_norm(vector) / pair.source_norms[near].mean()
    length: Tensor = pair.target_norms[near].mean() * multiple
    return length * normalize(mapped, dim=0)


def _zero(pair: TablePair) -> Rung:
    return Rung(vector=torch.zeros(pair.target.shape[1]), method="vocabulary", words=(), evidence=None)


def _ids(words: Tensor, pair: TablePair) -> tuple[int, ...]:
    return tuple(int(i) for i in pair.ids[words])
