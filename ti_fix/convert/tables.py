"""The two token tables of a checkpoint side by side: the dictionary that a conversion speaks.

CLIP-L and bigG share one vocabulary, so row i of both tables is the same word. That is 49,406 pairs for free with every
SDXL checkpoint.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ti_fix.embedding import VOCABULARY_SIZE, Vocabulary
from ti_fix.errors import TiFixError

_SPECIAL = (49406, 49407)
"""Start and end token: they are no words."""

SAMPLED = 97
"""Every so-manieth row goes into the hash."""


@dataclass(frozen=True, eq=False)
class TablePair:
    """Rows of the same words in two encoders.

    Attributes:
        source: (words, source width) float32.
        target: (words, target width) float32.
        ids: (words,) the token ids.
    """

    source: Tensor
    target: Tensor
    ids: Tensor

    @classmethod
    def of(cls, vocabulary: Vocabulary, source: str, target: str) -> TablePair:
        """The words of a model's vocabulary that training has touched.

        Raises:
            TiFixError: the model has no such pair of encoders, or the tables have not the same words.
        """
        try:
            left, right = vocabulary.tables[source], vocabulary.tables[target]
        except KeyError:
            has = " and ".join(vocabulary.tables)
            raise TiFixError(f"the model has {has}, not {source} and {target}; load an SDXL model.") from None
        rows = min(left.shape[0], right.shape[0], VOCABULARY_SIZE)
        usable = torch.ones(rows, dtype=torch.bool)
        if vocabulary.trained is not None:
            usable &= vocabulary.trained[:rows].cpu()
        usable[[i for i in _SPECIAL if i < rows]] = False
        left, right = left[:rows].detach().float().cpu(), right[:rows].detach().float().cpu()
        usable &= _sound(left) & _sound(right)
        if int(usable.sum()) < 2:
            raise TiFixError("the loaded model's token tables hold no usable words; load another model.")
        ids = usable.nonzero().flatten()
        words = len(ids)
        if int(ids[-1]) == words - 1:  # a real checkpoint: all but the two last rows, so a view and no copy
            return cls(source=left[:words], target=right[:words], ids=ids)
        return cls(source=left[ids], target=right[ids], ids=ids)

    def cosines(self, vectors: Tensor) -> Tensor:
        """Cosine of each vector (n, source width) with each word: (n, words)."""
        return (normalize(vectors, dim=1) @ self.source.T) / self.source_norms

    @cached_property
    def source_norms(self) -> Tensor:
        """Length of each source row."""
        return _lengths(self.source)

    @cached_property
    def target_norms(self) -> Tensor:
        """Length of each target row."""
        return _lengths(self.target)

    @cached_property
    def key(self) -> str:
        """Hash of a sample of the rows, which tells checkpoints apart in milliseconds; for caches."""
        digest = hashlib.sha256(str(len(self.ids)).encode())
        for part in (self.source, self.target, self.ids):
            digest.update(part[::SAMPLED].contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def split(self, held_out: int, seed: int = 0) -> tuple[TablePair, TablePair]:
        """A part to fit on and `held_out` words to judge by, disjoint."""
        order = torch.randperm(len(self.ids), generator=torch.Generator().manual_seed(seed))
        judged, fitted = order[:held_out], order[held_out:]
        return self.take(fitted), self.take(judged)

    def take(self, rows: Tensor) -> TablePair:
        """Only these rows."""
        return TablePair(source=self.source[rows], target=self.target[rows], ids=self.ids[rows])


def _lengths(table: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(table, dim=1)
    return lengths


def _sound(table: Tensor) -> Tensor:
    lengths = _lengths(table)
    return torch.isfinite(lengths) & (lengths > 0)
