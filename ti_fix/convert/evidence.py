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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Around:
    """The words nearest to each of n vectors, the nearest first.

    Attributes:
        cosine: (n,) of the vector with the nearest word, nothing taken off.
        likeness: (n, `SURROUNDINGS`) cosines of the meanings.
        words: (n, `SURROUNDINGS`) rows of the table pair.
        target: (n, `NEIGHBOURS`, target width) the nearest of them in the other table.
        source_norm, target_norm: (n,) mean length of these in both tables.
    """

    cosine: Tensor
    likeness: Tensor
    words: Tensor
    target: Tensor
    source_norm: Tensor
    target_norm: Tensor

    @classmethod
    def of(cls, vectors: Tensor, pair: TablePair, without: Tensor | None = None) -> Around:
        """The words around vectors (n, source width); `without` names one for each that counts as unknown."""
        likeness, words = pair.near(vectors, SURROUNDINGS, without)
        nearest = words[:, :NEIGHBOURS]
        return cls(
            cosine=torch.cosine_similarity(vectors, pair.source_rows(words[:, 0]), dim=1),
            likeness=likeness,
            words=words,
            target=pair.target_rows(nearest),
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


def evidence_of(vectors: Tensor, mapped: Tensor, around: Around, mapping: LinearMap, worth: Tensor) -> Tensor:
    """What speaks for answers: numbers that are high for words that carry over and low for noise.

    Args:
        vectors: (n, source width).
        mapped: (n, target width) their conversions.
        around: the words around them.
        mapping: the linear map.
        worth: (words,) how well the map does for each word that it has not seen (`leave_one_out`).

    Returns:
        (n, evidence): agreement with the words around (their mean in the other table is a second, independent way to
        convert); how much those mean one thing there; the worth of the map for few and for many of them; how near the
        nearest and the others are; how far the vector lies from the common part, and how much of that the map sees.
    """
    centre = mapping.target_mean
    others = around.target - centre
    near, wide = (torch.softmax(8 * around.likeness[:, :n], dim=1) for n in (NEIGHBOURS, SURROUNDINGS))
    known = worth[around.words]
    offset = around.everyday(vectors) - mapping.source_mean
    length = torch.linalg.vector_norm(offset, dim=1)
    seen = torch.linalg.vector_norm(offset @ mapping.weight, dim=1)
    return torch.stack(
        [
            torch.cosine_similarity(around.usual(mapped) - centre, (near[..., None] * others).sum(1), dim=1),
            torch.linalg.vector_norm(normalize(others, dim=2).mean(1), dim=1),
            (near * known[:, : near.shape[1]]).sum(1),
            (wide * known).sum(1),
            around.likeness[:, 0],
            around.likeness[:, :NEIGHBOURS].mean(1),
            around.likeness.mean(1),
            length,
            seen,
            seen / length.clamp(min=1e-12),
        ],
        dim=1,
    )
