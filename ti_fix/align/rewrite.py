"""A copy of a model on disk in which what the report found is mended; the original stays as it is."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ti_fix.align.check import Report
from ti_fix.align.checkpoint import Tensors, position_key, table_key, tensors_of, weights_in
from ti_fix.align.tokenizer_files import read_json
from ti_fix.embedding import VOCABULARY_SIZE
from ti_fix.errors import WrongUse
from ti_fix.formats.safetensors_copy import copy_with
from ti_fix.formats.write import write_bytes
from ti_fix.text_model import TextEncoder, TextTokenizer
from ti_fix.tokenizer import BOS, EOS, published

_REPLACED_TOKENIZER_FILES = frozenset({"added_tokens.json", "tokenizer.json"})


def write_repaired(path: Path, report: Report, out: Path) -> list[Path]:
    """Write the model as the report would have it.

    Args:
        path: the model that was examined: a file or a folder.
        report: of that model.
        out: for a single file a folder or a name, for a diffusers folder a new folder; what has not changed there is
            linked where the disk can do that, else copied.

    Returns:
        The files that differ from the original.

    Raises:
        WrongUse: swapped encoders cannot be written back, the places have different forms; or `out` is the original.
        TiFixError: a file exists, or the disk does not take it.
    """
    if any(change.part == "spec" for change in report.changes):
        raise WrongUse("swapped text encoders are not written back; change the names of the two folders instead.")
    target = out / path.name if path.is_file() and out.is_dir() else out
    if target.exists() and target.samefile(path):
        raise WrongUse(f"{target} is the model itself; name another place.")
    pairs = list(zip(report.before.encoders, report.after.encoders, strict=True))
    if path.is_file():
        tensors = tensors_of(path)
        replaced = {k: t for old, new in pairs for k, t in _replaced(old, new, tensors, old.place).items()}
        return [write_bytes(target, copy_with(path, replaced))] if replaced else []
    contents = {file: data for old, new in pairs for file, data in _files(path, old, new)}
    gone = {
        f"{_tokenizer_folder(new)}/{name}"
        for old, new in pairs
        if old.tokenizer is not new.tokenizer
        for name in _REPLACED_TOKENIZER_FILES
    }
    _link_rest(path, target, {*contents, *gone})
    return [write_bytes(target / name, data) for name, data in contents.items()]


def _replaced(old: TextEncoder, new: TextEncoder, tensors: Tensors, place: str = "") -> dict[str, Tensor]:
    """Key -> tensor, for what has changed of one encoder."""
    found: dict[str, Tensor] = {}
    if new.table is not old.table:
        found[table_key(tensors, place)] = new.table.read()
    if new.position_ids is not old.position_ids and new.position_ids is not None:
        found[position_key(tensors, place)] = new.position_ids
    return found


def _files(path: Path, old: TextEncoder, new: TextEncoder) -> Iterator[tuple[str, Any]]:
    """Name inside the folder -> content, for the files of one encoder that change."""
    weights, tensors = weights_in(path / old.place)
    replaced = _replaced(old, new, tensors)
    if replaced:
        yield f"{old.place}/{weights.name}", copy_with(weights, replaced)
    if new.config is not old.config:
        yield f"{old.place}/config.json", _json(new.config)
    if new.tokenizer is not old.tokenizer and new.tokenizer is not None:
        folder = _tokenizer_folder(new)
        settings = read_json(path / folder / "tokenizer_config.json")
        yield from ((f"{folder}/{name}", data) for name, data in _tokenizer_files(new.tokenizer, settings).items())


def _tokenizer_folder(encoder: TextEncoder) -> str:
    return encoder.place.replace("text_encoder", "tokenizer")


def _tokenizer_files(tokenizer: TextTokenizer, settings: Mapping[str, Any]) -> dict[str, bytes]:
    """The published files in the form that every version of transformers reads."""
    pad = published().tokens[tokenizer.pad_id] if tokenizer.pad_id is not None else EOS
    special = {"bos_token": BOS, "eos_token": EOS, "unk_token": EOS, "pad_token": pad}
    old = ("added_tokens_decoder", "backend", "special_tokens_map_file")
    kept = {k: v for k, v in settings.items() if k not in old}
    added = {token: i for token, i in tokenizer.added.items() if i >= VOCABULARY_SIZE}
    files = {
        "vocab.json": _json(published().ids, indent=None),
        "merges.txt": "\n".join(["#version: 0.2", *map(" ".join, published().ranks), ""]).encode(),
        "special_tokens_map.json": _json(special),
        "tokenizer_config.json": _json(
            {**kept, **special, "model_max_length": tokenizer.max_length, "tokenizer_class": "CLIPTokenizer"}
        ),
    }
    return {**files, "added_tokens.json": _json(added)} if added else files


def _json(content: Mapping[str, Any], indent: int | None = 2) -> bytes:
    return json.dumps(dict(content), indent=indent, ensure_ascii=False).encode()


def _link_rest(path: Path, target: Path, but: set[str]) -> None:
    """Everything that does not change, under the new folder."""
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path).as_posix()
        if not file.is_file() or name in but or target in file.parents:
            continue
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.exists():
            continue
        try:
            os.link(file.resolve(), place)  # hubs keep links, which would point nowhere from here
        except OSError:
            with contextlib.suppress(FileExistsError):
                shutil.copyfile(file, place)
