"""The safetensors container, read header first.

Layout: 8 bytes little-endian header length, a JSON header, then the tensor bytes
(https://github.com/huggingface/safetensors, "Format"). The library opens a file or raises; here a file is judged by
its header before a byte of data is read, and each kind of damage gets its own sentence.
"""

from __future__ import annotations

import json
import math
from typing import Any

import torch

from ti_fix.errors import UnreadableFile
from ti_fix.formats.source import Source
from ti_fix.formats.stored import Container, StoredTensor

MAX_HEADER = 32 * 2**20
"""Bytes; the header of a full SDXL checkpoint has about 0.3 MB."""

_DTYPES = {
    name: getattr(torch, attribute)
    for name, attribute in {
        "F64": "float64",
        "F32": "float32",
        "F16": "float16",
        "BF16": "bfloat16",
        "F8_E4M3": "float8_e4m3fn",
        "F8_E5M2": "float8_e5m2",
        "I64": "int64",
        "I32": "int32",
        "I16": "int16",
        "I8": "int8",
        "U8": "uint8",
        "BOOL": "bool",
    }.items()
    if hasattr(torch, attribute)
}


def looks_like(head: bytes) -> bool:
    """Whether the first bytes can be a header length followed by a JSON object."""
    return len(head) >= 9 and head[8:9] == b"{"


def read(source: Source) -> Container:
    """The tensors and metadata of a safetensors file; no tensor data is read yet.

    Raises:
        UnreadableFile: the header is damaged, or the file ends before its data.
    """
    header, start = _header(source)
    metadata = header.pop("__metadata__", None)
    tree = {str(name): _entry(source, start, name, entry) for name, entry in header.items()}
    return Container(kind="safetensors", tree=tree, metadata=_texts(metadata))


def _header(source: Source) -> tuple[dict[str, Any], int]:
    length = int.from_bytes(source.read(0, 8), "little")
    if length > MAX_HEADER:
        raise UnreadableFile("bad-header", f"its safetensors header claims {length:,} bytes; {_DAMAGED}")
    if 8 + length > source.size:
        raise UnreadableFile("truncated", f"truncated inside its safetensors header; {_AGAIN}")
    try:
        header = json.loads(source.read(8, length).decode("utf-8"))
    except (ValueError, RecursionError):
        raise UnreadableFile("bad-header", f"its safetensors header is not JSON; {_DAMAGED}") from None
    if not isinstance(header, dict):
        raise UnreadableFile("bad-header", f"its safetensors header is not a table of tensors; {_DAMAGED}")
    return header, 8 + length


def _entry(source: Source, start: int, name: str, entry: Any) -> StoredTensor:
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        sound = all(type(n) is int and 0 <= n < 2**48 for n in (*shape, begin, end))
    except (TypeError, KeyError, ValueError):
        sound = False
    if not sound or len(shape) > 8:
        raise UnreadableFile("bad-header", f"its safetensors header describes {name!r} wrongly; {_DAMAGED}")
    if dtype not in _DTYPES:
        raise UnreadableFile("bad-header", f"{name!r} is stored as {dtype!r}, which is not a known number type.")
    torch_dtype = _DTYPES[dtype]
    if math.prod(shape) * torch_dtype.itemsize != end - begin:
        raise UnreadableFile("bad-header", f"its safetensors header gives {name!r} a wrong size; {_DAMAGED}")
    if start + end > source.size:
        raise UnreadableFile(
            "truncated", f"truncated: {start + end:,} bytes announced, {source.size:,} there; {_AGAIN}"
        )

    def load() -> torch.Tensor:
        return source.numbers(start + begin, math.prod(shape), torch_dtype).reshape(shape)

    return StoredTensor(shape=shape, dtype=torch_dtype, load=load)


def _texts(metadata: Any) -> dict[str, str]:
    if not isinstance(metadata, dict):
        return {}
    return {str(k): v if isinstance(v, str) else json.dumps(v) for k, v in metadata.items()}


_AGAIN = "download it again."
_DAMAGED = "it is damaged, download it again."
