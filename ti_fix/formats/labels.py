"""The names that trainers give to the halves of an embedding, to wrappers around it and to what lies beside it."""

from __future__ import annotations

import re

from ti_fix.embedding import CLIP_G, CLIP_H, CLIP_L, T5_XXL

_HALVES: dict[str, str] = {
    **dict.fromkeys(
        "clip_l clipl l te1 te_1 text_encoder text_encoder_1 text_encoders_0 text_encoder_l emb_l embedding_l vit_l "
        "clip_vit_l clip_l_vectors embedders_0 conditioner_embedders_0 lora_te1 openai clip".split(),
        CLIP_L.key,
    ),
    **dict.fromkeys(
        "clip_g clipg g te2 te_2 text_encoder_2 text_encoders_1 text_encoder_g emb_g embedding_g bigg big_g vit_bigg "
        "clip_vit_bigg clip_g_vectors embedders_1 conditioner_embedders_1 lora_te2 openclip open_clip laion".split(),
        CLIP_G.key,
    ),
    **dict.fromkeys("clip_h cliph h vit_h emb_h".split(), CLIP_H.key),
    **dict.fromkeys("t5 t5xxl t5_xxl te3 te_3 text_encoder_3 text_encoders_2 t5_xxl_vectors".split(), T5_XXL.key),
}
"""Label in lower case with `_` for every separator -> encoder key."""

_LONGEST = 2 * max(map(len, _HALVES))

_OUTPUT = re.compile(r"(.+)[_.\-]out(put)?$", re.IGNORECASE)

WRAPPERS = frozenset(
    "string_to_param state_dict embedding embeddings data params parameters model module weights weight learned_embeds "
    "emb ti textual_inversion tokens token vectors vec embed emb_params networks ema".split()
)
"""Keys that only wrap; they name no concept."""

GENERIC = frozenset(
    "* emb_params embedding embeddings emb weight weights vectors vec data params value tensor learned_embeds".split()
)
"""Keys of a lone tensor that name no placeholder."""

EXTRAS = re.compile(
    r"optim|exp_avg|momentum|scheduler|string_to_token|grad_scaler|random_state|rng|loss|(^|[._])(step|epoch|alpha)$",
    re.IGNORECASE,
)
"""Keys of what trainers store beside the vectors."""


def half(name: str) -> str | None:
    """The encoder key that a label stands for, None where it is no label of a half."""
    if len(name) > _LONGEST:
        return None
    return _HALVES.get(re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_"))


def output_half(name: str) -> str | None:
    """The encoder key of an *output* embedding (vectors added behind the encoder), None for other names."""
    found = _OUTPUT.match(name)
    return half(found.group(1)) if found else None


def numbered(name: str) -> tuple[str, int]:
    """A key without its number, and the number: ``<cat>_2`` -> (``<cat>``, 2), ``<s1>`` -> (``<s>``, 1)."""
    close = ">" if name.endswith(">") else ""
    body = name.removesuffix(">")
    stem = body.rstrip("0123456789")
    digits = body[len(stem) :]
    base = stem[:-1] if stem.endswith(("_", "-")) else stem
    if not digits or not base.strip("<"):
        return name, 0
    return base + close, int(digits[:9])


def placeholder(name: str) -> str:
    """The token that a key stands for without its angle brackets, empty for a key that says nothing."""
    bare = name.strip().strip("<>").strip()
    return "" if bare.lower() in GENERIC or half(name) else bare
