"""The ladder: for each vector the first rung that holds.

1. vocabulary: the vector is a word (exactly or nearly, whatever its length): the same word in the other table.
2. sparse: it is a sum of a few words: the same sum in the other table.
3. local: the map between the two tables, and what it misses for the words around.
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
from ti_fix.convert.local import TOGETHER, LocalMap
from ti_fix.convert.sparse import Combination, decompose
from ti_fix.convert.tables import TablePair
from ti_fix.errors import WrongUse

Method = Literal["vocabulary", "sparse", "local", "linear", "sparse+linear"]

SAME_WORD = 0.995
"""Cosine above which a vector goes as the word: rounding, a few steps of training, or a word of like meaning."""

EXACTLY = 0.99999
"""Cosine above which it is certain to be the word: rounding to 16 bits stays above; two words may be nearer than
`SAME_WORD`, and then the one says little of the other."""

BY_THE_MAP = frozenset({"local", "linear", "sparse+linear"})
"""Rungs that rest on the map."""

FAST = "fast"
"""The rungs of ``auto`` that take milliseconds: word and map, without the search for sums of words."""

MIXED_GAIN = 0.02
"""Share of a vector's squared length that a word must explain to go by words and not by the map."""


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
    vectors: Tensor, pair: TablePair, maps: LocalMap, method: str = "auto", *, worth: Tensor | None = None
) -> list[Rung]:
    """Convert vectors by the ladder, or all by one rung.

    Args:
        vectors: (n, source width); rows of length 0 stay 0.
        pair: the words of both tables.
        maps: the linear map fitted on them, and what it misses.
        method: ``auto``, `FAST`, or the one rung to use: ``vocabulary`` (the nearest word whatever its distance),
            ``sparse``, ``local``, ``linear``, ``sparse+linear``.
        worth: (2, words) of the map for each word, needed for evidence; without it none is given.

    Raises:
        WrongUse: there is no such method.
    """
    if method not in (*METHODS, FAST):
        raise WrongUse(f"there is no conversion method {method!r}; choose one of: {', '.join(METHODS)}.")
    found: list[Rung] = []
    for part in vectors.float().split(TOGETHER):
        found += _climb(part, pair, maps, method, worth)
    return found


def _climb(vectors: Tensor, pair: TablePair, maps: LocalMap, method: str, worth: Tensor | None) -> list[Rung]:
    around = Around.of(vectors, pair)
    drafts = _mapped(vectors, around, maps, local=method in ("auto", FAST, "local"))
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
        _add_rests(drafts, waiting, sums, vectors, around, pair, maps)
    return _rungs(drafts, vectors, around, pair, maps, worth)


def _mapped(vectors: Tensor, around: Around, maps: LocalMap, *, local: bool) -> list[_Draft]:
    asked, local = around.everyday(vectors), local and maps.share > 0
    rows = around.with_length(maps(asked, around) if local else maps.mapping(asked), vectors)
    return [
        _Draft(vector=row, method="local" if local else "linear", words=words[:3], certain=False)
        for row, words in zip(rows, around.words, strict=True)
    ]


def _use_words(drafts: list[_Draft], vectors: Tensor, around: Around, pair: TablePair, *, always: bool) -> None:
    for draft, vector, cosine, words, rows in zip(
        drafts, vectors, around.cosine, around.words, around.target, strict=True
    ):
        if always or float(cosine) >= SAME_WORD:
            multiple = torch.linalg.vector_norm(vector) / pair.source_norms[words[0]]
            draft.vector, draft.method, draft.words = rows[0] * multiple, "vocabulary", words[:1]
            draft.certain = float(cosine) >= EXACTLY


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
    maps: LocalMap,
) -> None:
    for i, found in zip(waiting, sums, strict=True):
        if not found.exact:
            rest = vectors[i] - found.of(pair.source_rows(found.words))
            whole = drafts[i].vector + rest @ maps.mapping.weight
            drafts[i].vector = around.take([i]).with_length(whole[None], vectors[i : i + 1])[0]
            drafts[i].method = "sparse+linear"


def _rungs(
    drafts: list[_Draft],
    vectors: Tensor,
    around: Around,
    pair: TablePair,
    maps: LocalMap,
    worth: Tensor | None,
) -> list[Rung]:
    evidence: dict[int, tuple[float, ...]] = {}
    unsure = [i for i, draft in enumerate(drafts) if not draft.certain]
    if worth is not None and unsure:
        answers = around.take(unsure).usual(torch.stack([drafts[i].vector for i in unsure]))
        found = evidence_of(vectors[unsure], answers, around.take(unsure), pair, maps.mapping, worth)
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
