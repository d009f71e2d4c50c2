"""From one checkpoint to another of the same family: the new encoders are to say what the old ones said.

Fine-tuning moves the outputs for all words alike, and the UNet has learned along. So by default an embedding is
compared with the word next to it: what it adds to that word in the old model it is to add in the new one ("meaning").
The other way ("outputs") asks for the very outputs of the old model, whatever the new one makes of words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ti_fix.convert.matching import Matched, MatchEvent, Outputs, Vectors, descend, read_outputs, sentences
from ti_fix.convert.tables import BLOCK
from ti_fix.embedding import VOCABULARY_SIZE, Embedding, Vocabulary
from ti_fix.errors import WrongUse
from ti_fix.protocols import DiffusionModel

SAME = 1e-4
"""Share of the outputs' spread below which two checkpoints are the same for an embedding."""


def realign(
    embedding: Embedding,
    old: DiffusionModel,
    new: DiffusionModel,
    steps: int,
    stop: Callable[[], bool],
    keep: str = "meaning",
) -> Iterator[MatchEvent | Matched]:
    """Move vectors until the new model's outputs are what is wanted, in many sentences.

    Where both models say the same the vectors come back as they are, bit for bit.

    Args:
        embedding: made for the old model.
        old: the model that it was made for, of the embedding's family.
        new: the model that it is to be used on, of the same family.
        steps: at most.
        stop: asked between two steps.
        keep: one of `config.KEEPS`.

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
        wanted = {judge: _wanted(embedding.vectors, old, new, judge, keep) for judge in (False, True)}
        gaps = _squares(_outputs(new, embedding.vectors, True), wanted[True])
        spread = sum(float(block.var(0).mean()) for block in wanted[True].values())
        apart = (sum(gaps.values()) / max(spread, 1e-12)) ** 0.5
        if apart <= SAME:
            yield Matched(vectors=embedding.vectors, gap=1.0, steps=0, apart=apart)
            return

        def loss(now: Vectors, judge: bool) -> Tensor:
            said = read_outputs(new, sentences(judge), now, whole=True)
            parts = [
                (said[key] - wanted[judge][key].to(said[key])).square().mean() / gap
                for key, gap in gaps.items()
                if gap > 0
            ]
            return torch.stack(parts).mean()

        for event in descend(embedding.vectors, {}, loss, steps, stop):
            yield replace(event, apart=apart) if isinstance(event, Matched) else event


def _wanted(vectors: Vectors, old: DiffusionModel, new: DiffusionModel, judge: bool, keep: str) -> Outputs:
    said = _outputs(old, vectors, judge)
    if keep == "outputs":
        return said
    words = _nearest(vectors, old.vocabulary())
    before, after = (
        _outputs(model, {key: model.vocabulary().tables[key][words] for key in vectors}, judge) for model in (old, new)
    )
    return {key: block - before[key] + after[key].to(block) for key, block in said.items()}


def _nearest(vectors: Vectors, vocabulary: Vocabulary) -> Tensor:
    """Ids of the words nearest to the vectors of the first encoder, (rows,)."""
    key, block = next(iter(vectors.items()))
    table, asked = vocabulary.tables[key][: VOCABULARY_SIZE - 2], normalize(block.float().cpu(), dim=1)
    parts = [asked @ normalize(table[i : i + BLOCK].float().cpu(), dim=1).T for i in range(0, len(table), BLOCK)]
    cosines = torch.cat(parts, dim=1).nan_to_num(nan=-1.0)
    if vocabulary.trained is not None:
        cosines[:, ~vocabulary.trained[: cosines.shape[1]].cpu()] = -1.0
    nearest: Tensor = cosines.argmax(dim=1)
    return nearest


@torch.no_grad()
def _outputs(model: DiffusionModel, vectors: Vectors, judge: bool) -> Outputs:
    return read_outputs(model, sentences(judge), vectors, whole=True)


def _squares(one: Outputs, other: Outputs) -> dict[str, float]:
    return {key: float((block - other[key].to(block)).square().mean()) for key, block in one.items()}
