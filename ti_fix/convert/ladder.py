"""The ladder: for each vector the first rung that holds.

1. vocabulary: the vector is a word (exactly or nearly, whatever its length): the same word in the other table.
2. sparse: it is a sum of a few words: the same sum in the other table.
3. linear: the map between the two tables.
Mixtures of both: the part that words explain goes by words, the rest by the map ("sparse+linear").

Lengths. The map is asked about directions of everyday length, since trained SD1.5 vectors are up to forty times as long
as words and it was fitted on words; the result gets the length of the words around it, times the same multiple.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ti_fix.convert.config import METHODS
from ti_fix.convert.evidence import Around, evidence_of
from ti_fix.convert.linear import LinearMap
from ti_fix.convert.sparse import Combination, decompose
from ti_fix.convert.tables import TablePair
from ti_fix.errors import WrongUse

Method = Literal["vocabulary", "sparse", "linear", "sparse+linear"]

SAME_WORD = 0.995
"""Cosine above which a vector is the word itself: rounding and a few steps of training, no other meaning."""

FAST = "fast"
"""The rungs of ``auto`` that take milliseconds: word and map, without the search for sums of words."""

MIXED_GAIN = 0.02
"""Share of a vector's squared length that a word must explain to go by words and not by the map."""

TOGETHER = 256
"""Vectors that are converted together."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rung:
    """One vector's conversion.

    Attributes:
        vector: (target width,).
        method: the rung that made it.
        words: token ids of the words it rests on, the weightiest first; the nearest ones for the linear map.
        certain: a word or an exact sum of words, where nothing is estimated.
        evidence: what speaks for an answer that is not certain (`evidence_of`), from which `confidence` makes an
            expectation; None where there is none or nobody asked for it.
    """

    vector: Tensor
    method: Method
    words: tuple[int, ...]
    certain: bool
    evidence: tuple[float, ...] | None


@dataclass(slots=True, kw_only=True, eq=False)
class _Draft:
    """A conversion in the making."""

    vector: Tensor
    method: Method
    words: Tensor
    certain: bool


def climb(
    vectors: Tensor, pair: TablePair, mapping: LinearMap, method: str = "auto", *, worth: Tensor | None = None
) -> list[Rung]:
    """Convert vectors by the ladder, or all by one rung.

    Args:
        vectors: (n, source width); rows of length 0 stay 0.
        pair: the words of both tables.
        mapping: the linear map fitted on them.
        method: ``auto``, `FAST`, or the one rung to use: ``vocabulary`` (the nearest word whatever its distance),
            ``sparse``, ``linear``, ``sparse+linear``.
        worth: (words,) of the map for each word, needed for evidence; without it none is given.

    Raises:
        WrongUse: there is no such method.
    """
    if method not in (*METHODS, FAST):
        raise WrongUse(f"there is no conversion method {method!r}; choose one of: {', '.join(METHODS)}.")
    found: list[Rung] = []
    for part in vectors.float().split(TOGETHER):
        found += _climb(part, pair, mapping, method, worth)
    return found


def _climb(vectors: Tensor, pair: TablePair, mapping: LinearMap, method: str, worth: Tensor | None) -> list[Rung]:
    around = Around.of(vectors, pair)
    drafts = _mapped(vectors, around, mapping)
    if method in ("auto", FAST, "vocabulary"):
        _use_words(drafts, vectors, around, pair, always=method == "vocabulary")
    waiting = [i for i, draft in enumerate(drafts) if not draft.certain]
    if method == "auto":
        sums = decompose(vectors[waiting], pair, only_exact=True)
        _use_sums(drafts, waiting, [each if each.exact else None for each in sums], pair)
    elif method == "sparse":
        _use_sums(drafts, waiting, decompose(vectors[waiting], pair), pair)
    elif method == "sparse+linear":
        sums = decompose(vectors[waiting], pair, gain=MIXED_GAIN)
        _use_sums(drafts, waiting, sums, pair)
        _add_rests(drafts, waiting, sums, vectors, around, pair, mapping)
    return _rungs(drafts, vectors, around, pair, mapping, worth)


def _mapped(vectors: Tensor, around: Around, mapping: LinearMap) -> list[_Draft]:
    rows = around.with_length(mapping(around.everyday(vectors)), vectors)
    return [
        _Draft(vector=row, method="linear", words=words[:3], certain=False)
        for row, words in zip(rows, around.words, strict=True)
    ]


def _use_words(drafts: list[_Draft], vectors: Tensor, around: Around, pair: TablePair, *, always: bool) -> None:
    for draft, vector, cosine, words, rows in zip(
        drafts, vectors, around.cosine, around.words, around.target, strict=True
    ):
        same = float(cosine) >= SAME_WORD
        if same or always:
            multiple = torch.linalg.vector_norm(vector) / pair.source_norms[words[0]]
            draft.vector, draft.method, draft.words, draft.certain = rows[0] * multiple, "vocabulary", words[:1], same


def _use_sums(drafts: list[_Draft], waiting: list[int], sums: Sequence[Combination | None], pair: TablePair) -> None:
    for i, found in zip(waiting, sums, strict=True):
        if found is not None:
            draft = drafts[i]
            draft.vector = found.of(pair.target_rows(found.words))
            draft.method, draft.words, draft.certain = "sparse", found.words, found.exact


def _add_rests(
    drafts: list[_Draft],
    waiting: list[int],
    sums: Sequence[Combination],
    vectors: Tensor,
    around: Around,
    pair: TablePair,
    mapping: LinearMap,
) -> None:
    for i, found in zip(waiting, sums, strict=True):
        if not found.exact:
            rest = vectors[i] - found.of(pair.source_rows(found.words))
            whole = drafts[i].vector + rest @ mapping.weight
            drafts[i].vector = around.take([i]).with_length(whole[None], vectors[i : i + 1])[0]
            drafts[i].method = "sparse+linear"


def _rungs(
    drafts: list[_Draft],
    vectors: Tensor,
    around: Around,
    pair: TablePair,
    mapping: LinearMap,
    worth: Tensor | None,
) -> list[Rung]:
    evidence: dict[int, tuple[float, ...]] = {}
    unsure = [i for i, draft in enumerate(drafts) if not draft.certain]
    if worth is not None and unsure:
        answers = torch.stack([drafts[i].vector for i in unsure])
        found = evidence_of(vectors[unsure], answers, around.take(unsure), mapping, worth)
        evidence = {i: tuple(row) for i, row in zip(unsure, found.tolist(), strict=True)}
    return [
        Rung(
            vector=draft.vector,
            method=draft.method,
            words=tuple(int(i) for i in pair.ids[draft.words]),
            certain=draft.certain,
            evidence=evidence.get(i),
        )
        if bool(vectors[i].any())
        else Rung(vector=torch.zeros_like(draft.vector), method="vocabulary", words=(), certain=False, evidence=None)
        for i, draft in enumerate(drafts)
    ]
