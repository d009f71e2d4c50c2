"""The words around a vector, and what they say about the worth of its conversion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ti_fix.convert.linear import LinearMap
from ti_fix.convert.tables import TablePair

NEIGHBOURS = 8
"""Words around a vector that tell how long it should be in the other table."""

SURROUNDINGS = 32
"""Words around a vector whose own worth under the map is looked at."""

SHARPNESS = 8.0
"""Of the weights of the words around, e to the power of so many times the likeness."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Around:
    """The words nearest to each of n vectors, the nearest first.

    Attributes:
        cosine: (n,) of the vector with the nearest word, nothing taken off.
        likeness: (n, `SURROUNDINGS`) cosines of the meanings.
        words: (n, `SURROUNDINGS`) rows of the table pair.
        source, target: (n, `SURROUNDINGS`, width) these rows.
        source_norm, target_norm: (n,) mean length of the `NEIGHBOURS` nearest in both tables.
    """

    cosine: Tensor
    likeness: Tensor
    words: Tensor
    source: Tensor
    target: Tensor
    source_norm: Tensor
    target_norm: Tensor

    @classmethod
    def of(cls, vectors: Tensor, pair: TablePair, without: Tensor | None = None) -> Around:
        """The words around vectors (n, source width); `without` names one for each that counts as unknown."""
        likeness, words = pair.near(vectors, SURROUNDINGS, without)
        nearest, source = words[:, :NEIGHBOURS], pair.source_rows(words)
        return cls(
            cosine=torch.cosine_similarity(vectors, source[:, 0], dim=1),
            likeness=likeness,
            words=words,
            source=source,
            target=pair.target_rows(words),
            source_norm=pair.source_norms[nearest].mean(1),
            target_norm=pair.target_norms[nearest].mean(1),
        )

    def take(self, rows: Sequence[int]) -> Around:
        """Those of some of the vectors."""
        return Around(**{f.name: getattr(self, f.name)[list(rows)] for f in fields(self)})

    def everyday(self, vectors: Tensor) -> Tensor:
        """The vectors with the length of the words around them."""
        direction: Tensor = normalize(vectors, dim=1)
        return direction * self.source_norm[:, None]

    def with_length(self, mapped: Tensor, vectors: Tensor) -> Tensor:
        """The length of the words around each vector, times the vector's own multiple of theirs."""
        multiple: Tensor = torch.linalg.vector_norm(vectors, dim=1) / self.source_norm
        return self.usual(mapped) * multiple[:, None]

    def usual(self, mapped: Tensor) -> Tensor:
        """Conversions (n, target width) with the length of the words around."""
        direction: Tensor = normalize(mapped, dim=1)
        return direction * self.target_norm[:, None]


def evidence_of(
    vectors: Tensor, answers: Tensor, around: Around, pair: TablePair, mapping: LinearMap, worth: Tensor
) -> Tensor:
    """What speaks for answers: numbers that are high for words that carry over and low for noise.

    Args:
        vectors: (n, source width).
        answers: (n, target width) their conversions.
        around: the words around them.
        pair: the words.
        mapping: the linear map.
        worth: (2, words) how well the map does for each word that it has not seen (`LeftOut.worth`).

    Returns:
        (n, evidence): how answer, map and words around agree, which are different ways to convert; how much the words
        around mean one thing in either table; the worth of the map for few and for many of them; how near they are;
        how much of the vector the map sees, in itself and beside what it misses for the words around.
    """
    centre = mapping.target_mean
    others = around.target - centre
    few = torch.softmax(SHARPNESS * around.likeness[:, :NEIGHBOURS], dim=1)
    many = torch.softmax(SHARPNESS * around.likeness, dim=1)
    cosine, missed = worth[:, around.words]
    asked = around.everyday(vectors)
    offset, answer, mapped = asked - mapping.source_mean, answers - centre, mapping(asked) - centre
    length, seen = torch.linalg.vector_norm(offset, dim=1), torch.linalg.vector_norm(mapped, dim=1)
    wrong = (many * missed.square()).sum(1)
    agreement = torch.cosine_similarity(answer[:, None], others, dim=2)
    mean = (few[..., None] * others[:, :NEIGHBOURS]).sum(1)
    nearest = pair.meanings(around.source[:, :NEIGHBOURS].flatten(0, 1)).unflatten(0, (len(vectors), -1))
    return torch.stack(
        [
            torch.cosine_similarity(answer, mean, dim=1),
            torch.cosine_similarity(mapped, mean, dim=1),
            torch.cosine_similarity(answer, mapped, dim=1),
            (few * agreement[:, :NEIGHBOURS]).sum(1),
            agreement.amax(1),
            torch.linalg.vector_norm(normalize(others[:, :NEIGHBOURS], dim=2).mean(1), dim=1),
            torch.linalg.vector_norm(nearest.mean(1), dim=1),
            (few * cosine[:, :NEIGHBOURS]).sum(1),
            (many * cosine).sum(1),
            around.likeness[:, 0],
            around.likeness[:, :NEIGHBOURS].mean(1),
            around.likeness.mean(1),
            seen / length.clamp(min=1e-12),
            seen / (seen.square() + wrong).sqrt().clamp(min=1e-12),
        ],
        dim=1,
    )
