"""Embeddings that lie inside a LoRA, each as `Parsed`, and embeddings that a host has already taken out of one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from ti_fix.embedding import Embedding
from ti_fix.errors import UnreadableFile
from ti_fix.formats.container import open_container
from ti_fix.formats.foreign import BUNDLE
from ti_fix.formats.layouts import Reading, interpret, interpret_all
from ti_fix.formats.read import Parsed
from ti_fix.formats.safetensors_file import looks_like
from ti_fix.formats.source import Source
from ti_fix.formats.stored import Container, StoredTensor


def read_bundled(path: Path) -> list[Parsed]:
    """The embeddings inside a LoRA; none where it has none, is no safetensors file or is damaged."""
    try:
        source = Source(path)
        if source.size < 16 or not looks_like(source.read(0, 16)):
            return []
        container = open_container(source, path.name)
        tree = container.tree
        if not isinstance(tree, dict) or not any(str(name).startswith(BUNDLE) for name in tree):
            return []
        readings = interpret_all(container)
    except (OSError, UnreadableFile):
        return []
    return [_parsed(reading, reading.placeholder, path) for reading in readings if reading.placeholder]


def parse_data(data: Mapping[str, object], name: str, path: Path) -> Parsed:
    """What a host has read already: a dict of tensors, perhaps below ``string_to_param``."""
    reading = interpret(Container(kind="torch zip", tree=_stored(data)))
    return _parsed(reading, name, path)


def _stored(node: object) -> object:
    if isinstance(node, Tensor):
        return StoredTensor.of(node.detach().cpu())
    return {key: _stored(value) for key, value in node.items()} if isinstance(node, Mapping) else node


def _parsed(reading: Reading, name: str, path: Path) -> Parsed:
    embedding = Embedding(name=name, vectors=reading.vectors) if reading.vectors else None
    return Parsed(
        paths=(path,), trigger=name, embedding=embedding, layout=f"bundled {reading.layout}", findings=reading.findings
    )
