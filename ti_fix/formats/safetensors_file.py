"""The safetensors container, read header first.

Layout: 8 bytes little-endian header length, a JSON header, then the tensor bytes
(https://github.com/huggingface/safetensors, "Format"). The library opens a file or raises; here a file is judged by
its header before a byte of data is read, and each kind of damage gets its own sentence.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from ti_fix.embedding import Finding
from ti_fix.errors import OTHER_KIND, UnreadableFile, quoted
from ti_fix.formats.source import Source
from ti_fix.formats.stored import Container, StoredTensor, writable

MAX_HEADER = 16 * 2**20
"""Bytes; the header of a full SDXL checkpoint has about 0.3 MB, that of a LoRA with all its captions a few."""

MAX_MARKS = 600_000
"""Brackets and commas outside and inside of texts; each may cost 60 bytes of memory for 2 of the header."""

_DTYPES = {
    name: getattr(torch, attribute)
    for name, attribute in {
        "F64": "float64",
        "F32": "float32",
        "F16": "float16",
        "BF16": "bfloat16",
        "F8_E4M3": "float8_e4m3fn",
        "F8_E5M2": "float8_e5m2",
        "F8_E4M3FNUZ": "float8_e4m3fnuz",
        "F8_E5M2FNUZ": "float8_e5m2fnuz",
        "C64": "complex64",
        "U64": "uint64",
        "U32": "uint32",
        "U16": "uint16",
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
    """Whether the first bytes are a header length and the start of a JSON object.

    To be asked before all other formats: a header of 640 bytes begins like a pickle, one of 2,815 like a JPEG XL.
    """
    return head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= MAX_HEADER


def read(source: Source) -> Container:
    """The tensors and metadata of a safetensors file; no tensor data is read yet.

    Raises:
        UnreadableFile: the header is damaged, or the file ends before its data.
    """
    table, start = header(source)
    metadata = table.pop("__metadata__", None)
    entries = {writable(name): _entry(name, entry) for name, entry in table.items()}
    end = max((entry.end for entry in entries.values()), default=0)
    if start + end > source.size:
        there = f"{start + end:,} bytes announced, {source.size:,} there"
        raise UnreadableFile("truncated", f"truncated: {there}; {_AGAIN}")
    findings = (*_spare_findings(entries.values(), source.size - start), *_metadata_findings(metadata))
    tree = {name: _stored(source, start, entry) for name, entry in entries.items()}
    return Container(kind="safetensors", tree=tree, metadata=_texts(metadata), findings=findings)


def header(source: Source) -> tuple[dict[str, Any], int]:
    """The header as it is written, and where the data begins.

    Raises:
        UnreadableFile: it is damaged.
    """
    if source.size < 8:
        raise UnreadableFile("truncated", f"truncated inside its safetensors header; {_AGAIN}")
    length = int.from_bytes(source.read(0, 8), "little")
    if length > MAX_HEADER:
        raise UnreadableFile("bad-header", f"its safetensors header claims {length:,} bytes; {_DAMAGED}")
    if 8 + length > source.size:
        raise UnreadableFile("truncated", f"truncated inside its safetensors header; {_AGAIN}")
    text = source.read(8, length)
    if text.count(b"[") + text.count(b"{") + text.count(b",") > MAX_MARKS:
        raise UnreadableFile("too-large", f"its safetensors header lists far more than an embedding has; {OTHER_KIND}")
    try:
        table = _parsed(text)
    except (ValueError, RecursionError):
        raise UnreadableFile(
            "bad-header", f"its beginning (the safetensors header, JSON) cannot be read; {_DAMAGED}"
        ) from None
    if not isinstance(table, dict):
        raise UnreadableFile("bad-header", f"its safetensors header is not a table of tensors; {_DAMAGED}")
    return table, 8 + length


def _parsed(text: bytes) -> Any:
    """The header as Python data.

    Raises:
        ValueError: no JSON, or a whole number of so many digits that reading it would take minutes.
        UnreadableFile: two entries of one name; readers differ in which of them they take.
    """
    long_numbers = _LONG_NUMBER.search(text) is not None  # perhaps: digits in a text look the same
    header = json.loads(text.decode("utf-8"), parse_int=_whole if long_numbers else None)
    if isinstance(header, dict):
        tensors = len(header) - ("__metadata__" in header)
        if any(text.count(word) != tensors for word in _FIELDS):
            json.loads(text.decode("utf-8"), parse_int=_whole, object_pairs_hook=_unique)
    return header


_LONG_NUMBER = re.compile(rb"[0-9]{19}")
_FIELDS = (b'"dtype"', b'"shape"', b'"data_offsets"')


def _whole(digits: str) -> int:
    if len(digits) > 18:
        raise ValueError
    return int(digits)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise UnreadableFile("bad-header", f"its safetensors header has two entries of one name; {_DAMAGED}")
    return table


class _Entry(NamedTuple):
    """One tensor as the header describes it: torch type, dimensions, first and last byte of its data."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


def _entry(name: str, entry: Any) -> _Entry:
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        sound = all(type(n) is int and 0 <= n < 2**48 for n in (*shape, begin, end))
    except (TypeError, KeyError, ValueError):
        sound = False
    if not sound or len(shape) > 8 or not isinstance(dtype, str):
        raise UnreadableFile("bad-header", f"its safetensors header describes {quoted(name)} wrongly; {_DAMAGED}")
    if dtype not in _DTYPES:
        raise UnreadableFile(
            "bad-header", f"{quoted(name)} is stored as {quoted(dtype)}, which is not a known number type; {_DAMAGED}"
        )
    torch_dtype = _DTYPES[dtype]
    if math.prod(shape) * torch_dtype.itemsize != end - begin:
        raise UnreadableFile("bad-header", f"its safetensors header gives {quoted(name)} a wrong size; {_DAMAGED}")
    return _Entry(torch_dtype, shape, begin, end)


def _stored(source: Source, start: int, entry: _Entry) -> StoredTensor:
    def load() -> torch.Tensor:
        return source.numbers(start + entry.begin, math.prod(entry.shape), entry.dtype).reshape(entry.shape)

    return StoredTensor(shape=entry.shape, dtype=entry.dtype, load=load)


def _spare_findings(entries: Iterable[_Entry], length: int) -> list[Finding]:
    """Bytes that belong to no tensor: the safetensors library refuses the file for them.

    Raises:
        UnreadableFile: two tensors share bytes, which no honest writer does.
    """
    at = spare = 0
    for begin, end in sorted((e.begin, e.end) for e in entries if e.end > e.begin):
        if begin < at:
            raise UnreadableFile("bad-header", f"its safetensors header gives two tensors the same bytes; {_DAMAGED}")
        spare, at = spare + begin - at, end
    spare += length - at
    if not spare:
        return []
    message = f"It holds {spare:,} bytes that belong to no tensor, for which WebUIs refuse it. Left out these bytes."
    return [Finding(code="spare-bytes", severity="note", message=message, repaired="Left out bytes of no tensor.")]


def _metadata_findings(metadata: Any) -> list[Finding]:
    if metadata is None or (isinstance(metadata, dict) and all(type(value) is str for value in metadata.values())):
        return []
    message = "Its metadata holds something other than text, for which WebUIs refuse the file. Turned it into text."
    return [Finding(code="metadata-form", severity="note", message=message, repaired="Turned the metadata into text.")]


def _texts(metadata: Any) -> dict[str, str]:
    if not isinstance(metadata, dict):
        return {}
    return {writable(k): writable(v if isinstance(v, str) else json.dumps(v)) for k, v in metadata.items()}


_AGAIN = "download it again."
_DAMAGED = "it is damaged, download it again."
