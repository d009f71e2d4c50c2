"""The host's own `Embedding` objects, made from ours and registered the host's own way.

So the infotext's hash, the cards and the host's API treat them like any other.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from ti_fix.embedding import CLIP_G, CLIP_L, Embedding
from ti_fix.hosts.kind import Kind
from ti_fix.hosts.lazy import Complete, CompletedAtUse
from ti_fix.hosts.patches import Patches

PICTURES = (".png", ".webp", ".jxl", ".avif")


def entries(database: Any) -> dict[str, Any]:
    """Name -> the host's object, those that the host skips included."""
    return {**database.skipped_embeddings, **database.word_embeddings}


def label_of(entry: Any) -> str:
    """What we did to the embedding behind a host's object; empty for the host's own ones."""
    return getattr(entry, "ti_fix", "")


def host_loads(original: Callable[..., Any], database: Any, path: Any, filename: str) -> list[Any]:
    """The host's own loading of one file; the entries that it made.

    Some hosts rename a file that they cannot read, but only when its path is a `str`: these are handed a `Path`.
    """
    renames = hasattr(torch, "load_origin") or hasattr(safetensors.torch, "load_file_origin")
    before = _entries_of(database, filename)
    original(database, Path(path) if renames else path, filename)
    added = [entry for name, entry in _entries_of(database, filename).items() if before.get(name) is not entry]
    for entry in added:
        entry.filename = str(path)
    return added


def _entries_of(database: Any, filename: str) -> dict[str, Any]:
    """The entries that a file may make: one by its stem; those of pictures are named inside."""
    stem, ending = os.path.splitext(filename)
    if ending.lower() in PICTURES:
        return entries(database)
    tables = (database.skipped_embeddings, database.word_embeddings)
    found = [table[stem] for table in tables if stem in table]
    return {stem: found[-1]} if found else {}


class Entries:
    """Makes and registers entries of a host's databases.

    Args:
        kind: the host.
        patches: knows the host's own functions below our wrappers.
    """

    def __init__(self, kind: Kind, patches: Patches) -> None:
        self._kind, self._patches = kind, patches

    def whole(self, database: Any, embedding: Embedding, path: Path | None) -> Any:
        """An entry with these vectors, made by the host's own function (which hashes the file).

        Args:
            database: one of the host's, whose module has the function.
            embedding: a block per encoder.
            path: the file, None for an embedding inside another file.
        """
        create = self._patches.original(sys.modules[type(database).__module__], "create_embedding_from_data")
        vectors = {key: block.clone() for key, block in embedding.vectors.items()}
        where = {"filename": path.name, "filepath": str(path)} if path else {}
        return create(vectors, embedding.name, **where)

    def completed(self, database: Any, embedding: Embedding, path: Path | None, complete: Complete) -> Any:
        """An entry for both CLIP encoders from an embedding for one; the other half is made at its first use."""
        missing = CLIP_G.key if CLIP_L.key in embedding.vectors else CLIP_L.key
        lazy = CompletedAtUse(embedding, missing, complete, self._loaded)
        entry = self.whole(database, embedding.with_vectors(lazy.known()), path)
        lazy.update(entry.vec)  # where the host wants them: on its device
        entry.vec = lazy
        return entry

    def _loaded(self) -> tuple[object, Any]:
        """What identifies the loaded weights (a host may load others into the same object), and their tables."""
        model = self._kind.model()
        checkpoint = getattr(getattr(model, "sd_checkpoint_info", None), "filename", None)
        return (id(model), checkpoint), self._kind.vocabulary()

    def add(self, database: Any, entry: Any, *, skip: bool = False) -> None:
        """Register an entry, or list it as skipped where it does not fit what the host expects."""
        if skip or database.expected_shape not in (-1, entry.shape):
            database.skipped_embeddings[entry.name] = entry
        else:
            self._kind.register(database, entry)

    def add_aliases(self, database: Any, wanted: list[tuple[str, Any]]) -> None:
        """Register further names of entries; none that another entry has, however it is written.

        Args:
            database: where the entries are.
            wanted: (name, entry) pairs.
        """
        taken = {name.casefold() for name in entries(database)}
        for name, entry in wanted:
            if name.casefold() in taken or database.word_embeddings.get(entry.name) is not entry:
                continue
            taken.add(name.casefold())
            alias = copy.copy(entry)
            alias.name = name
            self._kind.register(database, alias)
