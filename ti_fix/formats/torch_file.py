"""Files that `torch.save` writes: the zip of torch 1.6 and later, and the pickle stream before it.

Contract: `torch/serialization.py` of PyTorch (``_save``, ``_legacy_save``). Which records a zip holds beside the pickle
and the data does not matter (each torch release adds some, and hosts refuse what they do not know).
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

import torch
from torch import Tensor

from ti_fix.embedding import Finding
from ti_fix.errors import OTHER_KIND, UnreadableFile
from ti_fix.formats.builders import Storage, storage_dtype, swapped
from ti_fix.formats.source import READ_WHOLE, Source
from ti_fix.formats.stored import Container
from ti_fix.formats.unpickle import MAX_WORK, Budget, load_pickle
from ti_fix.formats.zip_file import Record, ZipFile

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
"""First pickle of a legacy file (torch/serialization.py, MAGIC_NUMBER)."""


def is_zip(head: bytes) -> bool:
    """Whether the first bytes are those of a zip file."""
    return head[:4] == b"PK\x03\x04"


def looks_like_pickle(head: bytes) -> bool:
    """Whether the first bytes are those of a binary pickle (protocol 2 to 5)."""
    return len(head) > 1 and head[0] == 0x80 and head[1] in (2, 3, 4, 5)


# --- zip --------------------------------------------------------------------------------------------------------------


def read_zip(source: Source) -> Container:
    """A zip that torch wrote; storages are read only when a tensor asks for them.

    Raises:
        UnreadableFile: damaged, unsafe, or a zip of something else.
    """
    archive, budget = ZipFile(source), Budget()
    tree = _zip_tree(archive, budget, partial(_inner_storage, budget))
    findings = _checksum_findings(archive) if source.size <= READ_WHOLE else ()
    return Container(kind="torch zip", tree=tree, findings=findings)


def _zip_tree(archive: ZipFile, budget: Budget, inner: Callable[[bytes], Any] | None) -> Any:
    records = archive.records
    pickled = next((r for name, r in records.items() if name == "data.pkl" or name.endswith("/data.pkl")), None)
    if pickled is None:
        raise UnreadableFile("foreign-zip", "it is a zip, but none that torch wrote; unpack it and use what is inside.")
    if pickled.size > MAX_WORK:
        raise UnreadableFile("too-large", f"its pickle alone is far larger than any embedding; {OTHER_KIND}")
    root = pickled.name[: -len("data.pkl")]
    swap = _is_big_endian(archive, records.get(f"{root}byteorder"))

    def storage(saved_id: Any) -> Storage:
        dtype, key, _ = _storage_id(saved_id)
        record = records.get(f"{root}data/{key}")
        if record is None:
            raise UnreadableFile("truncated", "truncated: a part of its vectors is missing; download it again.")

        def load(start: int, count: int) -> Tensor:
            flat = archive.numbers(record, start, count, dtype)
            return swapped(flat) if swap else flat

        return Storage(dtype=dtype, size=record.size // dtype.itemsize, load=load)

    return load_pickle(io.BytesIO(archive.read(pickled)), storage, inner=inner, budget=budget)


def _is_big_endian(archive: ZipFile, record: Record | None) -> bool:
    return record is not None and record.size < 16 and archive.read(record).strip() == b"big"


def _checksum_findings(archive: ZipFile) -> tuple[Finding, ...]:
    """torch does not look at checksums, so such a file works; but its numbers are not those that were saved."""
    wrong = sum(archive.has_wrong_checksum(record) for record in archive.records.values())
    if not wrong:
        return ()
    message = (
        f"{wrong} of its {len(archive.records)} parts changed after they were written (wrong checksum): it was damaged "
        "on the way. It can be read, but numbers in it may be wrong; better download it again."
    )
    return (Finding(code="checksum", severity="warning", message=message),)


# --- legacy -----------------------------------------------------------------------------------------------------------


def read_legacy(source: Source) -> Container:
    """A stream of pickles followed by the numbers, or a bare pickle of plain data.

    Raises:
        UnreadableFile: damaged or unsafe.
    """
    budget = Budget()
    return Container(kind="torch legacy", tree=_legacy_tree(source, budget, partial(_inner_storage, budget)))


def _inner_storage(budget: Budget, data: Any) -> Any:
    """The one storage of a file that lies as bytes inside another pickle (a plainly pickled tensor)."""
    if not isinstance(data, bytes):
        raise UnreadableFile("malformed", "it is damaged inside (a storage is described wrongly); download it again.")
    source = Source(data)
    return _zip_tree(ZipFile(source), budget, None) if is_zip(data) else _legacy_tree(source, budget, None)


def _legacy_tree(source: Source, budget: Budget, inner: Callable[[bytes], Any] | None) -> Any:
    blocks: dict[str, _LegacyBlock] = {}
    with source.open() as stream:
        first = load_pickle(stream, _no_storage, inner=inner, budget=budget)
        if type(first) is not int or first != LEGACY_MAGIC:
            return first
        for _ in ("protocol version", "writing machine"):
            # Whatever byte order that machine had, torch writes the numbers of this form little-endian.
            load_pickle(stream, _no_storage, budget=budget)
        tree = load_pickle(stream, partial(_legacy_part, source, blocks), inner=inner, budget=budget)
        keys = load_pickle(stream, _no_storage, budget=budget)
        if not isinstance(keys, list):
            raise _wrong_list()
        for key in keys:
            block = blocks.get(key) if isinstance(key, str) else None
            if block is None:
                raise _wrong_list()
            block.find(stream)
    return tree


@dataclass(slots=True, kw_only=True)
class _LegacyBlock:
    """One storage of a legacy file: announced in the pickle, its numbers behind it.

    Attributes:
        source: the file.
        dtype, size: type and number of elements, as announced.
        at: byte of the first element, None until it is found.
    """

    source: Source
    dtype: torch.dtype
    size: int
    at: int | None = None

    def find(self, stream: BinaryIO) -> None:
        """Note where the numbers are, and pass them by."""
        count = int.from_bytes(stream.read(8), "little")
        at = stream.tell()
        end = at + count * self.dtype.itemsize
        if count != self.size or end > self.source.size:
            raise UnreadableFile("truncated", "truncated: it ends before its data does; download it again.")
        self.at = at
        stream.seek(end)

    def load(self, start: int, count: int) -> Tensor:
        if self.at is None:
            raise UnreadableFile("truncated", "truncated: a part of its vectors is missing; download it again.")
        return self.source.numbers(self.at + start * self.dtype.itemsize, count, self.dtype)


def _legacy_part(source: Source, blocks: dict[str, _LegacyBlock], saved_id: Any) -> Any:
    """What a persistent id means: a storage, or the class of a module with its source code, which is left alone."""
    if isinstance(saved_id, tuple) and len(saved_id) > 1 and saved_id[0] == "module":
        return saved_id[1]
    dtype, key, (announced, *rest) = _storage_id(saved_id)
    if type(announced) is not int or announced < 0:
        raise _wrong_storage()
    if announced * dtype.itemsize > source.size:
        raise UnreadableFile("truncated", "truncated: it announces more vectors than it holds; download it again.")
    block = blocks.setdefault(key, _LegacyBlock(source=source, dtype=dtype, size=announced))
    if block.dtype is not dtype or block.size != announced:
        raise _wrong_storage()
    start, size = _view(rest[0] if rest else None, announced)
    return Storage(dtype=dtype, size=size, load=lambda first, count: block.load(start + first, count))


def _view(about: Any, whole: int) -> tuple[int, int]:
    """First element and length of a storage that is part of another (key, offset, length), as torch before 0.4 had."""
    if about is None:
        return 0, whole
    if not isinstance(about, tuple) or len(about) != 3 or not all(type(n) is int and n >= 0 for n in about[1:]):
        raise _wrong_storage()
    _, start, size = about
    if start + size > whole:
        raise _wrong_storage()
    return start, size


def _no_storage(_: Any) -> Storage:
    raise UnreadableFile("malformed", "it is incomplete: it speaks of vectors that are not in it; download it again.")


def _storage_id(saved_id: Any) -> tuple[torch.dtype, str, tuple[Any, ...]]:
    """("storage", type, key, location, size, …) of a persistent id; where it once lived (cuda:0) does not matter."""
    if isinstance(saved_id, tuple) and len(saved_id) >= 5 and saved_id[0] == "storage":
        dtype, key = storage_dtype(saved_id[1]), saved_id[2]
        if dtype is not None and isinstance(key, str):
            return dtype, key, saved_id[4:]
    raise _wrong_storage()


def _wrong_storage() -> UnreadableFile:
    return UnreadableFile("malformed", "it is damaged inside (a storage is described wrongly); download it again.")


def _wrong_list() -> UnreadableFile:
    return UnreadableFile("malformed", "it is damaged inside (its list of contents); download it again.")
