"""The tokenizer that was published with an encoder, to put in the place of one that departs from it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import torch

from ti_fix.align.text import clean_text
from ti_fix.embedding import EncoderSpec, Family
from ti_fix.text_model import Change, TextEncoder, TextModel, TextTokenizer, TokenTable
from ti_fix.tokenizer import BytePairs, published


def rebinding(encoder: TextEncoder) -> Change:
    """The change that gives an encoder its published tokenizer; added tokens that have a row stay."""
    return Change(part="tokenizer", place=encoder.place, make=_published_for)


def _published_for(encoder: TextEncoder) -> TextTokenizer:
    rows = encoder.table.shape[0]
    return published_tokenizer(encoder.spec, {t: i for t, i in encoder.added.items() if i < rows})


def published_tokenizer(spec: EncoderSpec, added: Mapping[str, int] | None = None) -> TextTokenizer:
    """The published tokenizer of an encoder; text is cleaned before it is encoded (`clean_text`).

    Args:
        spec: whose special tokens and length.
        added: tokens to know beside the published ones.
    """
    added = dict(added or {})
    plain = with_added(published().encode, added)
    return TextTokenizer(
        encode=lambda text: plain(clean_text(text)),
        pack=packer(lambda text: plain(clean_text(text)), spec.bos_id, spec.eos_id, spec.pad_id, spec.max_length),
        tokens=published().ids,
        merges=published_merges(),
        added=added,
        bos_id=spec.bos_id,
        eos_id=spec.eos_id,
        pad_id=spec.pad_id,
        max_length=spec.max_length,
        origin="published",
    )


def published_model(family: Family) -> TextModel:
    """The published tokenizers of a kind of model, and no weights."""
    nothing = {e.key: torch.empty(0, e.width) for e in family.encoders}
    return TextModel(
        name="published",
        family=family,
        encoders=tuple(
            TextEncoder(place=e.key, spec=e, table=TokenTable.of(nothing[e.key]), tokenizer=published_tokenizer(e))
            for e in family.encoders
        ),
    )


@lru_cache(maxsize=1)
def published_merges() -> tuple[tuple[str, str], ...]:
    """CLIP's merges in their order."""
    return tuple(published().ranks)


def pairs_of(tokens: Mapping[str, int], merges: Sequence[tuple[str, str]]) -> BytePairs:
    """What encodes by this vocabulary and these merges; the published one itself where they are the published ones."""
    if tokens == published().ids and tuple(merges) == published_merges():
        return published()
    by_id = sorted(tokens, key=lambda token: tokens[token])
    return BytePairs(ranks={pair: rank for rank, pair in enumerate(merges)}, ids=tokens, tokens=tuple(by_id))


def with_added(encode: Callable[[str], list[int]], added: Mapping[str, int]) -> Callable[[str], list[int]]:
    """An encoder of text that also knows whole tokens, the longest first, as transformers does."""
    if not added:
        return encode
    split = re.compile("(" + "|".join(re.escape(t) for t in sorted(added, key=len, reverse=True)) + ")")

    def encode_all(text: str) -> list[int]:
        parts = split.split(text)
        return [i for part in parts for i in ([added[part]] if part in added else encode(part))]

    return encode_all


def packer(
    encode: Callable[[str], list[int]], bos: int | None, eos: int | None, pad: int | None, length: int | None
) -> Callable[[str], list[int]]:
    """Text -> the ids that reach an encoder: start token, as much as fits, end token, padding.

    Args:
        encode: text -> ids.
        bos: start token; left out where None, like the next two.
        eos: end token.
        pad: what fills up.
        length: of the result; None neither cuts nor pads.
    """
    ends = [] if eos is None else [eos]

    def pack(text: str) -> list[int]:
        ids = [*([] if bos is None else [bos]), *encode(text)]
        if length is None:
            return ids + ends
        ids = ids[: length - len(ends)] + ends
        return ids + [pad] * (length - len(ids)) if pad is not None else ids

    return pack
