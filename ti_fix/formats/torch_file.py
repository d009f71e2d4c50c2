"""Files that `torch.save` writes: the zip of torch 1.6 and later, and the pickle stream before it.

Contract: `torch/serialization.py` of PyTorch (``_save``, ``_legacy_save``). Which records a zip holds beside the pickle
and the data does not matter (each torch release adds some, and hosts refuse what they do not know).
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ti_fix.errors import UnreadableFile
from ti_fix.formats.source import Source
from ti_fix.formats.stored import MAX_TENSOR_BYTES, Container
from ti_fix.formats.unpickle import Storage, load_pickle, storage_dtype

MAX_PICKLE = 64 * 2**20
MAX_RECORDS = 100_000
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
"""First pickle of a legacy file (torch/serialization.py, MAGIC_NUMBER)."""


def is_zip(head: bytes) -> bool:
    """Whether the first bytes are those of a zip file."""
    return head[:4] == b"PK\x03\x04"


def looks_like_pickle(head: bytes) -> bool:
    """Whether the first bytes are those of a binary pickle (protocol 2 to 5)."""
    return len(head) > 1 and head[0] == 0x80 and head[1] in (2, 3, 4, 5)


def read_zip(source: Source) -> Container:
    """A zip that torch wrote; storages are read only when a tensor asks for them.

    Raises:
        UnreadableFile: damaged, unsafe, or a zip of something else.
    """
    try:
        archive = zipfile.ZipFile(source.open())
    except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError, OSError):
        raise UnreadableFile("truncated", "truncated or damaged zip; download it again.") from None
    records = {info.filename: info for info in archive.infolist()}
    names = [name for name in records if name == "data.pkl" or name.endswith("/data.pkl")]
    if len(records) > MAX_RECORDS or not names:
        raise UnreadableFile("foreign-zip", "it is a zip, but not one that torch wrote; unpack it and use what is inside.")
    root = names[0][: -len("data.pkl")]
    swap = _swapped(archive, records, root)

    def storage(saved_id: Any) -> Storage:
        dtype, key, _ = _storage_id(saved_id)
        info = records.get(f"{root}data/{key}")
        if info is None:
            raise UnreadableFile("truncated", "truncated: a tensor's data is missing; download it again.")
        return Storage(
            dtype=dtype,
            size=info.file_size // dtype.itemsize,
            load=lambda start, count: _numbers(_part(archive, info, start, count, dtype), dtype, swap),
        )

    pickled = _record(archive, records[names[0]], MAX_PICKLE)
    return Container(kind="torch zip", tree=load_pickle(io.BytesIO(pickled), storage))


def read_legacy(source: Source) -> Container:
    """A stream of pickles followed by the numbers, or a bare pickle of plain data.

    Raises:
        UnreadableFile: damaged or unsafe.
    """
    with source.open() as stream:
        return Container(kind="torch legacy", tree=_legacy_tree(stream))


def read_legacy_storage(data: Any) -> Any:
    """The one storage of a legacy file that lies as bytes inside another pickle (a plainly pickled tensor)."""
    if not isinstance(data, bytes):
        raise UnreadableFile("malformed", "its pickle describes a storage wrongly; download it again.")
    if is_zip(data):
        return read_zip(Source(data)).tree
    return _legacy_tree(io.BytesIO(data))


def _legacy_tree(stream: Any) -> Any:
    first = load_pickle(stream, _no_storage)
    if first != LEGACY_MAGIC:
        return first
    load_pickle(stream, _no_storage)  # protocol version
    system = load_pickle(stream, _no_storage)
    swap = isinstance(system, dict) and system.get("little_endian") is False
    blocks: dict[str, _LegacyBlock] = {}

    def storage(saved_id: Any) -> Storage:
        dtype, key, rest = _storage_id(saved_id)
        block = blocks.setdefault(key, _LegacyBlock(dtype, rest))
        return Storage(dtype=dtype, size=block.size, load=lambda start, count: block.load(start, count))

    tree = load_pickle(stream, storage)
    keys = load_pickle(stream, _no_storage)
    if not isinstance(keys, list):
        raise UnreadableFile("malformed", "its list of tensors is damaged; download it again.")
    for key in keys:
        block = blocks.get(str(key))
        if block is None:
            raise UnreadableFile("malformed", "its list of tensors is damaged; download it again.")
        block.read(stream, swap)
    return tree


class _LegacyBlock:
    """One storage of a legacy file: announced in the pickle, its numbers behind it."""

    def __init__(self, dtype: torch.dtype, announced: Any) -> None:
        size = announced[0] if announced else 0
        if type(size) is not int or not 0 <= size * dtype.itemsize <= 4 * MAX_TENSOR_BYTES:
            raise UnreadableFile("too-large", "it announces a tensor that is too large for an embedding.")
        self.dtype, self.size = dtype, size
        self._numbers: Tensor | None = None

    def read(self, stream: Any, swap: bool) -> None:
        count = int.from_bytes(stream.read(8), "big" if swap else "little")
        if count != self.size:
            raise UnreadableFile("truncated", "truncated: a tensor's data is missing; download it again.")
        data = stream.read(count * self.dtype.itemsize)
        if len(data) != count * self.dtype.itemsize:
            raise UnreadableFile("truncated", "truncated: it ends before its data does; download it again.")
        self._numbers = _numbers(data, self.dtype, swap)

    def load(self, start: int, count: int) -> Tensor:
        if self._numbers is None:
            raise UnreadableFile("truncated", "truncated: a tensor's data is missing; download it again.")
        return self._numbers[start : start + count]


def _no_storage(_: Any) -> Storage:
    raise UnreadableFile("malformed", "it speaks of tensors that it does not hold; download it again.")


def _storage_id(saved_id: Any) -> tuple[torch.dtype, str, tuple[Any, ...]]:
    """("storage", type, key, location, size, …) of a persistent id; where it once lived (cuda:0) does not matter."""
    if isinstance(saved_id, tuple) and len(saved_id) >= 5 and saved_id[0] == "storage":
        dtype = storage_dtype(saved_id[1])
        if dtype is not None:
            return dtype, str(saved_id[2]), saved_id[4:]
    raise UnreadableFile("malformed", "its pickle describes a storage wrongly; download it again.")


def _swapped(archive: zipfile.ZipFile, records: dict[str, zipfile.ZipInfo], root: str) -> bool:
    info = records.get(f"{root}byteorder")
    return info is not None and _record(archive, info, 16).strip() == b"big"


def _record(archive: zipfile.ZipFile, info: zipfile.ZipInfo, limit: int) -> bytes:
    if info.file_size > limit:
        raise UnreadableFile("too-large", f"its record {info.filename[:60]!r} is too large for an embedding.")
    return _inflate(lambda: archive.open(info).read(limit + 1)[: info.file_size])


def _part(archive: zipfile.ZipFile, info: zipfile.ZipInfo, start: int, count: int, dtype: torch.dtype) -> bytes:
    if count * dtype.itemsize > 2 * MAX_TENSOR_BYTES:
        raise UnreadableFile("too-large", "a tensor in it is too large for an embedding.")

    def read() -> bytes:
        with archive.open(info) as stream:
            stream.seek(start * dtype.itemsize)
            return stream.read(count * dtype.itemsize)

    data = _inflate(read)
    if len(data) != count * dtype.itemsize:
        raise UnreadableFile("truncated", "truncated: it ends before its data does; download it again.")
    return data


def _inflate(read: Callable[[], bytes]) -> bytes:
    try:
        return read()
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError):
        raise UnreadableFile("truncated", "truncated or damaged zip; download it again.") from None


def _numbers(data: bytes, dtype: torch.dtype, swap: bool) -> Tensor:
    if not data:
        return torch.empty(0, dtype=dtype)
    flat = torch.frombuffer(bytearray(data), dtype=dtype)
    if not swap or dtype.itemsize == 1:
        return flat
    return flat.view(torch.uint8).reshape(-1, dtype.itemsize).flip(1).contiguous().view(dtype).reshape(-1)
