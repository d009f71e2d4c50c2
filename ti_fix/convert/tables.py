"""The two token tables of a checkpoint side by side: the dictionary that a conversion speaks.

CLIP-L and bigG share one vocabulary, so row i of both tables is the same word. That is 49,406 pairs for free with every
SDXL checkpoint. The tables stay where and as the model holds them (half precision, on a GPU); only rows that are needed
are brought over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ti_fix.embedding import VOCABULARY_SIZE, Vocabulary
from ti_fix.errors import TiFixError

_SPECIAL = (49406, 49407)
"""Start and end token: they are no words."""

FORM = 2
"""Of what is kept in caches; one more whenever it changes, so that nobody reads what an earlier release kept."""

SAMPLED = 499
"""Every so-manieth row goes into the hash."""

BLOCK = 4096
"""Rows that are looked at together."""

FACTS = ("ids", "source_norms", "target_norms", "centre")

SHORTLIST = 96
"""Words that the index puts forward for each vector; the nearest of them are then found exactly."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Index:
    """Short forms of all words, by which the nearest are found without reading a whole table.

    Attributes:
        axes: (source width, short width), orthonormal.
        short: (words, short width), the words' meanings (`TablePair.meanings`) along these axes.
    """

    axes: Tensor
    short: Tensor

    def shortlist(self, meanings: Tensor) -> Tensor:
        """The words whose short forms are nearest to each meaning (n, source width): (n, `SHORTLIST`)."""
        scores = (meanings @ self.axes) @ self.short.T - self.short.square().sum(1) / 2
        return scores.topk(min(SHORTLIST, scores.shape[1]), dim=1).indices


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TablePair:
    """Rows of the same words in two encoders.

    Attributes:
        source: (words, source width) as the model holds it.
        target: (words, target width) as the model holds it.
        ids: (words,) the token ids.
        source_norms, target_norms: (words,) length of each row.
        centre: (source width,) mean of the source rows at length 1, which is what all words have in common.
        index: finds the nearest words quickly; without one all are looked at.
    """

    source: Tensor
    target: Tensor
    ids: Tensor
    source_norms: Tensor
    target_norms: Tensor
    centre: Tensor
    index: Index | None = None

    @classmethod
    def of(cls, vocabulary: Vocabulary, source: str, target: str) -> TablePair:
        """The words of a model's vocabulary that training has touched.

        Raises:
            TiFixError: the model has no such pair of encoders, or the tables have not the same words.
        """
        left, right = tables_of(vocabulary, source, target)
        usable = torch.ones(len(left), dtype=torch.bool)
        if vocabulary.trained is not None:
            usable &= vocabulary.trained[: len(left)].cpu()
        usable[[i for i in _SPECIAL if i < len(left)]] = False
        norms = _lengths(left), _lengths(right)
        for each in norms:
            usable &= torch.isfinite(each) & (each > 0)
        if int(usable.sum()) < 2:
            raise TiFixError("the loaded model's token tables hold no usable words; load another model.")
        ids = usable.nonzero().flatten()
        left, right = _only(left, right, ids)
        lengths = norms[0][ids]
        sums = [
            (_block(left, i) / lengths[i : i + BLOCK, None].to(_where(left))).sum(0).double().cpu()
            for i in range(0, len(ids), BLOCK)
        ]
        centre = (torch.stack(sums).sum(0) / len(ids)).float()
        return cls(source=left, target=right, ids=ids, source_norms=lengths, target_norms=norms[1][ids], centre=centre)

    @classmethod
    def known(cls, left: Tensor, right: Tensor, facts: Mapping[str, Tensor], index: Index | None) -> TablePair:
        """The words of two whole tables, where all about them (the fields besides the tables) is known already."""
        left, right = _only(left, right, facts["ids"])
        return cls(source=left, target=right, index=index, **facts)

    @property
    def facts(self) -> dict[str, Tensor]:
        """All about the words besides the tables themselves."""
        return {name: getattr(self, name) for name in FACTS}

    def source_rows(self, words: Tensor) -> Tensor:
        """Rows of the source table, float32 on the CPU; `words` of any shape."""
        return _brought(self.source, words)

    def target_rows(self, words: Tensor) -> Tensor:
        """Rows of the target table, float32 on the CPU; `words` of any shape."""
        return _brought(self.target, words)

    def blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """All rows of both tables, some thousand at a time, in float32 where they are (what is not CUDA: the CPU)."""
        for start in range(0, len(self.ids), BLOCK):
            yield _block(self.source, start), _block(self.target, start)

    def meanings(self, vectors: Tensor) -> Tensor:
        """Directions (n, source width) of vectors after what all words have in common is taken off."""
        return normalize(normalize(vectors, dim=1) - self.centre.to(vectors), dim=1)

    def near(self, vectors: Tensor, count: int, without: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The words whose meanings are nearest to those of vectors, whatever their lengths.

        Args:
            vectors: (n, source width).
            count: of words.
            without: (n,) a word for each vector that is to count as unknown.

        Returns:
            Likeness (cosine of the meanings) and rows, (n, count) each, the nearest first; fewer where there are fewer.
        """
        asked = self.meanings(vectors)
        if self.index is not None:
            listed = self.index.shortlist(asked)
            others = self.meanings(self.source_rows(listed).flatten(0, 1)).unflatten(0, listed.shape)
            likeness = (others @ asked[:, :, None])[..., 0]
        else:
            likeness = torch.cat([asked @ self.meanings(source.cpu()).T for source, _ in self.blocks()], dim=1)
            listed = torch.arange(likeness.shape[1]).expand_as(likeness)
        if without is not None:
            likeness = likeness.masked_fill(listed == without[:, None], -torch.inf)
        best = likeness.topk(min(count, likeness.shape[1] - (without is not None)), dim=1)
        return best.values, listed.gather(1, best.indices)

    def split(self, held_out: int, seed: int = 0) -> tuple[TablePair, TablePair]:
        """A part to fit on and `held_out` words to judge by, disjoint."""
        judged, fitted = parted(len(self.ids), held_out, seed)
        return self.take(fitted), self.take(judged)

    def take(self, rows: Tensor) -> TablePair:
        """Only these rows."""
        return TablePair(
            source=self.source_rows(rows),
            target=self.target_rows(rows),
            ids=self.ids[rows],
            source_norms=self.source_norms[rows],
            target_norms=self.target_norms[rows],
            centre=self.centre,
        )


def parted(words: int, held_out: int, seed: int) -> tuple[Tensor, Tensor]:
    """Rows to hold out and the others, by chance."""
    order = torch.randperm(words, generator=torch.Generator().manual_seed(seed))
    return order[:held_out], order[held_out:]


def tables_of(vocabulary: Vocabulary, source: str, target: str) -> tuple[Tensor, Tensor]:
    """Both tables of a model, as far as they go together.

    Raises:
        TiFixError: it has no such pair of encoders.
    """
    try:
        left, right = vocabulary.tables[source], vocabulary.tables[target]
    except KeyError:
        has = " and ".join(vocabulary.tables)
        raise TiFixError(f"the model has {has}, not {source} and {target}; load an SDXL model.") from None
    rows = min(left.shape[0], right.shape[0], VOCABULARY_SIZE)
    return left[:rows].detach(), right[:rows].detach()


def key_of(left: Tensor, right: Tensor, trained: Tensor | None) -> str:
    """Hash of a sample of the rows, which tells checkpoints apart in milliseconds; for caches of this `FORM`."""
    digest = hashlib.sha256(f"{FORM} {tuple(left.shape)} {tuple(right.shape)}".encode())
    for part in (left, right):
        digest.update(part[::SAMPLED].float().cpu().contiguous().numpy().tobytes())
    if trained is not None:
        digest.update(trained.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _only(left: Tensor, right: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    words = len(ids)
    if int(ids[-1]) == words - 1:  # a real checkpoint: all but the two last rows, so a view and no copy
        return left[:words], right[:words]
    return left[ids.to(left.device)], right[ids.to(right.device)]


def _where(table: Tensor) -> torch.device:
    return table.device if table.is_cuda else torch.device("cpu")


def _block(table: Tensor, start: int) -> Tensor:
    rows = table[start : start + BLOCK]
    return rows.float() if rows.is_cuda else rows.cpu().float()


def _brought(table: Tensor, words: Tensor) -> Tensor:
    rows: Tensor = table[words.to(table.device)].float().cpu()
    return rows


def _lengths(table: Tensor) -> Tensor:
    parts = [torch.linalg.vector_norm(_block(table, start), dim=1).cpu() for start in range(0, len(table), BLOCK)]
    return torch.cat(parts)
