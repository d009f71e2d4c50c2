"""From one checkpoint to another of the same family: the new encoders are to say what the old ones said."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ti_fix.convert.matching import Matched, MatchEvent, Outputs, Vectors, descend, read_outputs, sentences
from ti_fix.embedding import Embedding
from ti_fix.errors import WrongUse
from ti_fix.protocols import DiffusionModel

SAME = 1e-5
"""Share of the outputs' own size below which two checkpoints are the same for an embedding."""


def realign(
    embedding: Embedding, old: DiffusionModel, new: DiffusionModel, steps: int, stop: Callable[[], bool]
) -> Iterator[MatchEvent | Matched]:
    """Move vectors until the new model's outputs are those of the old one, in many sentences.

    Where both models say the same the vectors come back as they are, bit for bit.

    Args:
        embedding: made for the old model.
        old: the model that it was made for, of the embedding's family.
        new: the model that it is to be used on, of the same family.
        steps: at most.
        stop: asked between two steps.

    Raises:
        WrongUse: embedding and models do not fit each other.
    """
    if old.family != new.family or embedding.vectors.keys() != new.family.keys:
        has = " and ".join(embedding.vectors)
        raise WrongUse(
            f"{embedding.name!r} has {has}, the models are {old.family.title} and {new.family.title}; "
            "realignment needs an embedding and two checkpoints of one family."
        )
    with old.trainable(), new.trainable():
        wanted = {judge: _outputs(old, embedding.vectors, judge) for judge in (False, True)}
        gaps = _squares(_outputs(new, embedding.vectors, True), wanted[True])
        sizes = {key: float(block.square().mean()) for key, block in wanted[True].items()}
        if all(gap <= SAME**2 * sizes[key] for key, gap in gaps.items()):
            yield Matched(vectors=embedding.vectors, gap=1.0, steps=0)
            return

        def loss(now: Vectors, judge: bool) -> Tensor:
            said = read_outputs(new, sentences(judge), now, whole=True)
            parts = [
                (said[key] - wanted[judge][key].to(said[key])).square().mean() / gap
                for key, gap in gaps.items()
                if gap > 0
            ]
            return torch.stack(parts).mean()

        yield from descend(embedding.vectors, {}, loss, steps, stop)


@torch.no_grad()
def _outputs(model: DiffusionModel, vectors: Vectors, judge: bool) -> Outputs:
    return read_outputs(model, sentences(judge), vectors, whole=True)


def _squares(one: Outputs, other: Outputs) -> dict[str, float]:
    return {key: float((block - other[key].to(block)).square().mean()) for key, block in one.items()}
