"""The text side of a model on disk: a diffusers folder or a single-file checkpoint, of which only that part is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ti_fix.align.tokenizer_files import read_json, read_tokenizer
from ti_fix.embedding import CLIP_G, CLIP_H, CLIP_L, FLUX, SD2, SD3, SD15, SDXL, SDXL_REFINER, EncoderSpec, Family
from ti_fix.errors import TiFixError, UnreadableFile
from ti_fix.formats import safetensors_file
from ti_fix.formats.source import Source
from ti_fix.formats.stored import StoredTensor
from ti_fix.text_model import TextEncoder, TextModel, TokenTable

Tensors = Mapping[str, StoredTensor]

SINGLE_FILES: tuple[tuple[Family, tuple[tuple[str, EncoderSpec], ...]], ...] = (
    (SDXL, (("conditioner.embedders.0.transformer", CLIP_L), ("conditioner.embedders.1.model", CLIP_G))),
    (SDXL_REFINER, (("conditioner.embedders.0.model", CLIP_G),)),
    (SD15, (("cond_stage_model.transformer", CLIP_L),)),
    (SD2, (("cond_stage_model.model", CLIP_H),)),
    (SD3, (("text_encoders.clip_l.transformer", CLIP_L), ("text_encoders.clip_g.transformer", CLIP_G))),
)
"""Family -> where the code that its checkpoints were published with keeps each text encoder."""

_TABLES = tuple(f"{above}token_embedding.weight" for above in ("text_model.embeddings.", "embeddings.", ""))
_POSITIONS = ("text_model.embeddings.position_ids", "embeddings.position_ids")


def read_checkpoint(path: Path) -> TextModel:
    """The text side of a model.

    Args:
        path: a diffusers folder, or a single file of safetensors.

    Raises:
        TiFixError: it is neither, or damaged.
    """
    if path.is_dir():
        return _folder(path)
    try:
        tensors = tensors_of(path)
    except UnreadableFile as error:
        raise TiFixError(f"{path.name}: {error}") from None
    except OSError as error:
        raise TiFixError(f"{path} cannot be opened ({error.strerror}); check the name.") from None
    return _single_file(path, tensors)


def tensors_of(path: Path) -> Tensors:
    """Key -> tensor of a safetensors file; nothing but the header is read.

    Raises:
        UnreadableFile: it is another kind of file, or damaged.
        OSError: it cannot be opened.
    """
    source = Source(path)
    if not safetensors_file.looks_like(source.read(0, min(9, source.size))):
        raise UnreadableFile("wrong-kind", "it is no .safetensors file; save the model in that format.")
    tree = safetensors_file.read(source).tree
    assert isinstance(tree, dict)
    return tree


def _single_file(path: Path, tensors: Tensors) -> TextModel:
    for family, places in SINGLE_FILES:
        tables = {place: table_key(tensors, place) for place, _ in places}
        if not all(tables.values()):
            continue
        encoders = [
            TextEncoder(
                place=place,
                spec=spec,
                table=_table(tensors[tables[place]], path),
                position_ids=_read(tensors, position_key(tensors, place)),
            )
            for place, spec in places
        ]
        return TextModel(name=path.name, family=family, encoders=tuple(encoders))
    raise TiFixError(
        f"{path.name} holds no text encoder where SDXL, SD1.5, SD2 and SD3 checkpoints have theirs; give a whole "
        "checkpoint or a diffusers folder."
    )


def _folder(path: Path) -> TextModel:
    parts = [p for p in ("text_encoder", "text_encoder_2") if (path / p / "config.json").is_file()]
    if not parts:
        raise TiFixError(f"{path} holds no text_encoder/config.json; give the folder with model_index.json.")
    configs = {part: read_json(path / part / "config.json") for part in parts}
    family, specs = _kind_of_folder(path, configs)
    encoders = tuple(_encoder_in(path, part, spec, configs[part]) for part, spec in specs.items())
    return TextModel(name=path.name or str(path), family=family, encoders=encoders)


def _kind_of_folder(path: Path, configs: Mapping[str, Mapping[str, Any]]) -> tuple[Family, dict[str, EncoderSpec]]:
    if (path / "text_encoder_3").is_dir():
        return SD3, dict(zip(configs, (CLIP_L, CLIP_G), strict=False))
    if str(configs.get("text_encoder_2", {}).get("model_type", "")).startswith("t5"):
        return FLUX, {"text_encoder": CLIP_L}
    if len(configs) == 2:
        return SDXL, {"text_encoder": CLIP_L, "text_encoder_2": CLIP_G}
    if "text_encoder_2" in configs:
        return SDXL_REFINER, {"text_encoder_2": CLIP_G}
    if configs["text_encoder"].get("hidden_size") == CLIP_H.width:
        return SD2, {"text_encoder": CLIP_H}
    return SD15, {"text_encoder": CLIP_L}


def _encoder_in(path: Path, part: str, spec: EncoderSpec, config: Mapping[str, Any]) -> TextEncoder:
    file, tensors = weights_in(path / part)
    return TextEncoder(
        place=part,
        spec=spec,
        table=_table(tensors[table_key(tensors)], file),
        position_ids=_read(tensors, position_key(tensors)),
        config=config,
        tokenizer=read_tokenizer(path / part.replace("text_encoder", "tokenizer")),
    )


def weights_in(folder: Path) -> tuple[Path, Tensors]:
    """The file in a text encoder's folder that holds the token table, and its tensors.

    Raises:
        TiFixError: there is none, or it is damaged.
    """
    for file in sorted(folder.glob("*.safetensors"), key=lambda f: (f.name != "model.safetensors", f.name)):
        try:
            tensors = tensors_of(file)
        except UnreadableFile as error:
            raise TiFixError(f"{file}: {error}") from None
        if table_key(tensors):
            return file, tensors
    raise TiFixError(f"{folder} holds no .safetensors file with a token table; save the model in that format.")


def table_key(tensors: Tensors, place: str = "") -> str:
    """Key of the token table below a place; empty where there is none."""
    return _first(tensors, place, _TABLES)


def position_key(tensors: Tensors, place: str = "") -> str:
    """Key of the position ids below a place; empty where there is none."""
    return _first(tensors, place, _POSITIONS)


def _first(tensors: Tensors, place: str, endings: tuple[str, ...]) -> str:
    names = (f"{place}.{ending}" if place else ending for ending in endings)
    return next((name for name in names if name in tensors), "")


def _table(stored: StoredTensor, path: Path) -> TokenTable:
    if len(stored.shape) != 2 or not stored.dtype.is_floating_point:
        raise TiFixError(f"{path.name}: its token table is {list(stored.shape)} of {stored.dtype}; it is damaged.")
    return TokenTable(shape=(stored.shape[0], stored.shape[1]), dtype=stored.dtype, read=stored.load)


def _read(tensors: Tensors, key: str) -> Tensor | None:
    return tensors[key].load() if key else None
