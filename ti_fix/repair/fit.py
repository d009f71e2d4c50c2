"""Whether an embedding suits a kind of model: whole, in part, by conversion, or not at all."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ti_fix.embedding import CLIP_G, CLIP_L, ENCODERS, SD3, SD15, SDXL, T5_XXL, Embedding, Family, Finding, Vocabulary
from ti_fix.repair.defects import Defect, Specimen

NEAR = 0.707
"""Cosine (45 degrees) above which the nearest word of the vocabulary stands for a vector."""


def is_conversion(embedding: Embedding, family: Family) -> bool:
    """Whether a conversion exists and is needed: SD1.5 under SDXL, and back."""
    keys = set(embedding.vectors)
    if family is SDXL:
        return CLIP_L.key in keys and CLIP_G.key not in keys
    return family is SD15 and {CLIP_L.key, CLIP_G.key} <= keys


def _find_foreign(specimen: Specimen) -> Iterable[Finding]:
    embedding, target = specimen.embedding, specimen.target
    extra = [k for k in embedding.vectors if k not in target.family.keys]
    if not extra or len(extra) == len(embedding.vectors):
        return
    if is_conversion(embedding, target.family):
        extra = [k for k in extra if k != CLIP_G.key]
    for key in extra:
        made_for = embedding.family.title if embedding.family else "another model"
        yield Finding(
            code="foreign-encoder",
            severity="note",
            message=f"It is made for {made_for}; {target.family.title} has no {ENCODERS[key].title}, so {key} is left "
            "out and the rest is used.",
            encoder=key,
            repaired=f"Left out {key}, for which {target.family.title} has no encoder.",
        )


def _drop_foreign(specimen: Specimen) -> Embedding:
    embedding, target = specimen.embedding, specimen.target
    keep = set(target.family.keys)
    if is_conversion(embedding, target.family):
        keep.add(CLIP_G.key)
    return embedding.half(frozenset(keep))


def _find_wrong_family(specimen: Specimen) -> Iterable[Finding]:
    embedding, target = specimen.embedding, specimen.target
    if set(embedding.vectors) & target.family.keys:
        return
    family = embedding.family
    widths = ", ".join(f"{key} {ENCODERS[key].width} wide" for key in embedding.vectors)
    made_for = family.title if family else "another kind of model"
    title = target.family.title
    what = f"a model of its kind ({made_for})" if family else "a model with these text encoders"
    yield Finding(
        code="wrong-family",
        severity="error",
        message=f"It is made for {made_for} ({widths}); {title} cannot use it, and there is no conversion. Load {what} "
        "to use it.",
    )


def _find_conversion(specimen: Specimen) -> Iterable[Finding]:
    embedding, target = specimen.embedding, specimen.target
    if not is_conversion(embedding, target.family):
        return
    if target.family is SDXL:
        message = (
            "It is made for SD1.5 (clip_l only, 768 wide): its clip_g half for SDXL has to be made by conversion; "
            "without the extension SDXL skips it and reads the name as plain words."
        )
    else:
        message = "It is made for SDXL: for SD1.5 its clip_l half is used and clip_g is dropped."
    yield Finding(code="needs-conversion", severity="note", message=message)


def _find_missing_half(specimen: Specimen) -> Iterable[Finding]:
    embedding, target = specimen.embedding, specimen.target
    missing = [k for k in sorted(target.family.keys) if k not in embedding.vectors]
    if not missing or is_conversion(embedding, target.family) or not set(embedding.vectors) & target.family.keys:
        return
    if missing == [T5_XXL.key]:
        weak = "" if target.family is SD3 else " Only the pooled output of CLIP-L reaches the model, so expect little."
        yield Finding(
            code="missing-half",
            severity="note" if target.family is SD3 else "warning",
            message=f"It has nothing for T5, which reads the name as plain words.{weak}",
        )
        return
    for key in missing:
        if key == T5_XXL.key:
            continue
        yield Finding(
            code="missing-half",
            severity="warning",
            message=f"Only {' and '.join(embedding.vectors)} is in it; the {key} half is missing. "
            "In the WebUI it is filled with the nearest words of the loaded model.",
            encoder=key,
        )


FITTING = (
    Defect(code="foreign-encoder", find=_find_foreign, fix=_drop_foreign),
    Defect(code="wrong-family", find=_find_wrong_family),
    Defect(code="needs-conversion", find=_find_conversion),
    Defect(code="missing-half", find=_find_missing_half),
)


def fill_missing_half(embedding: Embedding, family: Family, vocabulary: Vocabulary) -> tuple[Embedding, list[Finding]]:
    """Fill the half that an embedding lacks: row by row with the nearest word of the model's vocabulary.

    Both SDXL token tables share their ids, so the word that is nearest in one table has a row in the other. A vector
    that is near no word (cosine below `NEAR`) gets the row of the comma; never zeros, never id 0.

    Args:
        embedding: with one of the family's two CLIP halves.
        family: SDXL or SD3.
        vocabulary: the loaded model's tables.

    Returns:
        The whole embedding and a finding per filled half, or the embedding as it was.
    """
    have = [k for k in (CLIP_L.key, CLIP_G.key) if k in embedding.vectors]
    missing = [k for k in (CLIP_L.key, CLIP_G.key) if k in family.keys and k not in embedding.vectors]
    if len(have) != 1 or not missing or not {have[0], *missing} <= set(vocabulary.tables):
        return embedding, []
    known, key = have[0], missing[0]
    ids, cosines = _nearest(embedding.vectors[known], vocabulary.tables[known])
    comma = vocabulary.tokenize(",")[0]
    near = [int(i) if c >= NEAR else comma for i, c in zip(ids, cosines, strict=True)]
    rows = vocabulary.tables[key][near].float().cpu()
    words = sum(1 for c in cosines if c >= NEAR)
    message = (
        f"The {key} half was missing: {words} of {len(near)} vectors got the nearest word of the vocabulary, "
        f"{len(near) - words} the comma."
    )
    finding = Finding(
        code="filled-half",
        severity="warning",
        message=message,
        encoder=key,
        repaired=f"Filled {key} from the vocabulary.",
    )
    order = sorted((known, key), key=list(ENCODERS).index)
    whole = {**embedding.vectors, key: rows}
    return embedding.with_vectors({k: whole[k] for k in order}), [finding]


def _nearest(block: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Per row the id and cosine of the nearest table row."""
    normal = torch.nn.functional.normalize(table.float().cpu(), dim=1)
    cosines, ids = (torch.nn.functional.normalize(block.float(), dim=1) @ normal.T).max(dim=1)
    return ids, cosines
