"""Rows of an extended token table as what they are: embeddings."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ti_fix.embedding import VOCABULARY_SIZE, Embedding
from ti_fix.text_model import TextModel


def extra_embeddings(model: TextModel) -> list[Embedding]:
    """The rows beyond CLIP's vocabulary, one embedding for each added token.

    Rows of one id in several encoders are halves of one embedding. A token is called by its name without angle
    brackets, which a file name cannot hold; rows without a token are called ``extra-1``, ``extra-2`` …
    """
    tables = {e.spec.key: e.table for e in model.encoders if e.table.shape[0] > VOCABULARY_SIZE}
    return named_rows({k: t.read()[VOCABULARY_SIZE:].detach().float().cpu() for k, t in tables.items()}, model)


def named_rows(blocks: Mapping[str, Tensor], model: TextModel) -> list[Embedding]:
    """One embedding for each row beyond the vocabulary.

    Args:
        blocks: encoder key -> those rows, (rows, width).
        model: whose tokenizers know the names of the added tokens.
    """
    names: dict[int, str] = {}
    for encoder in model.encoders:
        names |= {i: token for token, i in encoder.added.items() if i >= VOCABULARY_SIZE}
    count = max((block.shape[0] for block in blocks.values()), default=0)
    return [
        Embedding(
            name=_name(names, row),
            vectors={key: block[row : row + 1].contiguous() for key, block in blocks.items() if row < block.shape[0]},
            metadata={"source": model.name},
            aliases=(names[VOCABULARY_SIZE + row],) if VOCABULARY_SIZE + row in names else (),
        )
        for row in range(count)
    ]


def _name(names: Mapping[int, str], row: int) -> str:
    token = names.get(VOCABULARY_SIZE + row, "").removesuffix("</w>")
    return token.strip("<>[]{}() ") or f"extra-{row + 1}"
