"""What is written into the header of a file beside the vectors, and what of a source's header travels with them.

Fields: Stability AI Model Metadata Standard 1.0 (https://github.com/Stability-AI/ModelSpec); architecture ids for
embeddings in the form that kohya's scripts and SwarmUI write, ``<base model>/textual-inversion``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ti_fix import __version__
from ti_fix.embedding import FLUX, SD2, SD3, SD15, SDXL, SDXL_REFINER, Family

SCHEMA = "1"
"""Version of the ``ti_fix.*`` fields."""

PRIVATE = "ti_fix.private."
"""Prefix of our own fields that do not travel unless asked: captions, picture hashes."""

MAX_VALUE = 256 * 1024
"""Characters of one value that travels; a thumbnail is the longest honest one."""

_BASES = {
    SD15.name: ("stable-diffusion-v1", "512x512"),
    SD2.name: ("stable-diffusion-v2-768-v", "768x768"),
    SDXL.name: ("stable-diffusion-xl-v1-base", "1024x1024"),
    SDXL_REFINER.name: ("stable-diffusion-xl-v1-refiner", "1024x1024"),
    SD3.name: ("stable-diffusion-v3-medium", "1024x1024"),
    FLUX.name: ("flux-1-dev", "1024x1024"),
}
_IMPLEMENTATION = "https://github.com/Stability-AI/generative-models"

_ABOUT = "author category date description license merged_from tags thumbnail title usage_hint version"
_TRAINING = (
    "adaptive_noise_scale base_model_version batch_size_per_device clip_skip epoch gradient_accumulation_steps "
    "huber_c huber_schedule ip_noise_gamma learning_rate loss_type lowram lr_scheduler lr_warmup_steps max_grad_norm "
    "max_token_length max_train_steps min_snr_gamma mixed_precision multires_noise_discount "
    "multires_noise_iterations new_sd_model_hash noise_offset num_batches_per_epoch num_epochs num_reg_images "
    "num_train_images optimizer prior_loss_weight resolution scale_weight_norms sd_model_hash sd_model_name "
    "sd_scripts_commit_hash seed steps text_encoder_lr total_batch_size training_started_at "
    "training_finished_at v2 v_parameterization vae_hash vae_name zero_terminal_snr"
)
_OTHERS = "copyright creator licence name step sd_checkpoint sd_checkpoint_name ot_branch ot_revision"
TRAVELS = frozenset(
    {
        *_ABOUT.split(),
        *(f"modelspec.{key}" for key in (*_ABOUT.split(), "prediction_type", "timestep_range")),
        *(f"ss_{key}" for key in _TRAINING.split()),
        *_OTHERS.split(),
    }
)
"""Keys of a source that travel: who made it, under which terms, on which model and with which numbers.

A list of what may pass, as no list of what may not is ever complete: trainers put captions (``ss_tag_frequency``),
folders (``ss_dataset_dirs``, ``ot_config``), private names (``ss_output_name``, ``ss_training_comment``) and picture
hashes into their headers.
"""

_STALE = frozenset({"modelspec.hash_sha256", "sshs_model_hash", "sshs_legacy_hash"})
"""Hashes over the source's bytes, wrong for any other file."""

_PATH = re.compile(
    r"(?<![a-z0-9])[a-z]:[\\/]"  # C:\ and C:/, but not https:/
    r"|\\\\|file:/"
    r"|(?:^|[\s\"'(=,\[{])(?:~|\.{1,2})?/[\w.\- ]+/"  # /home/, ~/models/, ../data/
    r"|(?:^|[\s\"'])[\w.\-]+\\[\w.\-]",  # models\file
    re.IGNORECASE,
)


def travels(key: str, value: str) -> bool:
    """Whether an entry of a source's header may be written into a new file without being asked for."""
    allowed = key in TRAVELS or (key.startswith("ti_fix.") and not key.startswith(PRIVATE))
    return allowed and len(value) <= MAX_VALUE and not _PATH.search(value)


def header(
    name: str, family: Family, source: Mapping[str, str], tensor_hash: str, *, keep_private: bool
) -> dict[str, str]:
    """The whole metadata of a new file, sorted by key.

    Args:
        name: the trigger.
        family: the kind of model that the file is for.
        source: metadata of the embedding.
        tensor_hash: SHA-256 of the tensor bytes, in hexadecimal digits.
        keep_private: let everything of the source travel, with its captions and paths.
    """
    base, resolution = _BASES[family.name]
    kept = {k: v for k, v in source.items() if k not in _STALE and (keep_private or travels(k, v))}
    written = {
        "format": "pt",
        "modelspec.sai_model_spec": "1.0.0",
        "modelspec.architecture": f"{base}/textual-inversion",
        "modelspec.implementation": _IMPLEMENTATION,
        "modelspec.title": kept.get("modelspec.title") or name,
        "modelspec.resolution": resolution,
        "modelspec.trigger_phrase": name,
        "modelspec.hash_sha256": f"0x{tensor_hash}",
        "ti_fix.version": __version__,
        "ti_fix.schema": SCHEMA,
    }
    return {_writable(k): _writable(v) for k, v in sorted({**kept, **written}.items())}


def _writable(text: str) -> str:
    """Text that UTF-8 can hold; half characters (lone surrogates) come out of damaged names."""
    return text.encode("utf-8", "replace").decode("utf-8")
