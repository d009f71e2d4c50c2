"""The text side of the model that a WebUI holds, as a `TextModel`. Objects are told by what they can do.

A1111's encoders are wrappers with `wrapped` (CLIP-L: transformers in sgm's or ldm's embedder; bigG and H: open_clip),
Forge's are engines with `text_encoder` and `tokenizer`. Both cut prompts with `process_texts` and encode ids with
`encode_with_transformers`; what they really do is asked of these two.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ti_fix.embedding import BY_WIDTH, ENCODERS, SD2, SD15, SDXL, SDXL_REFINER, EncoderSpec, Family
from ti_fix.hosts.text_modules import encoder_of, injected, living_table, tokenizer_of, write_table
from ti_fix.text_model import TextEncoder, TextModel, TextTokenizer
from ti_fix.tokenizer import BOS, EOS

OPEN_CLIP_NAMES = {"<start_of_text>": BOS, "<end_of_text>": EOS}
"""What open_clip's tokenizer calls the special tokens."""

_facts: WeakKeyDictionary[Any, TextTokenizer] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a host knows beside its model.

    Attributes:
        clip_skip: its setting.
        skips_sdxl: whether the setting counts for SDXL's CLIP-L too.
        around: opened around each run of an encoder (precision, weights to the device).
        device: where ids go; None: where the token table is.
    """

    clip_skip: int = 1
    skips_sdxl: bool = False
    around: Callable[[], AbstractContextManager[Any]] = field(default=nullcontext)
    device: torch.device | None = None


def text_model_of(
    model: Any, surroundings: Surroundings | None = None, family: Family | None = None
) -> TextModel | None:
    """The text side of a WebUI's model; None for one without CLIP text encoders, or none at all.

    Args:
        model: A1111's or Forge's, hijacked as for generation.
        surroundings: of the host.
        family: where the encoders alone do not tell it (SD3, Flux).
    """
    about = surroundings or Surroundings()
    members = {place: member for place, member in _members(model) if _spec_of(member) is not None}
    encoders = tuple(_encoder(place, member, about) for place, member in members.items())
    keys = frozenset(e.spec.key for e in encoders)
    family = family or {f.keys: f for f in (SD15, SD2, SDXL, SDXL_REFINER)}.get(keys)
    if family is None:
        return None
    file = getattr(getattr(model, "sd_checkpoint_info", None), "filename", "") or getattr(model, "filename", "")

    def chunks(prompt: str) -> dict[str, list[list[int]]]:
        cut = {_key(member): (member, member.process_texts([prompt])[0][0]) for member in members.values()}
        return {key: [_ids(member, chunk.tokens) for chunk in made] for key, (member, made) in cut.items()}

    return TextModel(name=Path(str(file)).name or "loaded model", family=family, encoders=encoders, chunks=chunks)


def _members(model: Any) -> Iterator[tuple[str, Any]]:
    """Where each object that cuts and encodes prompts lies, and the object."""
    stage = getattr(model, "cond_stage_model", None)
    inside = getattr(stage, "embedders", None)
    if inside is not None:
        found = [(f"conditioner.embedders.{i}", each) for i, each in enumerate(inside)]
    elif stage is not None:
        found = [("cond_stage_model", stage)]
    else:
        found = [(name, each) for name, each in getattr(model, "__dict__", {}).items() if hasattr(each, "embeddings")]
    yield from ((place, each) for place, each in found if hasattr(each, "process_texts") and _inner(each) is not None)


def _inner(member: Any) -> Any:
    """The object that holds the encoder: sgm's, ldm's or Forge's own."""
    return getattr(member, "wrapped", None) or getattr(member, "text_encoder", None)


def _table_module(member: Any) -> Any:
    """The module of the token table, below the wrapper that splices embeddings in."""
    inner = _inner(member)
    transformer = getattr(inner, "transformer", None)
    table = (
        getattr(getattr(inner, "model", None), "token_embedding", None)
        if transformer is None
        else transformer.text_model.embeddings.token_embedding
    )
    return getattr(table, "wrapped", table)


def _spec_of(member: Any) -> EncoderSpec | None:
    told = ENCODERS.get(getattr(member, "embedding_key", ""))
    weight = getattr(_table_module(member), "weight", None)
    return told or (BY_WIDTH.get(weight.shape[1]) if isinstance(weight, Tensor) and weight.ndim == 2 else None)


def _key(member: Any) -> str:
    spec = _spec_of(member)
    return spec.key if spec else ""


def _encoder(place: str, member: Any, about: Surroundings) -> TextEncoder:
    spec, inner, table = _spec_of(member), _inner(member), _table_module(member)
    assert spec is not None
    layer, norm = _layer(place, member, about)
    tokenizer = _tokenizer(member)
    module = getattr(inner, "transformer", None)
    if module is None:
        encoder = TextEncoder(
            place=place,
            spec=spec,
            table=living_table(table),
            tokenizer=tokenizer,
            layer=layer,
            final_norm=norm,
            inject=lambda vectors: injected(table, vectors),
            write={"table": lambda value: write_table(table, value)},
        )
    else:
        encoder = encoder_of(place, spec, module, tokenizer, layer=layer, final_norm=norm)
    write = dict(encoder.write)
    if hasattr(member, "wrapped"):  # there the names of embeddings are tokenized by `tokenize` too
        write["tokenizer"] = lambda value: _rebind(member, value, tokenizer)
    return replace(encoder, encode=lambda ids: _encoded(member, ids, about), write=write)


def _layer(place: str, member: Any, about: Surroundings) -> tuple[int | None, bool | None]:
    """Which layer from the end the host reads, and whether through the final norm."""
    inner = _inner(member)
    if hasattr(member, "minimal_clip_skip"):
        return max(member.clip_skip, member.minimal_clip_skip), bool(member.final_layer_norm)
    transformer = getattr(inner, "transformer", None)
    if transformer is None:
        return {"last": 1, "penultimate": 2}.get(getattr(inner, "layer", "")), bool(getattr(inner, "legacy", True))
    if not place.startswith("conditioner."):
        return about.clip_skip, True
    if about.skips_sdxl:
        return about.clip_skip, False
    index = getattr(inner, "layer_idx", None)
    if getattr(inner, "layer", "last") == "last" or index is None:
        return 1, True
    layers = getattr(getattr(transformer, "config", None), "num_hidden_layers", 0)
    return (-index if index < 0 else layers + 1 - index), False


def _tokenizer(member: Any) -> TextTokenizer:
    """The tokenizer with the special ids and the length that the host works with."""
    known = _published_facts(member)
    length = member.chunk_length + 2

    def pack(text: str) -> list[int]:
        ids = known.encode(text)[: member.chunk_length]
        return [member.id_start, *ids, member.id_end, *[member.id_pad] * (length - len(ids) - 2)]

    return replace(
        known,
        pack=pack,
        bos_id=member.id_start,
        eos_id=member.id_end,
        pad_id=member.id_pad,
        max_length=length,
    )


def _published_facts(member: Any) -> TextTokenizer:
    """Vocabulary and merges, listed once for each tokenizer object."""
    own = getattr(_inner(member), "tokenizer", None) or getattr(member, "tokenizer", None)
    if own is None:  # open_clip's is a global of the module that wraps the encoder
        found = getattr(sys.modules.get(type(member).__module__), "tokenizer", None)
        own = found if hasattr(found, "bpe_ranks") and hasattr(found, "encoder") else None
    tokenize = type(member).tokenize

    def encode(text: str) -> list[int]:
        return list(tokenize(member, [text])[0])

    if own is None:
        return TextTokenizer(encode=encode, origin=type(member).__name__)
    if own not in _facts:
        facts = tokenizer_of(own) if hasattr(own, "get_vocab") else _open_clip_facts(own)
        _facts[own] = replace(facts, encode=_by_member, pack=None)  # its own functions would keep it alive
    return replace(_facts[own], encode=encode)


def _by_member(text: str) -> list[int]:
    raise AssertionError(f"{text!r}: what is kept of a tokenizer encodes nothing, the member does")


def _open_clip_facts(own: Any) -> TextTokenizer:
    ranks: Mapping[tuple[str, str], int] = own.bpe_ranks
    return TextTokenizer(
        encode=_by_member,
        tokens={OPEN_CLIP_NAMES.get(token, token): i for token, i in own.encoder.items()},
        merges=tuple(sorted(ranks, key=lambda pair: ranks[pair])),
        origin="open_clip",
    )


def _ids(member: Any, tokens: list[int]) -> list[int]:
    """A chunk's ids as they reach the encoder: padding behind the first end token."""
    end = tokens.index(member.id_end) + 1
    return [*tokens[:end], *[member.id_pad] * (len(tokens) - end)]


def _encoded(member: Any, ids: Tensor, about: Surroundings) -> tuple[Tensor, Tensor | None]:
    for holder in (getattr(member, "hijack", None), getattr(member, "embeddings", None)):
        if holder is not None and hasattr(holder, "fixes"):
            holder.fixes = None  # left over where a generation failed
    with torch.no_grad(), about.around():
        hidden = member.encode_with_transformers(ids.to(about.device or _table_module(member).weight.device))
    pooled = getattr(hidden, "pooled", None)
    return _ordinary(hidden), None if pooled is None else _ordinary(pooled)


def _ordinary(tensor: Tensor) -> Tensor:
    """The same numbers outside inference mode, if the host has computed them inside it."""
    return tensor.clone() if tensor.is_inference() else tensor


def _rebind(member: Any, value: TextTokenizer, own: TextTokenizer) -> None:
    """Make the host encode with another tokenizer; its own, handed back, undoes that."""
    names = {"id_start": value.bos_id, "id_end": value.eos_id, "id_pad": value.pad_id}
    for name, number in names.items():
        setattr(member, name, number)
    if value is own:
        vars(member).pop("tokenize", None)
    else:
        vars(member)["tokenize"] = lambda texts: [value.encode(text) for text in texts]
