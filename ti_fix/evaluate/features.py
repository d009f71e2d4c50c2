"""Where a judge comes from: a file, the interrogator's cache, or open_clip by name. Nothing is fetched unasked."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ti_fix.errors import TiFixError, UnreadableFile, WrongUse
from ti_fix.evaluate.backbone import (
    CLIP_DEVIATION,
    CLIP_MEAN,
    IMAGENET_DEVIATION,
    IMAGENET_MEAN,
    Backbone,
    BackboneFacts,
    ClipBackbone,
    DinoJudge,
    OpenClipBackbone,
    Preprocessing,
)
from ti_fix.evaluate.clip_tower import ClipTower, from_transformers, shape_of
from ti_fix.evaluate.dino_tower import DinoTower

INTERROGATOR_FILE = "ViT-L-14.pt"
INTERROGATOR_SHA256 = "b8cca3fd41ae0c99ba7e8951adf17d267cdb84cd88be6f7c2e0eca1737a03836"
"""OpenAI publishes the file under this checksum; a TorchScript archive is opened only when it fits."""

DINO_RESIZE, DINO_SIZE = 256, 224
_UNREADABLE = (
    SafetensorError,
    pickle.UnpicklingError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What readers raise for a file that is damaged, or that holds more than tensors."""


class NeedsDownload(TiFixError):
    """The weights are not here; the message names size, licence and source, and how to say yes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A judge that open_clip can fetch.

    Attributes:
        architecture, weights: open_clip's names.
        size: of the download.
        licence: of the weights.
        source: where they come from.
        independent: see `BackboneFacts`.
    """

    architecture: str
    weights: str
    size: str
    licence: str
    source: str
    independent: bool = True

    def __str__(self) -> str:
        return f"{self.architecture}/{self.weights}: {self.size}, licence {self.licence}, from {self.source}"


OFFERS: Mapping[str, Offer] = {
    f"{each.architecture}/{each.weights}": each
    for each in (
        Offer(
            architecture="ViT-L-14",
            weights="openai",
            size="890 MB",
            licence="MIT",
            source="OpenAI (CLIP)",
            independent=False,
        ),
        Offer(architecture="ViT-B-32", weights="openai", size="340 MB", licence="MIT", source="OpenAI (CLIP)"),
        Offer(
            architecture="ViT-B-32",
            weights="laion2b_s34b_b79k",
            size="605 MB",
            licence="MIT",
            source="LAION (CLIP-ViT-B-32-laion2B-s34B-b79K)",
        ),
        Offer(
            architecture="ViT-H-14",
            weights="laion2b_s32b_b79k",
            size="3.9 GB",
            licence="MIT",
            source="LAION (CLIP-ViT-H-14-laion2B-s32B-b79K)",
        ),
    )
}
"""Names that `named` knows; each is asked about before anything is fetched."""

SECOND_JUDGE = (
    "This judge shares its weights' origin with the text encoder that the embedding was trained through, so it may "
    "like the embedding more than people do. Score again with an independent one, for instance "
    "ViT-B-32/laion2b_s34b_b79k, before you trust a small difference."
)


def named(name: str, *, device: str = "cpu", download: bool = False) -> Backbone:
    """A judge by open_clip's name, ``ARCHITECTURE/WEIGHTS``.

    Args:
        name: one of `OFFERS`, or any other that open_clip knows.
        device: where it runs.
        download: the user has agreed to fetch what is not here.

    Raises:
        NeedsDownload: the weights are not here and nobody has agreed.
        WrongUse: open_clip is missing, or does not know the name.
    """
    if find_spec("open_clip") is None or find_spec("torchvision") is None:
        raise WrongUse(
            f"{name} needs the package open_clip_torch, which is not installed. Install it, or give the judge's "
            "weights as a file."
        )
    import open_clip

    architecture, _, weights = name.partition("/")
    if weights not in open_clip.list_pretrained_tags_by_model(architecture):
        raise WrongUse(f"open_clip knows no {name!r}; write ARCHITECTURE/WEIGHTS, for instance {next(iter(OFFERS))}.")
    if not download:
        offer = OFFERS.get(name) or f"{name}: size and licence are told on its page, from open_clip's list of models"
        raise NeedsDownload(
            f"The judge has to be fetched. {offer}. Say yes (--download, or the box under Judge on the page), or give "
            "it as a file."
        )
    model, _, _ = open_clip.create_model_and_transforms(architecture, pretrained=weights, device=device)
    return wrap_open_clip(model, open_clip.get_tokenizer(architecture), name)


def wrap_open_clip(model: Any, tokenizer: Any, name: str) -> OpenClipBackbone:
    """A model of open_clip's as a judge."""
    side = model.visual.image_size
    side = side[0] if isinstance(side, (tuple, list)) else side
    mean = tuple(getattr(model.visual, "image_mean", None) or CLIP_MEAN)
    deviation = tuple(getattr(model.visual, "image_std", None) or CLIP_DEVIATION)
    preprocessing = Preprocessing(size=side, resize=side, mean=mean, deviation=deviation)
    facts = BackboneFacts(
        name=name,
        preprocessing=str(preprocessing),
        fingerprint=fingerprint(model.state_dict()),
        independent=name != "ViT-L-14/openai",
    )
    return OpenClipBackbone(model, tokenizer, facts, preprocessing)


def interrogator_file(folders: Sequence[Path]) -> Path | None:
    """The CLIP that the WebUI's Interrogate has fetched before, if it has.

    Args:
        folders: where the WebUI keeps it; the cache of OpenAI's package is looked at after them.
    """
    for folder in (*folders, Path.home() / ".cache" / "clip"):
        path = folder / INTERROGATOR_FILE
        if path.is_file():
            return path
    return None


def from_file(path: Path, *, device: str = "cpu") -> Backbone:
    """A judge from a local file in open_clip's, OpenAI's or transformers' layout.

    ``open_clip_config.json`` or ``config.json`` beside it tells activation and heads; without one the published
    models' are taken, and plain GELU.

    Raises:
        UnreadableFile: it holds no CLIP.
        WrongUse: there is no such file.
    """
    state, about = _read(path)
    state = from_transformers(state) if "visual_projection.weight" in state else state
    return from_state(state, path.stem, about, device=device)


def from_state(
    state: Mapping[str, Tensor], name: str, config: Mapping[str, Any], *, device: str = "cpu"
) -> ClipBackbone:
    """A judge from tensors in open_clip's layout.

    Args:
        state: the tensors.
        name: shown beside the scores.
        config: open_clip's model configuration as far as it is known (``quick_gelu``, ``vision_cfg``, ``text_cfg``),
            and ``resampling`` where it is not bicubic.
        device: where it runs.
    """
    vision, text = config.get("vision_cfg", {}), config.get("text_cfg", {})
    shape = shape_of(
        state,
        quick_gelu=bool(config.get("quick_gelu", False)),
        vision_heads=vision.get("heads"),
        vision_head_width=vision.get("head_width"),
        text_heads=text.get("heads"),
    )
    preprocessing = Preprocessing(
        size=shape.image_size, resize=shape.image_size, resampling=config.get("resampling", "bicubic")
    )
    facts = BackboneFacts(
        name=name,
        preprocessing=str(preprocessing),
        fingerprint=fingerprint(state),
        independent=not (shape.quick_gelu and shape.text_width == 768),
    )
    return ClipBackbone(ClipTower(shape, state), facts, preprocessing, device=device)


def dino_from_file(path: Path, *, device: str = "cpu") -> DinoJudge:
    """DINO or DINOv2 from a local file.

    Raises:
        UnreadableFile: it holds another kind of model.
        WrongUse: there is no such file.
    """
    state, _ = _read(path)
    tower = DinoTower(state, device=device)
    size = DINO_SIZE // tower.patch * tower.patch
    preprocessing = Preprocessing(size=size, resize=DINO_RESIZE, mean=IMAGENET_MEAN, deviation=IMAGENET_DEVIATION)
    facts = BackboneFacts(name=path.stem, preprocessing=str(preprocessing), fingerprint=fingerprint(state))
    return DinoJudge(tower, facts, preprocessing, device=device)


def fingerprint(state: Mapping[str, Tensor]) -> str:
    """Twelve signs that tell one set of weights from another: shapes and the beginning of each tensor."""
    digest = hashlib.sha256()
    for key in sorted(state):
        tensor = state[key]
        digest.update(f"{key}{tuple(tensor.shape)}".encode())
        digest.update(tensor.flatten()[:64].float().cpu().numpy().tobytes())
    return digest.hexdigest()[:12]


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and configuration of a judge's file."""
    if not path.is_file():
        raise WrongUse(f"{path} is no file; give the weights of a judge (.safetensors, .bin or .pt).")
    try:
        if path.suffix == ".safetensors":
            return load_file(path), _config(path)
        if path.name == INTERROGATOR_FILE:
            return _openai_archive(path), {"quick_gelu": True}
        state = torch.load(path, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        raise UnreadableFile("unreadable", f"{path} cannot be read as a judge's weights ({error}).") from None
    state = state.get("state_dict", state) if isinstance(state, dict) else {}
    if not state or not all(isinstance(each, Tensor) for each in state.values()):
        raise UnreadableFile("no-clip", f"{path} holds no table of tensors; give a judge's weights.")
    return {key.removeprefix("module."): each for key, each in state.items()}, _config(path)


def _openai_archive(path: Path) -> dict[str, Tensor]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256") if hasattr(hashlib, "file_digest") else _digest(file)
    if digest.hexdigest() != INTERROGATOR_SHA256:
        raise UnreadableFile(
            "changed", f"{path} is not the file that OpenAI publishes (its checksum differs); download it again."
        )
    state = torch.jit.load(str(path), map_location="cpu").state_dict()
    return {
        key: value for key, value in state.items() if key not in ("input_resolution", "context_length", "vocab_size")
    }


def _digest(file: Any) -> Any:
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
    return digest


def _config(path: Path) -> dict[str, Any]:
    """What the file beside the weights says, in open_clip's words."""
    for name in ("open_clip_config.json", "config.json"):
        beside = path.with_name(name)
        if not beside.is_file():
            continue
        try:
            found = json.loads(beside.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UnreadableFile("unreadable", f"{beside} is no readable JSON ({error}).") from None
        if "model_cfg" in found:
            return dict(found["model_cfg"])
        text, vision = found.get("text_config") or {}, found.get("vision_config") or {}
        heads = {"heads": vision["num_attention_heads"]} if "num_attention_heads" in vision else {}
        return {
            "quick_gelu": vision.get("hidden_act", "quick_gelu") == "quick_gelu",
            "vision_cfg": heads,
            "text_cfg": {"heads": text["num_attention_heads"]} if "num_attention_heads" in text else {},
        }
    return {}
