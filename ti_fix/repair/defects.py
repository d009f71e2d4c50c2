"""What can be wrong with vectors. A defect is one object: a code, a function that finds it, one that mends it.

Order matters: encoders that the model does not have go first, then row counts are made even, then values are judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ti_fix.additions import Added
from ti_fix.embedding import ENCODERS, MAX_VECTORS, Embedding, Family, Finding, Vocabulary, norms
from ti_fix.formats.added import LAYOUTS

FP16_MAX = 65504.0

LONG = 4
"""Multiple of the length of everyday words from which a note says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What an embedding is judged for.

    Attributes:
        family: the kind of model.
        vocabulary: the loaded model's token tables, None where no model is at hand.
    """

    family: Family
    vocabulary: Vocabulary | None = None


class Specimen:
    """An embedding under examination, with what several defects want to know of it.

    Attributes:
        embedding: as it stands now.
        target: what it is judged for.
    """

    def __init__(self, embedding: Embedding, target: Target) -> None:
        self.embedding, self.target = embedding, target

    @cached_property
    def lengths(self) -> dict[str, list[float]]:
        """Encoder key -> Euclidean length of each row; not finite where a row is not, or is beyond float32."""
        return {key: norms(block) for key, block in self.embedding.vectors.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """One kind of damage.

    Attributes:
        code: stable name; findings carry it.
        find: the findings of this kind, none for a healthy embedding.
        fix: the mended embedding, None where it cannot be mended.
    """

    code: str
    find: Callable[[Specimen], Iterable[Finding]]
    fix: Callable[[Specimen], Embedding] | None = None


ADDED_DEFECTS: Added[Defect] = Added()
"""Those of other extensions, looked at behind `DEFECTS`."""


def additions() -> int:
    """Grows whenever another extension adds or takes out something that can change a verdict."""
    return LAYOUTS.version + ADDED_DEFECTS.version


def is_sound(specimen: Specimen) -> bool:
    """Whether no defect can be found, told by shapes and lengths alone; nearly every file of a folder is.

    False only means that each defect has to look for itself.
    """
    vectors, target = specimen.embedding.vectors, specimen.target
    if ADDED_DEFECTS:
        return False
    if target.vocabulary is not None or vectors.keys() != target.family.keys:
        return False
    rows = {block.shape[0] for block in vectors.values()}
    if len(rows) != 1 or not 0 < max(rows) <= MAX_VECTORS:
        return False
    for key, lengths in specimen.lengths.items():
        typical = ENCODERS[key].typical_norm
        limit = FP16_MAX if typical is None else LONG * typical
        if not all(0 < length < limit for length in lengths):  # not a number is neither
            return False
    return True


def _find_empty_half(specimen: Specimen) -> Iterable[Finding]:
    for key, block in specimen.embedding.vectors.items():
        if block.shape[0] == 0:
            yield Finding(
                code="empty-half",
                severity="note",
                message=f"{key} has no rows: left it out.",
                encoder=key,
                repaired=f"Left out the empty {key}.",
            )


def _drop_empty_half(specimen: Specimen) -> Embedding:
    return specimen.embedding.half([k for k, v in specimen.embedding.vectors.items() if v.shape[0]])


def _find_uneven(specimen: Specimen) -> Iterable[Finding]:
    counts = {key: block.shape[0] for key, block in specimen.embedding.vectors.items()}
    if len(set(counts.values())) < 2:
        return
    listed = ", ".join(f"{key} {rows}" for key, rows in counts.items())
    most = max(counts.values())
    yield Finding(
        code="uneven-rows",
        severity="note",
        message=f"The halves have different numbers of vectors ({listed}): the shorter is filled up to {most} by "
        "repeating its last vector.",
        repaired=f"Filled the shorter half up to {most} rows by repeating its last vector.",
    )


def _pad_rows(specimen: Specimen) -> Embedding:
    rows = specimen.embedding.num_vectors
    padded = {
        key: torch.cat([block, block[-1:].expand(rows - block.shape[0], -1)]) if block.shape[0] < rows else block
        for key, block in specimen.embedding.vectors.items()
    }
    return specimen.embedding.with_vectors(padded)


def _find_too_many(specimen: Specimen) -> Iterable[Finding]:
    rows = specimen.embedding.num_vectors
    if rows > MAX_VECTORS:
        yield Finding(
            code="too-many-vectors",
            severity="error",
            message=f"It has {rows} vectors; a prompt chunk takes at most {MAX_VECTORS}. Split it into parts "
            "(Split into parts on the Files page, or ti-fix repair --split).",
        )


def _find_not_finite(specimen: Specimen) -> Iterable[Finding]:
    for key, block in specimen.embedding.vectors.items():
        if all(map(math.isfinite, specimen.lengths[key])):
            continue
        bad = (~torch.isfinite(block)).any(dim=1).nonzero().flatten().tolist()
        if bad:
            yield Finding(
                code="not-finite",
                severity="error",
                message=f"{key} holds NaN or infinite numbers in row {_rows(bad)}; the training diverged. Use an "
                "earlier step of it, or train again with a lower learning rate.",
                encoder=key,
                rows=tuple(bad),
            )


def _find_zeros(specimen: Specimen) -> Iterable[Finding]:
    empty = {}
    for key, block in specimen.embedding.vectors.items():
        rows = [i for i, length in enumerate(specimen.lengths[key]) if length == 0 and not block[i].any()]
        if rows:
            empty[key] = rows
    if not empty:
        return
    whole = [k for k, rows in empty.items() if len(rows) == specimen.embedding.vectors[k].shape[0]]
    if len(whole) == len(specimen.embedding.vectors):
        message = "All vectors are zero: it was created but never trained, and does nothing useful."
        yield Finding(code="zeros", severity="warning", message=message)
        return
    for key, rows in empty.items():
        what = "is all zero" if key in whole else f"is zero in row {_rows(rows)}"
        message = f"{key} {what}: {ENCODERS[key].title} gets nothing from it there."
        yield Finding(code="zeros", severity="warning", message=message, encoder=key, rows=tuple(rows))


def _find_overflow(specimen: Specimen) -> Iterable[Finding]:
    for key, block in specimen.embedding.vectors.items():
        if max(specimen.lengths[key], default=0.0) < FP16_MAX:  # then no single number is larger
            continue
        peak = float(block.abs().max())
        if FP16_MAX <= peak < float("inf"):
            yield Finding(
                code="fp16-overflow",
                severity="warning",
                message=f"{key} holds numbers up to {peak:.4g}; half precision ends at {FP16_MAX:.0f}, so pictures may "
                "come out black. The training overflowed; use an earlier step of it.",
                encoder=key,
            )


def _find_length(specimen: Specimen) -> Iterable[Finding]:
    for key, lengths in specimen.lengths.items():
        typical = ENCODERS[key].typical_norm
        if typical is None or not lengths:
            continue
        mean = sum(lengths) / len(lengths)
        if LONG * typical < mean < math.inf:
            yield Finding(
                code="length",
                severity="note",
                message=f"The {key} vectors are {mean:.3g} long on average, {mean / typical:.0f} times as long as "
                "those of everyday words. Many good embeddings are; a weight such as (name:0.7) softens the effect.",
                encoder=key,
            )


def _find_untrained(specimen: Specimen) -> Iterable[Finding]:
    if specimen.target.vocabulary is None:
        return
    for key, block in specimen.embedding.vectors.items():
        table = specimen.target.vocabulary.tables.get(key)
        rows = [] if table is None else _vocabulary_rows(block, table)
        if rows and len(rows) == block.shape[0]:
            yield Finding(
                code="vocabulary-rows",
                severity="warning",
                message=f"Every {key} vector equals a word of the model's vocabulary (ids {_ids(rows)}); it may never "
                "have been trained.",
                encoder=key,
            )


def _vocabulary_rows(block: Tensor, table: Tensor) -> list[int]:
    """Ids of the token rows that rows of the block equal (to float16 rounding)."""
    table = table.float()
    distance = torch.cdist(block, table)
    nearest, ids = distance.min(dim=1)
    equal = nearest <= 2e-3 * torch.linalg.vector_norm(block, dim=1)
    return [int(i) for i, same in zip(ids, equal, strict=True) if same]


def _rows(rows: list[int]) -> str:
    shown = ", ".join(str(row + 1) for row in rows[:8])
    return f"{shown} and {len(rows) - 8} more" if len(rows) > 8 else shown


def _ids(ids: list[int]) -> str:
    return ", ".join(map(str, ids[:6])) + (" …" if len(ids) > 6 else "")


DEFECTS = (
    Defect(code="empty-half", find=_find_empty_half, fix=_drop_empty_half),
    Defect(code="uneven-rows", find=_find_uneven, fix=_pad_rows),
    Defect(code="too-many-vectors", find=_find_too_many),
    Defect(code="not-finite", find=_find_not_finite),
    Defect(code="zeros", find=_find_zeros),
    Defect(code="fp16-overflow", find=_find_overflow),
    Defect(code="length", find=_find_length),
    Defect(code="vocabulary-rows", find=_find_untrained),
)
