"""Vectors chosen so that the text encoders give wanted outputs in many sentences; gradients come from the loaded model.

Shared by output matching (`outputs`) and by the move from one checkpoint to another (`realign`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ti_fix import tokenizer
from ti_fix.embedding import ENCODERS
from ti_fix.prompt import split_prompt
from ti_fix.protocols import DiffusionModel, Sizes

NAME = "zqxv"
"""Stands for the embedding in the sentences; no word."""

SENTENCES = (
    "{}",
    "a photo of {}",
    "a painting of {} in a forest",
    "{} on a table",
    "a close-up of {}, high detail",
    "the picture shows {} at night",
    "two people and {}",
    "a small {} on a white background",
    "red and blue {}",
    "a drawing in the style of {}",
    "an old photo with {} in the middle",
    "{} and a tree",
)
JUDGED = 4
"""Every so-manieth sentence only judges."""

RATE = 0.02
"""Of Adam, in lengths of a row a step."""

LOOK_EVERY = 5
PATIENCE = 8
"""Looks without a better result after which it is over."""

PULL = 0.01
"""Weight of the squared distance from the start, in lengths of a row; without it rarely used directions drift."""

Vectors = Mapping[str, Tensor]
Outputs = Mapping[str, Tensor]
"""What is read of a model: a name -> (places, width)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchEvent:
    """How far it is.

    Attributes:
        done, total: steps.
        gap: distance from the wanted outputs in sentences that are not trained on; 1 at the start.
    """

    done: int
    total: int
    gap: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Matched:
    """The end.

    Attributes:
        vectors: the best that were found.
        gap: theirs, 1 = no better than the start.
        steps: until the end.
        apart: how far the start was from what is wanted, in spreads of the outputs.
    """

    vectors: Vectors
    gap: float
    steps: int
    apart: float = 1.0


def read_outputs(model: DiffusionModel, sentences: Sequence[str], vectors: Vectors, *, whole: bool) -> Outputs:
    """What the encoders say at the embedding's places and at the end of each sentence.

    Args:
        model: the loaded model.
        sentences: with `NAME` in them.
        vectors: encoder key -> (rows, width); gradients pass.
        whole: also between the embedding and the end.

    Returns:
        Encoder key -> (places, width), and ``pooled`` -> (sentences, width) where the family has it.
    """
    rows = max(len(block) for block in vectors.values())
    said = encode(model, sentences, {NAME: vectors})
    spots = [_places(sentence, rows, whole) for sentence in sentences]
    lines = torch.tensor([i for i, places in enumerate(spots) for _ in places])
    columns = torch.tensor([place for places in spots for place in places])
    return {key: block if key == "pooled" else block[lines, columns] for key, block in said.items()}


def encode(model: DiffusionModel, prompts: Sequence[str], tensors: Mapping[str, Vectors]) -> dict[str, Tensor]:
    """Encoder key -> (prompts, 77, width) of its states, and ``pooled`` -> (prompts, width), in float32."""
    sizes = [Sizes(original=(1024, 1024), target=(1024, 1024))] * len(prompts)
    said = model.encode_prompts(prompts, tensors, sizes)
    tables = model.vocabulary().tables
    keys = sorted(tables, key=list(ENCODERS).index)
    parts = said.context.float().split([tables[key].shape[1] for key in keys], dim=-1)
    outputs = dict(zip(keys, parts, strict=True))
    if said.vector is not None:
        outputs["pooled"] = said.vector.float()
    return outputs


def descend(
    start: Vectors,
    fixed: Vectors,
    loss: Callable[[Vectors, bool], Tensor],
    steps: int,
    stop: Callable[[], bool],
) -> Iterator[MatchEvent | Matched]:
    """Lower a loss by Adam (Kingma & Ba 2015); the best on what only judges is kept.

    Args:
        start: what is changed, encoder key -> (rows, width).
        fixed: what stays beside it.
        loss: (vectors, judge) -> scalar, over the sentences that train or over those that judge.
        steps: at most.
        stop: asked between two steps.
    """
    leaves = {key: block.detach().float().clone() for key, block in start.items()}
    rates = {key: RATE * torch.linalg.vector_norm(block, dim=1).mean().clamp(min=1e-6) for key, block in leaves.items()}
    optimiser = torch.optim.Adam([{"params": [leaf], "lr": float(rates[key])} for key, leaf in leaves.items()])
    first = best = _judge(loss, {**fixed, **leaves})
    kept, looks = {k: v.clone() for k, v in leaves.items()}, 0
    step = 0
    for step in range(1, steps + 1):
        if stop() or looks >= PATIENCE or first <= 0:
            break
        _step(leaves, start, fixed, loss, optimiser)
        if step % LOOK_EVERY == 0 or step == steps:
            now = _judge(loss, {**fixed, **leaves})
            looks += 1
            if now < best:
                best, kept, looks = now, {k: v.clone() for k, v in leaves.items()}, 0
        yield MatchEvent(done=step, total=steps, gap=(best / first) ** 0.5 if first > 0 else 1.0)
    yield Matched(vectors=kept, gap=(best / first) ** 0.5 if first > 0 else 1.0, steps=step)


def _step(
    leaves: dict[str, Tensor],
    start: Vectors,
    fixed: Vectors,
    loss: Callable[[Vectors, bool], Tensor],
    optimiser: torch.optim.Optimizer,
) -> None:
    with torch.enable_grad():
        for leaf in leaves.values():
            leaf.requires_grad_(True)
        whole = loss({**fixed, **leaves}, False)
        for key, leaf in leaves.items():
            moved = (leaf - start[key].float()).square().sum() / start[key].float().square().sum().clamp(min=1e-12)
            whole = whole + PULL * moved
        gradients = torch.autograd.grad(whole, list(leaves.values()))
    for leaf, gradient in zip(leaves.values(), gradients, strict=True):
        leaf.requires_grad_(False)
        leaf.grad = gradient
    optimiser.step()
    for leaf in leaves.values():
        leaf.grad = None


@torch.no_grad()
def _judge(loss: Callable[[Vectors, bool], Tensor], vectors: Vectors) -> float:
    return float(loss(vectors, True))


def sentences(judge: bool) -> list[str]:
    """Those that judge, or those that train."""
    return [each.format(NAME) for i, each in enumerate(SENTENCES) if (i % JUDGED == JUDGED - 1) == judge]


def _places(sentence: str, rows: int, whole: bool) -> list[int]:
    start, end = spot(sentence, rows)
    return [*range(start, end + 1)] if whole else [*range(start, start + rows), end]


def spot(sentence: str, rows: int) -> tuple[int, int]:
    """Places of the first vector and of the end token in the first chunk."""
    chunk = split_prompt(sentence, {NAME: rows}, tokenizer.encode)[0]
    return chunk.splices[0].start, chunk.end
