"""Checks of the encoders: ids in their configs, where the pooled state is read, positions, layer, chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ti_fix.align.check import Check, Outcome
from ti_fix.embedding import SDXL, SDXL_REFINER, VOCABULARY_SIZE, EncoderSpec, Severity
from ti_fix.text_model import Change, TextEncoder, TextModel

LEGACY_EOS = 2
"""With this ``eos_token_id`` transformers pools at the highest id (its issue 24777), which is EOS or an added token."""

_OTHER_WORD = 1125  # any word that is not in the probe

_ID_FIELDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def _config_ids(check: Check, model: TextModel) -> Iterator[Outcome]:
    for encoder in model.encoders:
        spec = encoder.spec
        told = {f: encoder.config[f] for f in _ID_FIELDS if f in encoder.config}
        if not told or spec.bos_id is None:
            continue
        right = _right_ids(spec)
        expected, found = _ids_text(right), _ids_text(told)
        # an encoder reads only eos_token_id; pad 1 is transformers' default and does no harm
        wrong = [f for f, value in told.items() if value != right[f] and not (f == "pad_token_id" and value == 1)]
        legacy = told.get("eos_token_id") == LEGACY_EOS
        if not wrong:
            yield check.good(expected, found, encoder)
            continue
        changes = [Change(part="config", place=encoder.place, make=_with_right_ids)]
        if legacy:
            severity, message = _legacy_message(encoder)
        elif "eos_token_id" in wrong:
            severity = "error"
            message = (
                f"The config of {spec.title} names {told['eos_token_id']} as end token; the pooled text is read at the "
                f"first place of that id, or at the start. It is to be {spec.eos_id}."
            )
        else:
            severity, message = "note", "The config's ids differ from the tokenizer's; the encoder does not read them."
        yield check.bad(severity, expected, found, message, encoder, changes)


def _right_ids(spec: EncoderSpec) -> dict[str, int | None]:
    return {"bos_token_id": spec.bos_id, "eos_token_id": spec.eos_id, "pad_token_id": spec.pad_id}


def _with_right_ids(encoder: TextEncoder) -> Mapping[str, Any]:
    return {**encoder.config, **_right_ids(encoder.spec)}


def _ids_text(ids: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.partition('_')[0]} {value}" for name, value in ids.items())


def _legacy_message(encoder: TextEncoder) -> tuple[Severity, str]:
    usual = (
        f"The config of {encoder.spec.title} has the ids it was published with, which no tokenizer uses; the end token "
        f"is {encoder.spec.eos_id}."
    )
    if _has_high_ids(encoder):
        return "error", (
            f"{usual} With added tokens the pooled text is then read at the added token: everything behind it is lost. "
            "The config is to be corrected."
        )
    return "note", f"{usual} Harmless as long as no token is added; the config can be corrected."


def _has_high_ids(encoder: TextEncoder) -> bool:
    return encoder.table.shape[0] > VOCABULARY_SIZE or any(i >= VOCABULARY_SIZE for i in encoder.added.values())


def _pooled(check: Check, model: TextModel) -> Iterator[Outcome]:
    """Measured where the encoder can be run: which is the last position that the pooled state depends on?"""
    for encoder in model.encoders:
        if encoder.encode is None or encoder.spec.eos_id is None:
            continue
        ids = _probe(encoder)
        end = ids.index(encoder.spec.eos_id)
        read = _pooled_position(encoder, ids)
        if read is None:
            continue
        expected, found = f"position {end}, the first end token", f"position {read}"
        if read == end:
            yield check.good(expected, expected, encoder)
            continue
        message = (
            f"{encoder.spec.title}: the pooled text of a probe is read at position {read} instead of {end}. What "
            "stands behind that position in a prompt has no part in it. The config's end token is to be corrected."
        )
        change = Change(part="config", place=encoder.place, make=_with_right_ids)
        yield check.bad("error", expected, found, message, encoder, [change])


def _probe(encoder: TextEncoder) -> list[int]:
    """Start, a word, the highest id that the table has, three words, end, padding."""
    spec = encoder.spec
    rows = encoder.table.shape[0]
    placeholder = rows - 1 if rows > VOCABULARY_SIZE else 0  # the hosts put id 0 under an embedding
    text = [spec.bos_id or 0, 320, placeholder, 539, 550, 2368, spec.eos_id or 0]
    return text + [spec.pad_id or 0] * (spec.max_length - len(text))


def _pooled_position(encoder: TextEncoder, ids: list[int]) -> int | None:
    """The last position whose token has a part in the pooled state; None where there is no pooled state.

    The encoder is causal: the token at a position matters exactly if the state is read there or further back.
    """
    assert encoder.encode is not None and encoder.spec.eos_id is not None
    end = ids.index(encoder.spec.eos_id)
    places = [*range(1, end), len(ids) - 1]
    rows = [ids, *([*ids[:p], _OTHER_WORD, *ids[p + 1 :]] for p in places), _later_end(ids, end)]
    with torch.no_grad():
        _, pooled = encoder.encode(torch.tensor(rows))
    if pooled is None or not torch.isfinite(pooled).all():  # ill rows of the table are another check's matter
        return None
    moved = [_differ(pooled[0], row) for row in pooled[1:]]
    last = max((p for p, matters in zip(places, moved, strict=False) if matters), default=0)
    # one more word before the end token moves what is read at the end token, and nothing that is read before it
    return end if last == end - 1 and moved[-1] else last


def _differ(one: Tensor, other: Tensor) -> bool:
    return bool(torch.linalg.vector_norm(one - other) > 1e-3 * torch.linalg.vector_norm(one))


def _later_end(ids: list[int], end: int) -> list[int]:
    return [*ids[:end], _OTHER_WORD, ids[end], *ids[end + 2 :]]


def _positions(check: Check, model: TextModel) -> Iterator[Outcome]:
    for encoder in model.encoders:
        stored = encoder.position_ids
        if stored is None:
            continue
        found = stored.flatten().to(torch.float64)
        right = torch.arange(len(found), dtype=torch.float64)
        expected = f"0 to {encoder.spec.max_length - 1}"
        whole = found.trunc()
        if torch.equal(found, right) and len(found) == encoder.spec.max_length:
            yield check.good(expected, expected, encoder)
            continue
        off = (found != right).nonzero().flatten()
        seen = ", ".join(f"{i}: {found[i]:g}" for i in off[:3].tolist())
        lost = int((whole != right).sum())
        message = (
            f"{encoder.spec.title}: {len(off)} of {len(found)} position ids are off ({seen}), as merging in half "
            f"precision leaves them; read as whole numbers, {lost} tokens of a prompt take another one's place. They "
            "are to be counted again from 0."
        )
        change = Change(part="position_ids", place=encoder.place, make=_counted)
        yield check.bad(
            "error" if lost else "warning", expected, f"{len(off)} off ({seen})", message, encoder, [change]
        )


def _counted(encoder: TextEncoder) -> Tensor:
    """0, 1, 2 … in the shape of the stored ones."""
    assert encoder.position_ids is not None
    length = encoder.spec.max_length
    shape = (*encoder.position_ids.shape[:-1], length)
    return torch.arange(length, device=encoder.position_ids.device).expand(shape).clone()


def _layer(check: Check, model: TextModel) -> Iterator[Outcome]:
    """Clip skip: which layer the host reads."""
    sdxl = model.family in (SDXL, SDXL_REFINER)
    for encoder in model.encoders:
        if encoder.layer is None:
            continue
        expected = "the last but one, without norm" if sdxl else "the last, with norm (1 or 2)"
        norm = {None: "", True: ", with norm", False: ", without norm"}[encoder.final_norm]
        found = f"layer {encoder.layer} from the end{norm}"
        right = encoder.layer == 2 and not encoder.final_norm if sdxl else encoder.layer in (1, 2)
        right = right and (sdxl or encoder.final_norm is not False)
        if right:
            yield check.good(expected, found, encoder)
        else:
            message = (
                f"{encoder.spec.title} is read at {found}; {model.family.title} was trained with {expected}. Set clip "
                "skip back, and train with what you make pictures with."
            )
            yield check.bad("warning", expected, found, message, encoder)


def _chunks(check: Check, model: TextModel) -> Iterator[Outcome]:
    """A prompt of 80 words through the host's own splitting."""
    if model.chunks is None:
        return
    split = {key: [list(ids) for ids in lists] for key, lists in model.chunks("word " * 80).items()}
    expected = "2 chunks of 77 ids for 80 words"
    for encoder in model.encoders:
        lists = split.get(encoder.spec.key)
        if lists is None or encoder.tokenizer is None:
            continue
        words = sum(ids.count(encoder.tokenizer.encode("word")[0]) for ids in lists)
        sizes = sorted({len(ids) for ids in lists})
        found = f"{len(lists)} chunk{'s' * (len(lists) != 1)} of {' or '.join(map(str, sizes))} ids, {words} words"
        if len(lists) == 2 and sizes == [encoder.spec.max_length] and words == 80:
            yield check.good(expected, found, encoder)
        elif sizes == [encoder.spec.max_length]:
            message = (
                f"Of 80 words {words} reach {encoder.spec.title}; what is longer than 75 tokens is cut off here. The "
                "WebUIs go on in further chunks."
            )
            yield check.bad("note", expected, found, message, encoder)
        else:
            message = (
                f"{encoder.spec.title} gets lists of {sizes} ids; every chunk must have {encoder.spec.max_length}."
            )
            yield check.bad("error", expected, found, message, encoder)


ENCODER_CHECKS = (
    Check(code="config-ids", title="Token ids in the encoder's config", run=_config_ids),
    Check(code="pooled-position", title="Where the pooled text is read", run=_pooled, costly=True),
    Check(code="position-ids", title="Position ids", run=_positions),
    Check(code="layer", title="The layer that is read (clip skip)", run=_layer),
    Check(code="chunks", title="Long prompts", run=_chunks, once=True),
)
