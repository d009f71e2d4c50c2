"""Every setting of a training run, written once."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from ti_fix.embedding import MAX_VECTORS
from ti_fix.errors import WrongUse
from ti_fix.options import option, options, validate

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Settings of one run. Each stands in forms, on the command line and in the docs as it is written here."""

    # what is learned
    name: str = option("", "Name", "the word by which prompts call the embedding; also the name of the file")
    vectors: int = option(
        1,
        "Vectors",
        "tokens of the prompt that it takes, the same number in each encoder",
        minimum=1,
        maximum=MAX_VECTORS,
    )
    start: str = option(
        "words",
        "Start from",
        "words: one vector per token; mean: their (weighted) mean; slerp: a blend of two words on the sphere; "
        "file: an embedding; random: numbers with the vocabulary's mean and spread",
        choices=("words", "mean", "slerp", "file", "random"),
    )
    start_text: str = option(
        "*", "Start text", "words that say what it is (bird:1 blue:.5 gives weights), or the path of an embedding"
    )
    start_noise: float = option(
        0.0,
        "Start noise",
        "random part added to each vector, as a share of the vocabulary's mean length; tells equal vectors apart",
        minimum=0,
        maximum=1,
        expert=True,
    )

    # pictures
    folders: tuple[str, ...] = option((), "Folders", "folders of pictures; FOLDER:3 counts its pictures three times")
    resolution: int = option(
        1024, "Resolution", "pixels along the side of a square of the area to train at", minimum=64, maximum=4096
    )
    buckets: bool = option(True, "Keep proportions", "wide and tall pictures keep their shape; off: all are cut square")
    scales: tuple[float, ...] = option(
        (1.0,), "Scales", "crops to take of each picture; 0.5 cuts half of its width and height", expert=True
    )
    flip: bool = option(
        False, "Mirror", "also use each picture mirrored; not for writing, faces and other lopsided things"
    )
    alpha: str = option(
        "flatten",
        "Transparency",
        "flatten: draw on the background colour; weight: and let transparent places count less in the loss",
        choices=("flatten", "weight"),
    )
    background: str = option("white", "Background", "colour behind transparent pictures, a name or #rrggbb")
    masks: bool = option(
        True, "Masks", "use NAME-mask.png or NAME-masklabel.png beside NAME.jpg: white counts, black does not"
    )
    mask_floor: float = option(
        0.0, "Masked-out weight", "how much of the loss counts where a mask is black", minimum=0, maximum=1, expert=True
    )
    cache: str = option(
        "memory",
        "Latent cache",
        "where encoded pictures are kept; disk survives the run",
        choices=("memory", "disk"),
        expert=True,
    )
    cache_mb: int = option(
        1024, "Cache size", "megabytes of memory for encoded pictures", minimum=1, maximum=_MILLION, expert=True
    )
    cache_folder: str = option("", "Cache folder", "where the disk cache lies; empty: beside the results", expert=True)

    # captions
    template: str = option(
        "auto",
        "Template",
        "a file with one caption a line, or a caption; [name] is the embedding, [filewords] the picture's own caption; "
        "subject and style are built in; auto: captions as they are, or subject where there are none",
    )
    shuffle_tags: bool = option(False, "Shuffle tags", "another order of the comma-separated parts at every step")
    drop_tags: float = option(
        0.0,
        "Drop tags",
        "chance that a comma-separated part is left out; never the one with the name",
        minimum=0,
        maximum=1,
    )
    share_caption: bool = option(
        False,
        "One caption a batch",
        "all pictures of a batch use one template, so that the text is encoded once",
        expert=True,
    )

    # steps and rates
    steps: int = option(500, "Steps", "updates of the vectors", minimum=1, maximum=_MILLION)
    batch_size: int = option(4, "Batch size", "pictures a pass", minimum=1, maximum=256)
    accumulate: int = option(1, "Accumulation", "passes per step", minimum=1, maximum=1024)
    learning_rate: str = option("0.005", "Learning rate", "a number, or stages as 0.005:100, 1e-3:1000, 1e-5")
    learning_rate_g: str = option(
        "", "Learning rate of CLIP-G", "the same for the second encoder; empty: as the first", expert=True
    )
    rate_unit: str = option(
        "raw",
        "Unit of the rate",
        "raw: as trainers count it; rms: multiples of the root mean square of the vocabulary's numbers, so that 0.1 "
        "means steps of about a tenth of a word's length",
        choices=("raw", "rms"),
        expert=True,
    )
    schedule: str = option(
        "constant",
        "Schedule",
        "what the rate does over the run; stages go with constant",
        choices=("constant", "linear", "cosine", "restarts", "one-cycle"),
    )
    warmup: int = option(50, "Warm-up", "steps in which the rate rises from zero", minimum=0, maximum=_MILLION)
    rate_floor: float = option(
        0.1,
        "Last rate",
        "where linear, cosine and restarts end, as a share of the rate",
        minimum=0,
        maximum=1,
        expert=True,
    )
    cycles: int = option(3, "Cycles", "of the schedule with restarts", minimum=1, maximum=1000, expert=True)
    optimiser: str = option(
        "adamw",
        "Optimiser",
        "adamw moves the vectors freely; direction keeps them at the vocabulary's length and turns them; prodigy finds "
        "the rate by itself (set the rate to 1); adafactor is adamw without momentum",
        choices=("adamw", "direction", "prodigy", "adafactor"),
    )
    weight_decay: float = option(
        0.0, "Weight decay of CLIP-L", "pulls the vectors to zero, so 0 is best", minimum=0, maximum=1, expert=True
    )
    weight_decay_g: float = option(
        0.0, "Weight decay of CLIP-G", "the same for the second encoder", minimum=0, maximum=1, expert=True
    )
    clip: str = option(
        "joint",
        "Gradient clipping",
        "joint: the length over both encoders; norm: the length in each encoder; value: each number; off",
        choices=("off", "joint", "norm", "value"),
        expert=True,
    )
    clip_at: str = option("1", "Clip at", "the bound, a number or stages as for the rate", expert=True)
    seed: int = option(0, "Seed", "same seed, same vectors", minimum=0, maximum=2**31 - 1)

    # objective
    prediction: str = option(
        "auto",
        "Prediction type",
        "what the checkpoint predicts; auto finds out",
        choices=("auto", "epsilon", "v_prediction"),
        expert=True,
    )
    zero_snr: str = option(
        "auto",
        "Zero terminal SNR",
        "whether the last timestep is pure noise; auto: as the checkpoint says",
        choices=("auto", "on"),
        expert=True,
    )
    loss: str = option("mse", "Loss", "huber cares less about outliers", choices=("mse", "huber"), expert=True)
    huber_delta: float = option(
        0.1, "Huber delta", "errors above it count linearly", minimum=1e-6, maximum=1e6, expert=True
    )
    weighting: str = option(
        "debiased",
        "Timestep weighting",
        "debiased counts noisy timesteps most, because there the prompt decides; min-snr counts clean ones less; none "
        "treats all alike",
        choices=("none", "min-snr", "debiased"),
        expert=True,
    )
    snr_gamma: float = option(5.0, "Min-SNR gamma", "5 in the paper", minimum=0.01, maximum=1000, expert=True)
    noise_offset: float = option(
        0.0, "Noise offset", "one random brightness per channel in the noise", minimum=0, maximum=1, expert=True
    )
    timesteps: str = option(
        "stratified",
        "Timesteps",
        "uniform: drawn alone; stratified: spread over the batch, which makes the gradient steadier",
        choices=("uniform", "stratified"),
        expert=True,
    )
    norm_prior: float = option(
        0.0, "Length prior", "pull to the vocabulary's length (not direction)", minimum=0, maximum=100, expert=True
    )
    direction_prior: float = option(
        0.0, "Direction prior", "pull to the start's direction", minimum=0, maximum=100, expert=True
    )
    context_prior: float = option(
        0.0,
        "Context prior",
        "keep the text encoders' answer for the other words what it was with the start vectors",
        minimum=0,
        maximum=100,
        expert=True,
    )

    # checks, checkpoints, previews
    validate_every: int = option(
        50, "Validate every", "steps between validation losses; 0: never", minimum=0, maximum=_MILLION
    )
    patience: int = option(
        0, "Patience", "stop after so many validation losses without a better one; 0: never", minimum=0, maximum=1000
    )
    validation_timesteps: int = option(
        8, "Validation timesteps", "of each picture", minimum=1, maximum=1000, expert=True
    )
    validation_pictures: int = option(
        16, "Validation pictures", "at most so many", minimum=1, maximum=10000, expert=True
    )
    hold_out: float = option(
        0.0, "Hold out", "share of the pictures that is used for validation only", minimum=0, maximum=0.9, expert=True
    )
    out: str = option("", "Output folder", "where results are written; empty: nowhere")
    overwrite: bool = option(False, "Overwrite", "replace results of the same name")
    resume: bool = option(False, "Resume", "go on where the last run of this name stopped")
    checkpoint_every: int = option(
        100, "Checkpoint every", "steps between saves; 0: only at the end", minimum=0, maximum=_MILLION
    )
    keep: int = option(3, "Keep", "how many embeddings of earlier steps stay", minimum=0, maximum=10000, expert=True)
    preview_every: int = option(0, "Preview every", "steps between pictures; 0: none", minimum=0, maximum=_MILLION)
    preview_prompt: str = option("a photo of [name]", "Preview prompt", "[name] is the embedding")
    preview_steps: int = option(20, "Preview steps", "of the sampler", minimum=1, maximum=1000, expert=True)
    probe_every: int = option(
        0,
        "Order probe every",
        "steps between probes by pictures whether a scene beside the name is still drawn; 0: never",
        minimum=0,
        maximum=_MILLION,
        expert=True,
    )
    probe_scenes: tuple[str, ...] = option(
        ("on a beach", "in a forest", "in a city at night", "in the snow"),
        "Scenes of the probe",
        "what is put behind the preview prompt; two or more that look different",
        expert=True,
    )
    checkpointing: str = option(
        "auto",
        "Gradient checkpointing",
        "compute the UNet's blocks twice instead of keeping them: the same gradients up to rounding, far less memory, "
        "more time; auto: on for models of real size",
        choices=("auto", "on", "off"),
        expert=True,
    )
    self_test: bool = option(
        True, "Self-test", "compare the gradient with finite differences before the first step", expert=True
    )


RESUMABLE = frozenset(
    "steps out overwrite resume checkpoint_every keep preview_every preview_prompt preview_steps probe_every "
    "probe_scenes self_test cache cache_mb cache_folder folders".split()
)
"""Settings that a resumed run may change and still be called the same run (`steps` only with a constant rate)."""


def check(config: TrainConfig) -> None:
    """Ranges, choices, and what must not stand together.

    Raises:
        WrongUse: says which setting, and what to change.
    """
    validate(config)
    if not config.name.strip():
        raise WrongUse("Name is empty; give the word that will call the embedding (name).")
    if not config.scales or any(not 0 < scale <= 1 for scale in config.scales):
        raise WrongUse(f"Scales ({config.scales}) must be numbers above 0 and up to 1; 1 is the whole picture.")
    if config.schedule != "constant" and _has_stages(config):
        raise WrongUse("Stages of the learning rate go with the constant schedule only; give one number or change it.")
    if config.zero_snr == "on" and config.prediction == "epsilon":
        raise WrongUse("Zero terminal SNR needs v_prediction: epsilon cannot be learned from pure noise. Change one.")
    if config.optimiser == "direction" and config.norm_prior:
        raise WrongUse(
            "The length prior does nothing with the direction optimiser, which fixes the length; set it to 0."
        )


def _has_stages(config: TrainConfig) -> bool:
    return any(sign in text for text in (config.learning_rate, config.learning_rate_g) for sign in ":,")


def from_mapping(values: Mapping[str, Any], *, where: str = "the settings") -> TrainConfig:
    """Settings from a parsed file or request; unknown names are refused. Ranges are `check`'s matter.

    Raises:
        WrongUse: an unknown name or a wrong type.
    """
    types = get_type_hints(TrainConfig)
    known = {field.name for field, _ in options(TrainConfig)}
    unknown = sorted(values.keys() - known)
    if unknown:
        raise WrongUse(f"{where}: no setting is called {', '.join(unknown)}; see `ti-fix train --help` for the names.")
    return TrainConfig(**{name: _converted(name, value, types[name], where) for name, value in values.items()})


def _converted(name: str, value: Any, wanted: Any, where: str) -> Any:
    inner = get_args(wanted)
    if inner:  # tuple[x, ...]
        items = value if isinstance(value, (list, tuple)) else [value]
        return tuple(_converted(name, item, inner[0], where) for item in items)
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if wanted is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if type(value) is not wanted:
        raise WrongUse(f"{where}: {name} is {value!r}; it must be a {wanted.__name__}.")
    return value


def read_config(path: Path) -> dict[str, Any]:
    """The settings of a TOML or JSON file, unchecked.

    Raises:
        WrongUse: the file cannot be read or parsed.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        parsed = _parse_toml(text) if path.suffix.lower() == ".toml" else json.loads(text)
    except (OSError, ValueError) as error:
        raise WrongUse(f"{path}: {error}. Give a TOML or JSON file with settings.") from None
    if not isinstance(parsed, dict):
        raise WrongUse(f'{path} holds no table of settings; write lines like: name = "mycat".')
    return parsed


def _parse_toml(text: str) -> Any:
    if sys.version_info < (3, 11):
        raise WrongUse("TOML needs Python 3.11; write the settings as JSON.")
    import tomllib  # type: ignore[import-not-found, unused-ignore]

    return tomllib.loads(text)


def as_mapping(config: TrainConfig) -> dict[str, Any]:
    """All settings as plain values, for JSON."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(config).items()}
