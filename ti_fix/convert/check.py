"""What every conversion must hold before it is handed out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ti_fix.convert.matching import NAME, encode, sentences
from ti_fix.convert.result import Conversion
from ti_fix.convert.tables import TablePair
from ti_fix.embedding import CLIP_G, CLIP_L, SD15, SDXL, Embedding, Finding
from ti_fix.errors import TiFixError
from ti_fix.formats.safetensors_file import read
from ti_fix.formats.source import Source
from ti_fix.formats.stored import StoredTensor
from ti_fix.formats.write import to_bytes
from ti_fix.protocols import DiffusionModel

Probe = Callable[[DiffusionModel, str, Mapping[str, Tensor], Mapping[str, Tensor], int], float]
"""How much of a prompt's other words comes through beside vectors, compared with other vectors: 1 as beside those."""

DROWNED = 0.5


def checked(conversion: Conversion) -> Conversion:
    """A conversion whose file reads back with the same numbers in the same order.

    Raises:
        TiFixError: it does not; nothing is returned that would break pictures.
    """
    vectors = conversion.embedding.vectors
    family = SDXL if CLIP_G.key in vectors else SD15
    even = len({block.shape[0] for block in vectors.values()}) == 1
    finite = all(bool(torch.isfinite(block).all()) for block in vectors.values())
    if not even or not finite or not _reads_back(conversion.embedding, to_bytes(conversion.embedding, family=family)):
        raise TiFixError(f"the conversion of {conversion.embedding.name!r} came out unusable; keep the original.")
    return conversion


def _reads_back(embedding: Embedding, data: bytes) -> bool:
    tree = read(Source(data)).tree
    stored = tree.values() if isinstance(tree, Mapping) else ()
    found = [each.read() for each in stored if isinstance(each, StoredTensor)]
    return len(found) == len(embedding.vectors) and all(
        any(torch.equal(block.float().cpu(), each) for each in found) for block in embedding.vectors.values()
    )


@torch.no_grad()
def tried(
    conversion: Conversion, model: DiffusionModel, pair: TablePair, probe: Probe | None, size: int = 1024
) -> Conversion:
    """A conversion that went through the loaded model's text encoders once.

    Args:
        conversion: to SDXL.
        model: the loaded SDXL model.
        pair: its words; those nearest to the vectors are what the probe compares with.
        probe: the order probe of the training engine; None leaves it out.
        size: pixels of the pictures that the model makes.

    Raises:
        TiFixError: the encoders' outputs are not finite.
    """
    vectors = conversion.embedding.vectors
    said = encode(model, sentences(judge=True), {NAME: vectors})
    if not all(bool(torch.isfinite(block).all()) for block in said.values()):
        raise TiFixError(
            f"with the conversion of {conversion.embedding.name!r} the text encoders give NaN; keep the original."
        )
    if probe is None:
        return conversion
    nearest = pair.near(vectors[CLIP_L.key].float(), 1)[1][:, 0]
    words = {CLIP_L.key: pair.source_rows(nearest), CLIP_G.key: pair.target_rows(nearest)}
    score = probe(model, NAME, vectors, words, size)
    if score >= DROWNED:
        return conversion
    message = (
        f"Beside it only {score:.0%} of the effect of a prompt's other words is left; give it a weight below 1, as in "
        f"({conversion.embedding.name}:0.6)."
    )
    return conversion.noticed(Finding(code="order-probe", severity="warning", message=message))
