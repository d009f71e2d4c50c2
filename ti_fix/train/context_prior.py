"""A prior that keeps the rest of a prompt what it was: the context of the other words must not follow the vectors.

After CoRe (Wu et al. 2024, arXiv 2408.15914), which compares the text encoder's outputs of the
words around the new one with those around its class word. Here the class word is the start vectors, so places agree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ti_fix.embedding import MAX_VECTORS
from ti_fix.train.preflight import dump

_KEPT = 64
"""Prompts whose context with the start vectors is remembered."""

_SYNTAX = re.compile(r"[()\[\]\\]|\bBREAK\b")

Encode = Callable[[Sequence[str], Mapping[str, Tensor]], Tensor]
"""Prompts and vectors -> context (rows, 77 * chunks, width)."""


class ContextPrior:
    """Compares the context of the words behind the vectors with that beside the start vectors.

    Args:
        encode: the text encoders.
        tokenize: text -> token ids.
        name: the trigger.
        start: the first vectors.
    """

    def __init__(
        self, encode: Encode, tokenize: Callable[[str], list[int]], name: str, start: Mapping[str, Tensor]
    ) -> None:
        self._encode, self._tokenize, self._name = encode, tokenize, name
        self._start = {key: block.detach() for key, block in start.items()}
        self._vectors = max(len(block) for block in start.values())
        self._kept: dict[str, Tensor] = {}

    def __call__(self, prompts: Sequence[str], context: Tensor) -> Tensor:
        """Mean of 1 - cosine over the places behind the vectors, up to the end of the text.

        Rows whose prompt holds emphasis, BREAK, or more than one chunk are left out: their places are the host's
        matter.

        Args:
            prompts: one a row.
            context: with the vectors as they are now, (rows, 77 * chunks, width).
        """
        found = []
        for row, prompt in enumerate(prompts):
            places = self.places(prompt)
            if places:
                before = self._before(prompt)[places].to(context)
                found.append(1 - torch.nn.functional.cosine_similarity(context[row, places], before, dim=-1))
        return torch.cat(found).mean() if found else context.new_zeros(())

    def places(self, prompt: str) -> list[int]:
        """Places of the other words behind the vectors, counted with the start token."""
        seen = dump(self._tokenize, prompt, self._name, self._vectors)
        if _SYNTAX.search(prompt) or not seen.places or seen.tokens > MAX_VECTORS:
            return []
        own = {place + i for place in seen.places for i in range(self._vectors)}
        return [1 + place for place in range(seen.places[0], seen.tokens) if place not in own]

    @torch.no_grad()
    def _before(self, prompt: str) -> Tensor:
        if prompt not in self._kept:
            while len(self._kept) >= _KEPT:
                self._kept.pop(next(iter(self._kept)))
            self._kept[prompt] = self._encode([prompt], self._start)[0].detach()
        return self._kept[prompt]
