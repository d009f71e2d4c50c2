"""A text encoder in memory, handed in as the objects of transformers (or alike); nothing of transformers is imported.

Fits diffusers' pipelines, the encoders of Forge and A1111's CLIP-L; `text_models` adds what the WebUIs do around them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ti_fix.embedding import EncoderSpec
from ti_fix.hosts.borrow import alias
from ti_fix.text_model import Part, TextEncoder, TextTokenizer, TokenTable

_LARGEST = 100_000
_CONFIG_FIELDS = ("bos_token_id", "eos_token_id", "pad_token_id", "vocab_size")


def encoder_of(
    place: str,
    spec: EncoderSpec,
    module: Any,
    tokenizer: TextTokenizer | None = None,
    *,
    layer: int | None = None,
    final_norm: bool | None = None,
    set_tokenizer: Callable[[TextTokenizer], None] | None = None,
) -> TextEncoder:
    """What there is to know of a ``CLIPTextModel`` or ``CLIPTextModelWithProjection``.

    Args:
        place: where it lies.
        spec: which encoder it should be.
        module: the module.
        tokenizer: `tokenizer_of` the one that the host uses with it.
        layer: which layer from the end the host reads.
        final_norm: whether the host applies the final layer norm to that.
        set_tokenizer: makes the host use this one; None where it cannot be changed.
    """
    text = getattr(module, "text_model", module)
    embedding = text.embeddings.token_embedding
    embedding = getattr(embedding, "wrapped", embedding)  # A1111 puts its hook around the table
    settings = getattr(module, "config", None)
    config = {f: getattr(settings, f) for f in _CONFIG_FIELDS if hasattr(settings, f)}
    if hasattr(text, "eos_token_id"):  # copied from the config when the module was made, and the one that is used
        config["eos_token_id"] = text.eos_token_id
    write: dict[Part, Callable[[Any], None]] = {
        "config": lambda value: _write_config(module, text, value),
        "table": lambda table: write_table(embedding, table),
    }
    positions = getattr(text.embeddings, "position_ids", None)
    if positions is not None:
        write["position_ids"] = lambda value: setattr(text.embeddings, "position_ids", value)
    if set_tokenizer is not None:
        write["tokenizer"] = set_tokenizer
    return TextEncoder(
        place=place,
        spec=spec,
        table=living_table(embedding),
        position_ids=positions,
        config=config,
        tokenizer=tokenizer,
        encode=lambda ids: _encode(module, ids.to(embedding.weight.device)),
        layer=layer,
        final_norm=final_norm,
        inject=lambda vectors: injected(embedding, vectors),
        write=write,
    )


@contextmanager
def injected(embedding: nn.Module, vectors: Mapping[int, Tensor]) -> Iterator[None]:
    """While open, a token table's output holds the vectors; the ids beneath them do not matter.

    Args:
        embedding: the module of the table.
        vectors: position -> vector (width).
    """

    def put(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        output = output.clone()
        for position, vector in vectors.items():
            output[:, position] = vector.to(output)
        return output

    handle = embedding.register_forward_hook(put)
    try:
        yield
    finally:
        handle.remove()


def _encode(module: Any, ids: Tensor) -> tuple[Tensor, Tensor | None]:
    states = module(input_ids=ids)
    pooled = getattr(states, "text_embeds", None)
    return states.last_hidden_state, states.pooler_output if pooled is None else pooled


def _write_config(module: Any, text: Any, value: Mapping[str, Any]) -> None:
    settings = getattr(module, "config", None)
    for name in _CONFIG_FIELDS:
        if name in value and settings is not None:
            setattr(settings, name, value[name])
    if hasattr(text, "eos_token_id"):
        text.eos_token_id = value["eos_token_id"]


def living_table(embedding: nn.Module) -> TokenTable:
    """The table of a loaded model; read through an ordinary tensor, since those of some hosts cannot even be sliced."""
    weight = embedding.weight
    assert isinstance(weight, Tensor)
    return replace(TokenTable.of(alias(weight)), living=weight)


def write_table(embedding: nn.Module, table: TokenTable) -> None:
    """Another parameter in the place of the table; the former one, handed back, is the very same object again."""
    weight = table.read() if table.living is None else table.living
    if not isinstance(weight, nn.Parameter):
        old = embedding.weight
        assert isinstance(old, Tensor)
        with torch.inference_mode(False):
            fresh = weight.detach().to(old.device, old.dtype)
            weight = nn.Parameter(fresh.clone() if fresh.is_inference() else fresh, requires_grad=old.requires_grad)
    embedding.weight = weight


def tokenizer_of(tokenizer: Any, twin: Any = None) -> TextTokenizer:
    """What there is to know of a ``CLIPTokenizer``, slow or fast.

    Args:
        tokenizer: the one in use.
        twin: the other implementation, if it is in use too.
    """
    added = {t: i for t, i in tokenizer.get_added_vocab().items() if i >= tokenizer.vocab_size}
    length = tokenizer.model_max_length
    bounded = isinstance(length, int) and length < _LARGEST
    return TextTokenizer(
        encode=_plain(tokenizer),
        pack=(lambda text: list(tokenizer(text, padding="max_length", truncation=True)["input_ids"]))
        if bounded and tokenizer.pad_token_id is not None
        else None,
        twin=_plain(twin) if twin is not None else None,
        tokens={t: i for t, i in tokenizer.get_vocab().items() if t not in added},
        merges=_merges(tokenizer),
        added=added,
        bos_id=tokenizer.bos_token_id,
        eos_id=tokenizer.eos_token_id,
        pad_id=tokenizer.pad_token_id,
        max_length=length if bounded else None,
        origin=type(tokenizer).__name__,
    )


def _plain(tokenizer: Any) -> Callable[[str], list[int]]:
    return lambda text: list(tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"])


def _merges(tokenizer: Any) -> tuple[tuple[str, str], ...] | None:
    """In order: a dictionary of ranks in the slow one, inside the back end of the fast one."""
    ranks = getattr(tokenizer, "bpe_ranks", None)
    if ranks is not None:
        return tuple(sorted(ranks, key=lambda pair: ranks[pair]))
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    merges = json.loads(backend.to_str())["model"]["merges"]
    return tuple((m[0], m[1]) if not isinstance(m, str) else (*m.split(" ", 1),) for m in merges)  # type: ignore[misc]
