"""Files of tensors that are no embeddings: what each is, and the folder that it belongs in."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ti_fix.embedding import Finding
from ti_fix.errors import quoted

BUNDLE = "bundle_emb."
"""Prefix under which a LoRA carries embeddings (OneTrainer, A1111 1.6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of foreign file.

    Attributes:
        pattern: found in the joined path of at least `least` tensors.
        what: its name in words.
        folder: where it belongs.
    """

    pattern: re.Pattern[str]
    what: str
    folder: str
    least: int = 1


def _kind(pattern: str, what: str, folder: str, least: int = 1) -> Kind:
    return Kind(pattern=re.compile(pattern), what=what, folder=folder, least=least)


KINDS = (
    _kind(
        r"lora_(unet|te|te1|te2|te3|prior)?_|\.lora_(down|up|mid|A|B|linear_layer)\b|lora[._](down|up)\."
        r"|\.(hada_w[12]|lokr_w[12]|oft_blocks|oft_diag|dora_scale|diff_b)",
        "a LoRA (or LyCORIS)",
        "models/Lora",
    ),
    _kind(
        r"^(model\.diffusion_model|cond_stage_model|conditioner\.embedders)\.",
        "a checkpoint",
        "models/Stable-diffusion",
    ),
    _kind(
        r"(^|\.)(control_model|controlnet_\w+|input_hint_block|t2i_adapter)\b",
        "a ControlNet model",
        "models/ControlNet",
    ),
    _kind(r"(^|\.)(image_proj|ip_adapter)\.", "an IP-Adapter", "models/ControlNet"),
    _kind(r"^(first_stage_model\.)?(encoder|decoder)\.(conv_in|down|up|mid)", "a VAE", "models/VAE"),
    _kind(
        r"(^|\.)(down_blocks|up_blocks|input_blocks|output_blocks|double_blocks)\.\d",
        "a UNet",
        "models/Stable-diffusion",
    ),
    _kind(
        r"text_model\.(encoder|final_layer_norm)|transformer\.resblocks\.|encoder\.layers?\.\d+\.self_attn"
        r"|encoder\.block\.\d+\.layer|(token_embedding|embed_tokens|position_embedding)\.weight$|^text_projection",
        "text-encoder weights",
        "models/text_encoder",
    ),
    _kind(r"^\d+(\.\d+)+\.linear", "a hypernetwork", "models/hypernetworks"),
    _kind(r"(^|\.)(body|model|RRDB_trunk|conv_first)\.\d+\.", "an upscaler", "models/ESRGAN", least=4),
)


def recognise(paths: list[str]) -> Finding | None:
    """Say what a file is by the keys of its tensors.

    Args:
        paths: dotted path of each tensor.
    """
    bundled = bundled_names(paths)
    for kind in KINDS:
        if sum(1 for path in paths if not path.startswith(BUNDLE) and kind.pattern.search(path)) >= kind.least:
            return Finding(code=_code(kind, bundled), severity="error", message=_message(kind, bundled))
    return None


def bundled_names(paths: list[str]) -> list[str]:
    """Names of the embeddings that a LoRA carries, in the file's order."""
    return list(dict.fromkeys(bundle_key(path)[0] for path in paths if path.startswith(BUNDLE)))


def bundle_key(path: str) -> tuple[str, str]:
    """``bundle_emb.NAME.KEY`` -> (NAME, KEY); the name may hold dots."""
    inner = path[len(BUNDLE) :]
    for mark in (".string_to_param.", ".emb_params", ".clip_"):
        if mark in inner:
            cut = inner.rindex(mark)
            return inner[:cut], inner[cut + 1 :].removeprefix("string_to_param.")
    name, _, key = inner.rpartition(".")
    return (name, key) if name else (inner, "*")


def _code(kind: Kind, bundled: list[str]) -> str:
    if bundled:
        return "lora-with-embeddings"
    return "lora" if "LoRA" in kind.what else "foreign-file"


def _message(kind: Kind, bundled: list[str]) -> str:
    if bundled:
        names = ", ".join(map(quoted, bundled[:5]))
        return (
            f"It is {kind.what} that carries {'an embedding' if len(bundled) == 1 else 'embeddings'} ({names}); put it "
            f"into {kind.folder} and, to have the embedding alone, take it out (Take the embeddings out on the Files "
            "page, or ti-fix repair --extract)."
        )
    return f"It is {kind.what}, not an embedding; move it to {kind.folder}."
