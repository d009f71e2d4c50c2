"""The embedding databases of the two WebUIs, as far as ti_fix touches them; see `standin`."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from PIL import Image

from ti_fix import tokenizer

WIDTHS = {"clip_l": 768, "clip_g": 1280}
FAMILIES = {"sdxl": ("clip_l", "clip_g"), "sd15": ("clip_l",)}


class Embedding:
    """What a host keeps of an embedding."""

    def __init__(self, vec: Any, name: str) -> None:
        self.vec, self.name = vec, name
        self.step = self.sd_checkpoint = self.sd_checkpoint_name = None
        self.shape, self.vectors = 0, 0
        self.filename = self.hash = self.shorthash = None


def create_embedding_from_data(data: Any, name: str, filename: str = "", filepath: Any = None) -> Embedding:
    """String-to-param, both halves, or one tensor; row counts are not compared, other dicts are refused."""
    if "string_to_param" in data:
        (vec,) = data["string_to_param"].values()
        shape, rows = vec.shape[-1], vec.shape[0]
    elif "clip_g" in data and "clip_l" in data:
        vec = {k: v.detach().to(torch.float32) for k, v in data.items()}
        shape, rows = sum(data[k].shape[-1] for k in ("clip_g", "clip_l")), data["clip_g"].shape[0]
    elif isinstance(next(iter(data.values())), torch.Tensor):
        assert len(data) == 1, "several terms"
        (vec,) = data.values()
        vec = vec.unsqueeze(0) if vec.ndim == 1 else vec
        vec = vec.detach().to(torch.float32)
        shape, rows = vec.shape[-1], vec.shape[0]
    else:
        raise ValueError(f"cannot identify {filename}")
    embedding = Embedding(vec, name)
    embedding.shape, embedding.vectors = shape, rows
    if filepath:
        embedding.filename = filepath
        embedding.hash = embedding.shorthash = f"hash of {Path(filepath).name}"
    return embedding


class Database:
    """What both hosts' databases have in common."""

    module: Any

    def __init__(self) -> None:
        self.word_embeddings: dict[str, Embedding] = {}
        self.skipped_embeddings: dict[str, Embedding] = {}
        self.ids_lookup: dict[int, list[Any]] = {}
        self.embedding_dirs: dict[str, Any] = {}
        self.expected_shape = -1
        self.loads = 0

    def add_embedding_dir(self, path: str) -> None:
        self.embedding_dirs[path] = SimpleNamespace(path=path, mtime=None)

    def _register(self, embedding: Embedding | None, name: str, ids: list[int]) -> None:
        lookup = [each for each in self.ids_lookup.get(ids[0], []) if each[1].name != name]
        self.word_embeddings.pop(name, None)
        if embedding is not None:
            self.word_embeddings[name] = embedding
            lookup.append((ids, embedding))
        self.ids_lookup[ids[0]] = sorted(lookup, key=lambda each: len(each[0]), reverse=True)

    def _clear(self) -> None:
        self.word_embeddings.clear()
        self.skipped_embeddings.clear()
        self.ids_lookup.clear()
        self.loads += 1

    def load_from_dir(self, embdir: Any) -> None:
        for root, _, names in os.walk(embdir.path, followlinks=True):
            for name in names:
                path = f"{root}/{name}"
                try:
                    if os.stat(path).st_size:
                        self.load_from_file(path, name)
                except Exception as error:  # noqa: BLE001 - as the hosts do
                    self.module.console.append(f"Error loading {name}: {error}")

    def load_from_file(self, path: Any, filename: str) -> None:
        name, ending = os.path.splitext(filename)
        if ending.upper() in (".BIN", ".PT"):
            data = self.module.host.torch_load(path)
        elif ending.upper() == ".SAFETENSORS":
            data = self.module.host.load_file(path)
        elif ending.upper() in (".PNG", ".WEBP"):
            Image.open(path).close()  # what it reads from pictures is left to the tests of real hosts
            return
        else:
            return
        if data is None:
            self.module.console.append(f"Unable to load {name}")
            return
        embedding = self.module.create_embedding_from_data(data, name, filename=filename, filepath=path)
        if self.expected_shape in (-1, embedding.shape):
            self._add(embedding)
        else:
            self.skipped_embeddings[name] = embedding

    def _add(self, embedding: Embedding) -> None:
        raise NotImplementedError


class A1111Database(Database):
    """One for the process; asks `shared.sd_model` for its width."""

    def register_embedding(self, embedding: Embedding, model: Any) -> None:
        self.register_embedding_by_name(embedding, model, embedding.name)

    def register_embedding_by_name(self, embedding: Embedding | None, model: Any, name: str) -> None:
        self._register(embedding, name, model.cond_stage_model.tokenize([name])[0])

    def _add(self, embedding: Embedding) -> None:
        self.register_embedding(embedding, self.module.host.model)

    def get_expected_shape(self) -> int:
        return sum(WIDTHS[key] for key in FAMILIES[self.module.host.model.kind])

    def load_textual_inversion_embeddings(self, force_reload: bool = False) -> None:
        dirs = list(self.embedding_dirs.values())
        if not force_reload and all(d.mtime is not None and os.stat(d.path).st_mtime <= d.mtime for d in dirs):
            return
        self._clear()
        self.expected_shape = self.get_expected_shape()
        for embdir in dirs:
            self.load_from_dir(embdir)
            embdir.mtime = os.stat(embdir.path).st_mtime
        ordered = {e.name: e for e in sorted(self.word_embeddings.values(), key=lambda e: e.name.lower())}
        self.word_embeddings.clear()
        self.word_embeddings.update(ordered)


class ForgePromptDatabase(Database):
    """One per text encoder, filled once while the encoder is made."""

    def __init__(self, expected_shape: int = -1) -> None:
        super().__init__()
        self.expected_shape = expected_shape

    def register_embedding(self, embedding: Embedding) -> None:
        self.register_embedding_by_name(embedding, embedding.name)

    def register_embedding_by_name(self, embedding: Embedding | None, name: str) -> None:
        self._register(embedding, name, tokenizer.encode(name))

    def _add(self, embedding: Embedding) -> None:
        self.register_embedding(embedding)

    def load_textual_inversion_embeddings(self) -> None:
        self._clear()
        for embdir in self.embedding_dirs.values():
            self.load_from_dir(embdir)


class ForgeListDatabase(Database):
    """Cards and API: no test of widths, the same token ids for all."""

    def register_embedding(self, embedding: Embedding, model: Any) -> None:
        self.register_embedding_by_name(embedding, model, embedding.name)

    def register_embedding_by_name(self, embedding: Embedding | None, model: Any, name: str) -> None:
        self._register(embedding, name, [0, 0, 0])

    def _add(self, embedding: Embedding) -> None:
        self.register_embedding(embedding, None)

    def load_textual_inversion_embeddings(self, force_reload: bool = False, sync_with_sd_model: bool = True) -> None:
        assert force_reload
        assert not sync_with_sd_model, "there may be no model"
        self._clear()
        for embdir in self.embedding_dirs.values():
            self.load_from_dir(embdir)
