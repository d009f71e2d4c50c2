"""Do the checks see what they are made for? Every fault put into a healthy model must be named, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ti_fix.align.check import Check, Report, examine
from ti_fix.align.rebind import packer, pairs_of, published_merges, published_tokenizer
from ti_fix.embedding import CLIP_G, CLIP_L, SDXL, VOCABULARY_SIZE, EncoderSpec
from ti_fix.text_model import TextEncoder, TextModel, TokenTable
from ti_fix.tokenizer import encode, published

_TINY = 24
"""Numbers per row of the tables that come with the self-test; real ones would cost seconds and show no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One way to break a model.

    Attributes:
        name: what it is called in the table.
        code: the check that must name it.
        inject: the broken model, made from a healthy one.
    """

    name: str
    code: str
    inject: Callable[[TextModel], TextModel]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What became of one fault.

    Attributes:
        fault: its name.
        found: the check that is made for it named it, as a warning or an error.
        repaired: after the repair no check complains.
        by: codes of all checks that complained.
    """

    fault: str
    found: bool
    repaired: bool
    by: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"fault": self.fault, "found": self.found, "repaired": self.repaired, "named_by": list(self.by)}


def self_test(
    checks: Sequence[Check], healthy: Iterable[TextModel] | None = None, faults: Sequence[Fault] | None = None
) -> tuple[list[Tried], int]:
    """Break models in every way.

    Args:
        checks: to be tried.
        healthy: SDXL models that nothing is wrong with; two that are made here by default.
        faults: what to try; all of `FAULTS` by default.

    Returns:
        What became of each fault on the first model, and how often a check complained of a healthy one.
    """
    models = list(healthy) if healthy is not None else [healthy_model(), healthy_model(legacy_config=True)]
    tried = [_try(fault, models[0], checks) for fault in (FAULTS if faults is None else faults)]
    return tried, sum(len(complaints(examine(model, checks))) for model in models)


def _try(fault: Fault, model: TextModel, checks: Sequence[Check]) -> Tried:
    report = examine(fault.inject(model), checks)
    named = complaints(report)
    left = complaints(examine(report.after, checks))
    return Tried(fault=fault.name, found=fault.code in named, repaired=bool(report.changes) and not left, by=named)


def complaints(report: Report) -> tuple[str, ...]:
    """Codes of the checks that gave a warning or an error, each once."""
    return tuple(dict.fromkeys(o.code for o in report.outcomes if o.severity in ("warning", "error")))


@lru_cache(maxsize=4)
def healthy_model(*, legacy_config: bool = False, real_widths: bool = False) -> TextModel:
    """A sound SDXL text side with random tables.

    Args:
        legacy_config: with the ids 0, 2 and 1 that the published configs carry.
        real_widths: 768 and 1280 numbers a row.
    """
    return TextModel(
        name="self-test",
        family=SDXL,
        encoders=tuple(
            _healthy_encoder(place, spec, legacy_config=legacy_config, width=spec.width if real_widths else _TINY)
            for place, spec in (("text_encoder", CLIP_L), ("text_encoder_2", CLIP_G))
        ),
        texts=("a photo of a cat", "a dog, (best quality:1.2)"),
        chunks=_two_chunks,
    )


def _healthy_encoder(place: str, spec: EncoderSpec, *, legacy_config: bool, width: int) -> TextEncoder:
    ids = (0, 2, 1) if legacy_config else (spec.bos_id, spec.eos_id, spec.pad_id)
    random = torch.Generator().manual_seed(spec.width)
    table = torch.randn(VOCABULARY_SIZE, _TINY, generator=random).mul_((spec.typical_norm or 0.4) / width**0.5).half()
    if width > _TINY:
        table = torch.cat([table] * (width // _TINY + 1), dim=1)[:, :width]
    config = dict(zip(("bos_token_id", "eos_token_id", "pad_token_id"), ids, strict=True))
    return TextEncoder(
        place=place,
        spec=spec,
        table=TokenTable.of(table),
        position_ids=torch.arange(spec.max_length)[None],
        config={**config, "vocab_size": VOCABULARY_SIZE},
        tokenizer=published_tokenizer(spec),
        encode=pooling_encoder(table, int(ids[1] or 0)),
        layer=2,
        final_norm=False,
    )


def pooling_encoder(table: Tensor, eos: int) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """A causal encoder (running means of token rows) that pools by transformers' rule for this end token.

    Args:
        table: (rows, width).
        eos: of the config; with 2 the highest id is taken for the end.
    """

    def encode_ids(ids: Tensor) -> tuple[Tensor, Tensor]:
        rows = table[ids].float()
        hidden = rows.cumsum(dim=1) / torch.arange(1, ids.shape[1] + 1)[None, :, None]
        place = ids.argmax(dim=1) if eos == 2 else (ids == eos).int().argmax(dim=1)
        return hidden, hidden[torch.arange(len(ids)), place]

    return encode_ids


def _two_chunks(prompt: str) -> Mapping[str, Sequence[Sequence[int]]]:
    """The WebUIs' way with a long prompt that has no commas: 75 tokens a chunk."""
    ids = encode(prompt)
    parts = [ids[i : i + 75] for i in range(0, len(ids), 75)] or [[]]
    return {
        spec.key: [[49406, *part, 49407, *[spec.pad_id or 0] * (75 - len(part))] for part in parts]
        for spec in (CLIP_L, CLIP_G)
    }


def _with(model: TextModel, place: int, **fields: Any) -> TextModel:
    encoders = list(model.encoders)
    encoders[place] = replace(encoders[place], **fields)
    return replace(model, encoders=tuple(encoders))


def _on_tokenizer(place: int, **fields: Any) -> Callable[[TextModel], TextModel]:
    def inject(model: TextModel) -> TextModel:
        tokenizer = model.encoders[place].tokenizer or published_tokenizer(model.encoders[place].spec)
        changed = replace(tokenizer, **fields)
        pack = packer(changed.encode, changed.bos_id, changed.eos_id, changed.pad_id, changed.max_length)
        return _with(model, place, tokenizer=changed if "pack" in fields else replace(changed, pack=pack))

    return inject


def _without_end(model: TextModel) -> TextModel:
    spec = model.encoders[0].spec
    return _on_tokenizer(0, pack=packer(encode, spec.bos_id, None, spec.pad_id, spec.max_length))(model)


def _shuffled_merges(model: TextModel) -> TextModel:
    merges = list(published_merges())
    merges[1000:1400] = reversed(merges[1000:1400])
    merges[10], merges[20] = merges[20], merges[10]
    return _on_tokenizer(1, merges=tuple(merges), encode=pairs_of(published().ids, merges).encode)(model)


def _swapped_words(model: TextModel) -> TextModel:
    tokens = dict(published().ids)
    tokens["cat</w>"], tokens["dog</w>"] = tokens["dog</w>"], tokens["cat</w>"]
    return _on_tokenizer(0, tokens=tokens, encode=pairs_of(tokens, published_merges()).encode)(model)


def _resized(model: TextModel) -> TextModel:
    """One added token with a row of its own in both encoders, and the ids 0, 2 and 1 in the configs."""
    for place, encoder in enumerate(model.encoders):
        table = encoder.table.read()
        wider = TokenTable.of(torch.cat([table, table.mean(dim=0, keepdim=True)]))
        tokenizer = published_tokenizer(encoder.spec, {"<toy>": VOCABULARY_SIZE})
        config = {**encoder.config, "vocab_size": VOCABULARY_SIZE + 1}
        model = _with(model, place, table=wider, tokenizer=tokenizer, config=config, encode=None)
    return model


def _eos_2_with_added_token(model: TextModel) -> TextModel:
    resized = _resized(model)
    encoder = resized.encoders[1]
    return _with(
        resized,
        1,
        config={**encoder.config, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1},
        encode=pooling_encoder(encoder.table.read(), 2),
    )


def _rounded(model: TextModel) -> TextModel:
    """What a merge in half precision makes of them: 0.3 a + 0.7 b, cut to whole numbers."""
    ids = torch.arange(77, dtype=torch.float16)
    merged = ids * torch.tensor(0.3, dtype=torch.float16) + ids * torch.tensor(0.7, dtype=torch.float16)
    return _with(model, 0, position_ids=(merged - 0.02).clamp(min=0).long()[None])


def _swapped_encoders(_model: TextModel) -> TextModel:
    model = healthy_model(real_widths=True)
    left, right = model.encoders
    return replace(
        model,
        encoders=(replace(right, place=left.place, spec=left.spec), replace(left, place=right.place, spec=right.spec)),
    )


def _nan_row(model: TextModel) -> TextModel:
    table = model.encoders[1].table.read().clone()
    table[2368, 3] = float("nan")
    return _with(model, 1, table=TokenTable.of(table))


def _zero_width(model: TextModel) -> TextModel:
    return replace(model, texts=(*model.texts, "a photo of my\u200btoy", "\ufeffcat"))


def _mixed(model: TextModel) -> TextModel:
    """One tokenizer that cleans up the text like the slow one with ftfy, beside one that does not."""

    def slow(text: str) -> list[int]:
        return encode(text.replace("\u2019", "'").replace("&amp;", "&").replace("&lt;", "<").replace("\ufb01", "fi"))

    return _on_tokenizer(1, encode=slow)(model)


def _shared(model: TextModel) -> TextModel:
    return _with(model, 1, table=model.encoders[0].table)


FAULTS = (
    Fault(name="clip_l pad None", code="special-ids", inject=_on_tokenizer(0, pad_id=None)),
    Fault(name="clip_l pad 0", code="special-ids", inject=_on_tokenizer(0, pad_id=0)),
    Fault(name="clip_l pad 1", code="special-ids", inject=_on_tokenizer(0, pad_id=1)),
    Fault(name="clip_g pad None", code="special-ids", inject=_on_tokenizer(1, pad_id=None)),
    Fault(name="clip_g pad 1", code="special-ids", inject=_on_tokenizer(1, pad_id=1)),
    Fault(name="clip_g pad 49407", code="special-ids", inject=_on_tokenizer(1, pad_id=49407)),
    Fault(name="tokenizer eos 2", code="special-ids", inject=_on_tokenizer(0, eos_id=2)),
    Fault(name="config eos 2 with an added token", code="pooled-position", inject=_eos_2_with_added_token),
    Fault(name="max length 76", code="id-lists", inject=_on_tokenizer(0, max_length=76)),
    Fault(name="max length 256", code="id-lists", inject=_on_tokenizer(1, max_length=256)),
    Fault(name="no end token", code="id-lists", inject=_without_end),
    Fault(name="shuffled merges", code="merges", inject=_shuffled_merges),
    Fault(name="two words swapped", code="vocabulary", inject=_swapped_words),
    Fault(name="resized table", code="table-rows", inject=_resized),
    Fault(name="rounded position_ids", code="position-ids", inject=_rounded),
    Fault(name="swapped encoders", code="encoders", inject=_swapped_encoders),
    Fault(name="zero-width characters", code="text", inject=_zero_width),
    Fault(name="slow and fast tokenizer mixed", code="agreement", inject=_mixed),
    Fault(name="NaN row", code="table-values", inject=_nan_row),
    Fault(name="shared tables", code="shared-tables", inject=_shared),
)
