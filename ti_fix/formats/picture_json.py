"""The text inside a picture: JSON whose tensors are nested lists, read within fixed bounds.

Contract: AUTOMATIC1111 stable-diffusion-webui, ``modules/textual_inversion/image_embedding.py``; a tensor is written as
``{"TORCHTENSOR": [[…], …]}``, numbers that are not finite as ``NaN`` and ``Infinity``.
"""

from __future__ import annotations

import json
import re
import zlib
from itertools import chain
from typing import Any

import torch

from ti_fix.errors import UnreadableFile
from ti_fix.formats.stored import MAX_DEPTH, StoredTensor

MAX_JSON = 12 * 2**20
"""Bytes; 75 vectors for both encoders of SDXL, written with all digits, take under 4 MB."""

MAX_VALUES = 1_000_000
MAX_BRACKETS = 20_000
"""Lists and dicts; each costs about 60 bytes of memory for 2 bytes of text, and a tensor has one a row."""

_TENSOR = "TORCHTENSOR"
_BRACKETS = re.compile(rb"[\[\]{}]")
_AGAIN = "take the picture again in its original form (sites and messengers write pictures anew)."


def damaged(what: str) -> UnreadableFile:
    """The error for embedding data that is there but cannot be read."""
    return UnreadableFile("damaged-picture", f"the embedding data in this picture is damaged ({what}); {_AGAIN}")


def too_large() -> UnreadableFile:
    """The error for embedding data that would unpack to more than any embedding holds."""
    return UnreadableFile("too-large", "the embedding data in this picture is too large to be honest; do not use it.")


def inflate(packed: bytes | memoryview, limit: int = MAX_JSON) -> bytes:
    """Unpack a zlib stream, with anything after its end ignored.

    Raises:
        UnreadableFile: damaged, cut off, or longer than `limit` bytes.
    """
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(packed, limit + 1)
    except zlib.error as error:
        raise damaged(f"zlib: {error}") from None
    if len(text) > limit:
        raise too_large()
    if not unpacker.eof:
        raise damaged("it ends too early")
    return text


def read_tree(text: bytes) -> dict[str, Any]:
    """The dict that the text describes, its tensors as float32 `StoredTensor`.

    Raises:
        UnreadableFile: not JSON, not a dict, a ragged or non-numeric tensor, or larger than the bounds above.
    """
    _check_bounds(text)
    try:
        tree = json.loads(text.decode("utf-8"), parse_int=_number)
    except (ValueError, RecursionError):
        raise damaged("it is not JSON") from None
    if not isinstance(tree, dict):
        raise damaged("it is not a table of tensors")
    tree = _with_tensors(tree)
    if not isinstance(tree, dict):
        raise damaged("it is a tensor without a name")
    return tree


def _check_bounds(text: bytes) -> None:
    """Refuse before parsing what parsing would blow up: bytes, values, lists, depth."""
    if len(text) > MAX_JSON or text.count(b",") > MAX_VALUES or text.count(b"[") + text.count(b"{") > MAX_BRACKETS:
        raise too_large()
    depth = 0
    for bracket in _BRACKETS.finditer(text):
        depth += 1 if bracket.group() in b"[{" else -1
        if depth > MAX_DEPTH:
            raise damaged("nested beyond reason")


def _number(digits: str) -> int | float:
    """A whole number of JSON; beyond 18 digits as a float, as the cost of exact ones grows with their square."""
    return int(digits) if len(digits) <= 18 else float(digits)


def _with_tensors(node: Any) -> Any:
    """The tree with each ``{"TORCHTENSOR": …}`` replaced; its depth is bounded by `_check_bounds`."""
    if isinstance(node, dict):
        if _TENSOR in node:
            return _tensor(node[_TENSOR])
        return {_writable(key): _with_tensors(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_with_tensors(value) for value in node]
    return _writable(node) if isinstance(node, str) else node


def _writable(text: str) -> str:
    """JSON can spell half characters (lone surrogates), which no terminal or file can take."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _tensor(nested: Any) -> StoredTensor:
    shape: list[int] = []
    values = [nested]
    while values and isinstance(values[0], list):
        length = len(values[0])
        if any(type(row) is not list or len(row) != length for row in values):
            raise damaged("rows of a tensor differ in length")
        shape.append(length)
        values = list(chain.from_iterable(values))
    if not set(map(type, values)) <= {int, float}:
        raise damaged("a tensor holds something other than numbers")
    return StoredTensor.of(torch.tensor(values, dtype=torch.float32).reshape(shape))
