"""What an embedding does to the text encoders, before any picture: word order, context, change of the conditioning.

An overlong vector drowns the positions and the words around it in the encoder's layer norm (arXiv 2512.13672), so its
own state hardly changes with where it stands or with what stands before it. The probes measure that, to be set beside
the class word's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ti_fix.embedding import Embedding
from ti_fix.protocols import DiffusionModel, Sizes

POSITIONS = 8
FILLERS = (
    "one two three four five six seven eight",
    "red green blue white black brown pink gray",
    "north south east west up down left right",
    "cat dog fish bird cow horse sheep mouse",
)
"""Texts of single-token words that are put before the probed word."""

ADJECTIVES = ("red", "green", "small", "old", "wooden", "bright")

Encode = Callable[[Sequence[str]], Tensor]
"""Prompts -> context (n, tokens, width); the embeddings are known to it."""


SIZES = Sizes(original=(1024, 1024), target=(1024, 1024))
"""What SDXL is told of the picture while it is probed; it does not change the context."""


def encoder_of(model: DiffusionModel, embeddings: Iterable[Embedding]) -> Encode:
    """A model's own way from prompts to context.

    Args:
        model: the loaded one.
        embeddings: that prompts may call, in the model's widths.
    """
    vectors = {each.name: each.vectors for each in embeddings}

    @torch.no_grad()
    def encode(prompts: Sequence[str]) -> Tensor:
        return model.encode_prompts(list(prompts), vectors, [SIZES] * len(prompts)).context

    return encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """How a word behaves in the text encoders.

    Attributes:
        order: how far its place among other words moves its state (1 - cosine); near 0, word order is lost.
        context: how far adjectives before it move its state (1 - cosine).
        later: how far it moves the state of a word behind it, compared with leaving it out (1 - cosine).
    """

    order: float
    context: float
    later: float


@torch.no_grad()
def probe(encode: Encode, word: str) -> Probes:
    """Probe a word or the trigger of an embedding.

    Args:
        encode: the model's own way from prompts to context.
        word: one word; of several tokens the first is looked at.
    """
    return Probes(order=_order(encode, word), context=_context(encode, word), later=_later(encode, word))


def _order(encode: Encode, word: str) -> float:
    """Over several texts, as each text of its own also moves the state."""
    return sum(_spread(_states(encode, word, filler.split())) for filler in FILLERS) / len(FILLERS)


def _states(encode: Encode, word: str, filler: Sequence[str]) -> Tensor:
    """State of the word behind 0, 1, … words, (positions, width)."""
    contexts = encode([" ".join([*filler[:count], word]) for count in range(POSITIONS)])
    places = torch.arange(POSITIONS)
    return contexts[places, places + 1].float().cpu()


def _context(encode: Encode, word: str) -> float:
    return _spread(encode([f"{adjective} {word}" for adjective in ADJECTIVES])[:, 2].float().cpu())


def _spread(states: Tensor) -> float:
    """Mean of 1 - cosine over all pairs of states (n, width)."""
    cosines = F.normalize(states, dim=-1) @ F.normalize(states, dim=-1).T
    pairs = len(states) * (len(states) - 1)
    return float(1 - (cosines.sum() - cosines.diagonal().sum()) / pairs)


def _later(encode: Encode, word: str) -> float:
    """The end token's state of “a photo” with and without the word in front: everything before it reaches there."""
    with_word, without = encode([f"{word} a photo", "a photo"]).float().cpu()
    return float(1 - F.cosine_similarity(with_word[-1], without[-1], dim=0))


@torch.no_grad()
def conditioning_change(encode: Encode, one: str, other: str) -> float:
    """How far two prompts' conditionings are apart: relative distance, 0 where they are equal.

    Args:
        encode: see `Encode`.
        one: for instance the negative prompt with the embedding.
        other: the same without.
    """
    first, second = (encode([text])[0].float().cpu() for text in (one, other))
    length = min(len(first), len(second))
    first, second = first[:length], second[:length]
    return float((first - second).norm() / second.norm().clamp(min=1e-12))
