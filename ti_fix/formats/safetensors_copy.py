"""A large safetensors file with a few other tensors in it, made without holding it in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ti_fix.formats import safetensors_file
from ti_fix.formats.source import Source

_PIECE = 16 * 2**20

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
}


def copy_with(path: Path, replaced: Mapping[str, Tensor]) -> Iterator[bytes]:
    """The file's bytes with these tensors in the place of those of the same name.

    Args:
        path: a sound safetensors file.
        replaced: key -> tensor of any shape, of a float or whole-number type.

    Raises:
        UnreadableFile: the file is damaged.
        KeyError: it has no tensor of that name.
    """
    source = Source(path)
    safetensors_file.read(source)  # judges every entry
    entries, start = safetensors_file.header(source)
    metadata = entries.pop("__metadata__", None)
    new = {name: _bytes(tensor) for name, tensor in replaced.items()}
    if missing := set(new) - set(entries):
        raise KeyError(min(missing))
    order = sorted(entries, key=lambda name: entries[name]["data_offsets"])
    table: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    place = 0
    for name in order:
        begin, end = entries[name]["data_offsets"]
        size = len(new[name]) if name in new else end - begin
        changed = _entry(replaced[name]) if name in new else entries[name]
        table[name] = {**changed, "data_offsets": [place, place + size]}
        place += size
    head = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    head += b" " * (-len(head) % 8)
    yield len(head).to_bytes(8, "little") + head
    for name in order:
        if name in new:
            yield new[name]
        else:
            begin, end = entries[name]["data_offsets"]
            yield from (source.read(start + p, min(_PIECE, end - p)) for p in range(begin, end, _PIECE))


def _entry(tensor: Tensor) -> dict[str, Any]:
    return {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape)}


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
