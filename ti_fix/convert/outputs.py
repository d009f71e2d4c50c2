"""Output matching: bigG vectors whose effect in sentences is what the CLIP-L half's effect says it should be.

For words both encoders' outputs are known, so a linear map from the ones to the others is learned, for each sentence
after its mean over words is taken off. What CLIP-L says with the embedding in a sentence then tells what bigG ought to
say, and the bigG vectors are moved until it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ti_fix import tokenizer
from ti_fix.convert.matching import (
    NAME,
    SENTENCES,
    Matched,
    MatchEvent,
    Vectors,
    descend,
    encode,
    read_outputs,
    sentences,
    spot,
)
from ti_fix.embedding import CLIP_G, CLIP_L
from ti_fix.errors import TiFixError
from ti_fix.protocols import DiffusionModel

TOGETHER = 32
"""Prompts that are encoded together."""

PENALTY = 0.1
"""Of the ridge regressions, in mean variances; a tenth of the words' variance is noise of the sentence."""

LONGEST_ID = 30000
"""Ids above are rare pieces of words."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Link:
    """One linear map between outputs in one sentence: what bigG says for what CLIP-L says.

    Attributes:
        before, after: means over words.
        weight: (CLIP-L width, width).
        spread: mean square of what bigG says about its mean, which makes losses comparable.
    """

    before: Tensor
    after: Tensor
    weight: Tensor
    spread: float

    @classmethod
    def of(cls, before: Tensor, after: Tensor) -> _Link:
        """Fitted on words, (words, width) each."""
        x, y = (before - before.mean(0)).double(), (after - after.mean(0)).double()
        square = x.T @ x
        square += (PENALTY * square.diagonal().mean() + 1e-9) * torch.eye(len(square)).double()
        weight = torch.linalg.solve(square, x.T @ y).float()
        spread = float(y.square().mean().clamp(min=1e-12))
        return cls(before=before.mean(0), after=after.mean(0), weight=weight, spread=spread)

    def __call__(self, before: Tensor) -> Tensor:
        return (before - self.before) @ self.weight + self.after


class OutputMatcher:
    """Knows for each sentence how bigG's outputs follow from CLIP-L's.

    Args:
        model: the loaded SDXL model.
        ids: token ids of its words.
        count: words to learn from; each is encoded in each sentence once.
    """

    def __init__(self, model: DiffusionModel, ids: Tensor, count: int) -> None:
        self._model = model
        self._words = plain_words(ids, count)
        self._links: dict[str, dict[str, _Link]] = {}

    def prepare(self, stop: Callable[[], bool]) -> Iterator[MatchEvent]:
        """Encode the words; a few thousand short prompts. Done once for a model."""
        for done, sentence in enumerate(SENTENCES):
            if stop():
                return
            if sentence not in self._links:
                self._links[sentence] = self._learn(sentence)
            yield MatchEvent(done=done + 1, total=len(SENTENCES), gap=1.0)

    @torch.no_grad()
    def _learn(self, sentence: str) -> dict[str, _Link]:
        start, end = spot(sentence.format(NAME), 1)
        found: dict[str, list[Tensor]] = {}
        for at in range(0, len(self._words), TOGETHER):
            said = encode(self._model, [sentence.format(w) for w in self._words[at : at + TOGETHER]], {})
            for key, block in (
                ("left", said[CLIP_L.key][:, start]),
                ("left_end", said[CLIP_L.key][:, end]),
                ("right", said[CLIP_G.key][:, start]),
                ("right_end", torch.cat([said[CLIP_G.key][:, end], said["pooled"]], dim=1)),
            ):
                found.setdefault(key, []).append(block.cpu())
        whole = {key: torch.cat(parts) for key, parts in found.items()}
        return {
            "place": _Link.of(whole["left"], whole["right"]),
            "end": _Link.of(whole["left_end"], whole["right_end"]),
        }

    def match(self, vectors: Vectors, steps: int, stop: Callable[[], bool]) -> Iterator[MatchEvent | Matched]:
        """Move the bigG half.

        Args:
            vectors: both halves; the bigG half is where to start.
            steps: at most.
            stop: asked between two steps.

        Raises:
            TiFixError: `prepare` was stopped.
        """
        if len(self._links) < len(SENTENCES):
            raise TiFixError("the preparation of output matching was stopped; start it again.")
        rows = len(vectors[CLIP_L.key])
        with self._model.trainable():
            wanted = {judge: self._wanted(vectors, rows, judge) for judge in (False, True)}

            def loss(now: Vectors, judge: bool) -> Tensor:
                return self._distance(
                    read_outputs(self._model, sentences(judge), now, whole=False), wanted[judge], rows
                )

            start, fixed = {CLIP_G.key: vectors[CLIP_G.key]}, {CLIP_L.key: vectors[CLIP_L.key]}
            yield from descend(start, fixed, loss, steps, stop)

    @torch.no_grad()
    def _wanted(self, vectors: Vectors, rows: int, judge: bool) -> list[tuple[Tensor, Tensor, dict[str, _Link]]]:
        """For each sentence what bigG should say at the vectors and at the end."""
        asked = sentences(judge)
        left = read_outputs(self._model, asked, vectors, whole=False)[CLIP_L.key].cpu().unflatten(0, (-1, rows + 1))
        links = [self._links[each] for each in SENTENCES if each.format(NAME) in asked]
        return [
            (link["place"](said[:rows]), link["end"](said[rows]), link) for said, link in zip(left, links, strict=True)
        ]

    def _distance(
        self,
        said: Vectors,
        wanted: Sequence[tuple[Tensor, Tensor, dict[str, _Link]]],
        rows: int,
    ) -> Tensor:
        right = said[CLIP_G.key].unflatten(0, (-1, rows + 1))
        parts = []
        for states, pooled, (places, end, link) in zip(right, said["pooled"], wanted, strict=True):
            now = torch.cat([states[rows], pooled])
            parts.append((states[:rows] - places.to(states)).square().mean() / link["place"].spread)
            parts.append((now - end.to(now)).square().mean() / link["end"].spread)
        return torch.stack(parts).mean()


def plain_words(ids: Tensor, count: int) -> list[str]:
    """Words of one token each, common ones, spread over the vocabulary."""
    listed = ((i, tokenizer.decode([i]).strip()) for i in ids[ids < LONGEST_ID].tolist())
    plain = ((i, word) for i, word in listed if len(word) > 2 and word.isascii() and word.isalpha())
    words = [word for i, word in plain if tokenizer.encode(word) == [i]]
    return words[:: max(1, len(words) // count)][:count]
