"""Tensors that are known but not yet read: shape and type first, bytes only when they are wanted.

A stranger's file is judged by its shapes before anything is allocated for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ti_fix.embedding import Finding
from ti_fix.errors import OTHER_KIND, UnreadableFile

MAX_TENSOR_BYTES = 512 * 2**20
"""Largest tensor that is read, counted as float32; a whole CLIP token table is 151 or 253 MB."""

MAX_NODES = 50_000
"""Keys and list places of one file; a training state of a whole SD1.5 model has about 10,000."""

MAX_DEPTH = 32
MAX_KEY = 500
"""Characters of the keys that lead to a leaf; those of checkpoints have about 150."""

MAX_CHARACTERS = 2**21
"""Characters of all such paths of one file, as every one is looked at with a dozen patterns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor inside a file.

    Attributes:
        shape: its dimensions.
        dtype: the torch type that it is stored in.
        load: reads it; the result has `shape` and `dtype`.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    load: Callable[[], Tensor]

    @classmethod
    def of(cls, tensor: Tensor) -> StoredTensor:
        """A tensor that is in memory already."""
        return cls(shape=tuple(tensor.shape), dtype=tensor.dtype, load=lambda: tensor)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    def read(self) -> Tensor:
        """The values as a contiguous float32 CPU tensor of `shape`.

        Raises:
            UnreadableFile: the tensor is larger than any embedding or table could be.
        """
        if self.numel * 4 > MAX_TENSOR_BYTES:
            raise UnreadableFile("too-large", f"it holds a tensor of {list(self.shape)} numbers; {OTHER_KIND}")
        return self.load().to(dtype=torch.float32).contiguous()


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """What one file holds, before anyone asks what it means.

    Attributes:
        kind: ``safetensors``, ``torch zip``, ``torch legacy`` or ``picture``.
        tree: nested dicts and lists; the leaves are `StoredTensor`, text, numbers or None.
        metadata: free text of the file's header.
        findings: what was noticed and mended while opening it.
    """

    kind: str
    tree: object
    metadata: dict[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


def walk(tree: object) -> Iterator[tuple[tuple[str, ...], object]]:
    """Each leaf of a tree with the path of keys that leads to it.

    Raises:
        UnreadableFile: the tree is deeper, has more nodes or longer keys than any honest file.
    """
    stack: list[tuple[tuple[str, ...], int, object]] = [((), 0, tree)]
    nodes = characters = 0
    while stack:
        path, length, node = stack.pop()
        if not isinstance(node, (dict, list, tuple)):
            yield path, node
            continue
        nodes += len(node)  # counted before it is unfolded: shared parts can multiply
        if nodes > MAX_NODES:
            raise UnreadableFile(
                "too-large", f"it has more than {MAX_NODES:,} parts, an embedding has a few; {OTHER_KIND}"
            )
        if len(path) == MAX_DEPTH:
            raise UnreadableFile("malformed", "it is nested far too deep: damaged, or made to harm; do not load it.")
        children = node.items() if isinstance(node, dict) else enumerate(node)
        for key, child in reversed(list(children)):
            name = writable(key) if isinstance(key, str) else str(key)
            longer = length + len(name) + 1
            if longer > MAX_KEY:
                raise UnreadableFile(
                    "malformed", f"a name in it is {longer:,} letters long: damaged, or made to harm; do not load it."
                )
            characters += longer
            if characters > MAX_CHARACTERS:
                raise UnreadableFile("too-large", f"it holds more names than any embedding; {OTHER_KIND}")
            stack.append(((*path, name), longer, child))


def writable(text: str) -> str:
    """The text without lone surrogates (halves of characters), which no file or terminal can take."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
