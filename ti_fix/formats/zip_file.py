"""The zip container, as far as torch's files need it: stored and deflated records, read in parts and within bounds.

Source: PKWARE's APPNOTE 6.3.9, sections 4.3 and 4.5.3 (zip64). The module of the standard library is not used: it
builds every entry of a table that a stranger wrote before anyone can count them, unpacks bzip2 and LZMA with as much
memory as the file asks for, and refuses the files that torch writes without checksums.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ti_fix.errors import OTHER_KIND, UnreadableFile
from ti_fix.formats.source import Source

MAX_TABLE = 8 * 2**20
"""Bytes of the table of records; that of a full SDXL checkpoint has 0.3 MB."""

MAX_UNPACKED = 64 * 2**20
"""Bytes that are unpacked of one deflated record. torch never deflates, people who pack a file again do."""

_END = struct.Struct("<4s4H2LH")
_END64_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_STORED, _DEFLATED = 0, 8
_FULL = 0xFFFFFFFF
"""Stands in a four-byte field whose value is in the zip64 field."""

_ENCRYPTED = 0x2041
"""Flag bits 0, 6 and 13: encrypted, strongly encrypted, encrypted table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One file inside the zip.

    Attributes:
        name: its path in the zip.
        at: byte at which its local header starts.
        packed, size: bytes that it takes in the zip, and unpacked.
        method: 0 stored, 8 deflated.
        crc: checksum of the unpacked bytes; 0 where torch wrote none.
    """

    name: str
    at: int
    packed: int
    size: int
    method: int
    crc: int


class ZipFile:
    """The records of a zip.

    Attributes:
        records: name -> record.

    Raises:
        UnreadableFile: the table of records is damaged or too long, two records share a name, or one is encrypted.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.records: dict[str, Record] = {}
        for record in _entries(_table(source)):
            if record.name in self.records:
                raise _damaged("two parts have one name")
            self.records[record.name] = record

    def read(self, record: Record, start: int = 0, count: int | None = None) -> bytes:
        """`count` bytes of a record from `start`, all by default.

        Raises:
            UnreadableFile: damaged, or packed so that more would have to be unpacked than any embedding needs.
        """
        count = record.size - start if count is None else count
        if start < 0 or count < 0 or start + count > record.size:
            raise UnreadableFile("truncated", "truncated: a part of its vectors is missing; download it again.")
        begin = self._begin(record)
        if record.method == _STORED:
            return self._source.read(begin + start, count)
        if start + count > MAX_UNPACKED:
            raise UnreadableFile("too-large", f"a part of it unpacks to more than any embedding holds; {OTHER_KIND}")
        return self._unpacked(record, begin, start + count)[start:]

    def numbers(self, record: Record, start: int, count: int, dtype: torch.dtype) -> Tensor:
        """`count` little-endian numbers of a record from number `start` on, as a 1-D tensor.

        Raises:
            UnreadableFile: as `read` does.
        """
        if record.method == _STORED and start >= 0 and (start + count) * dtype.itemsize <= record.size:
            return self._source.numbers(self._begin(record) + start * dtype.itemsize, count, dtype)
        return Source(self.read(record, start * dtype.itemsize, count * dtype.itemsize)).numbers(0, count, dtype)

    def has_wrong_checksum(self, record: Record) -> bool:
        """Whether a record's bytes are not those that were written; one without a checksum is taken as it is."""
        return record.crc != 0 and zlib.crc32(self.read(record)) != record.crc

    def _begin(self, record: Record) -> int:
        """The first byte of a record's data; its local header may be longer than its entry in the table says."""
        if record.at + _LOCAL.size > self._source.size:
            raise _damaged()
        fields = _LOCAL.unpack(self._source.read(record.at, _LOCAL.size))
        begin = record.at + _LOCAL.size + fields[9] + fields[10]
        if fields[0] != b"PK\x03\x04" or begin + record.packed > self._source.size:
            raise _damaged()
        return int(begin)

    def _unpacked(self, record: Record, begin: int, wanted: int) -> bytes:
        unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            data = unpacker.decompress(self._source.read(begin, record.packed), wanted) if wanted else b""
        except zlib.error:
            raise _damaged() from None
        if len(data) != wanted:
            raise _damaged()
        return data


def _table(source: Source) -> bytes:
    """The table of records, found from the end of the file."""
    tail_at = max(0, source.size - _END.size - 0xFFFF)
    tail = source.read(tail_at, source.size - tail_at)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or at + _END.size > len(tail):
        raise _damaged()
    fields = _END.unpack_from(tail, at)
    size, offset = fields[5], fields[6]
    if _FULL in (size, offset) or fields[4] == 0xFFFF:
        size, offset = _end64(source, tail_at + at)
    if size > MAX_TABLE:
        raise UnreadableFile("too-large", f"it is a zip with far more parts than any embedding has; {OTHER_KIND}")
    return _within(source, offset, size)


def _end64(source: Source, end_at: int) -> tuple[int, int]:
    """Size and place of the table as the zip64 end record gives them."""
    locator_at = end_at - _END64_LOCATOR.size
    magic, _, at, _ = _END64_LOCATOR.unpack(_within(source, locator_at, _END64_LOCATOR.size))
    if magic != b"PK\x06\x07":
        raise _damaged()
    fields = _END64.unpack(_within(source, at, _END64.size))
    if fields[0] != b"PK\x06\x06":
        raise _damaged()
    return fields[8], fields[9]


def _within(source: Source, at: int, length: int) -> bytes:
    if at < 0 or at + length > source.size:
        raise _damaged()
    return source.read(at, length)


def _entries(table: bytes) -> Iterator[Record]:
    at = 0
    while at < len(table):
        if at + _ENTRY.size > len(table):
            raise _damaged()
        fields = _ENTRY.unpack_from(table, at)
        magic, flags, method = fields[0], fields[3], fields[4]
        name_length, extra_length, comment_length = fields[10:13]
        name_at = at + _ENTRY.size
        extra_at = name_at + name_length
        at = extra_at + extra_length + comment_length
        if magic != b"PK\x01\x02" or at > len(table):
            raise _damaged()
        if flags & _ENCRYPTED or method not in (_STORED, _DEFLATED):
            raise UnreadableFile(
                "foreign-zip", "it is a zip with a password or of a rare kind; unpack it and use what is inside."
            )
        size, packed, place = _long_fields(table[extra_at : extra_at + extra_length], fields[9], fields[8], fields[16])
        if method == _STORED and size != packed:
            raise _damaged()
        name = table[name_at:extra_at].decode("utf-8", "replace")
        yield Record(name=name, at=place, packed=packed, size=size, method=method, crc=fields[7])


def _long_fields(extra: bytes, *short: int) -> tuple[int, ...]:
    """Size, packed size and place; those that do not fit four bytes stand in the zip64 extra field, in this order."""
    if _FULL not in short:
        return short
    longer = _zip64_values(extra)
    fields = tuple(longer.pop(0) if field == _FULL and longer else field for field in short)
    if _FULL in fields:
        raise _damaged()
    return fields


def _zip64_values(extra: bytes) -> list[int]:
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            field = extra[at + 4 : at + 4 + length]
            return [int.from_bytes(field[i : i + 8], "little") for i in range(0, len(field) - 7, 8)]
        at += 4 + length
    return []


def _damaged(how: str = "") -> UnreadableFile:
    detail = f" ({how})" if how else ""
    return UnreadableFile("truncated", f"truncated or damaged zip{detail}; download it again.")
