"""Where the bytes of a file come from: the disk or memory, always bounded, never by way of the host's loaders.

Hosts wrap `torch.load` and `safetensors.torch.load_file` and rename a file whose path reaches them and fails; nothing
here hands them a path.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from ti_fix.errors import UnreadableFile

READ_WHOLE = 4 * 2**20
"""Files up to this many bytes are read in one go; of larger ones only the parts that are asked for."""


HEAD = 4096
"""Bytes by which a file is told what it is."""


class Source:
    """Random access to the bytes of one file.

    Args:
        where: a path, or the bytes themselves.

    Attributes:
        size: length in bytes.
        head: the first bytes, at most `HEAD`.

    Raises:
        OSError: the file cannot be opened.
        UnreadableFile: it is no file but a device or a pipe.
    """

    __slots__ = ("_data", "_path", "head", "size")

    def __init__(self, where: Path | bytes | bytearray) -> None:
        self._path = where if isinstance(where, Path) else None
        self._data: bytes | bytearray | None
        if isinstance(where, Path):
            self.size, self._data = _read_small(where)
        else:
            self.size, self._data = len(where), where
        self.head = self.read(0, min(HEAD, self.size))

    def read(self, start: int, length: int) -> bytes:
        """`length` bytes from `start`.

        Raises:
            UnreadableFile: the file ends before that.
        """
        if start < 0 or length < 0 or start + length > self.size:
            raise _cut_off()
        if self._data is not None:
            return bytes(memoryview(self._data)[start : start + length])
        with self.open() as stream:
            stream.seek(start)
            data = stream.read(length)
        if len(data) != length:  # it was written to while we looked
            raise _cut_off()
        return data

    def numbers(self, start: int, count: int, dtype: torch.dtype) -> Tensor:
        """`count` little-endian numbers from byte `start` as a 1-D tensor; shares the file's buffer where it can.

        Raises:
            UnreadableFile: the file ends before that.
        """
        if count == 0:
            return torch.empty(0, dtype=dtype)
        end = start + count * dtype.itemsize
        if isinstance(self._data, bytearray) and start % dtype.itemsize == 0 and end <= self.size:
            return torch.frombuffer(self._data, dtype=dtype, count=count, offset=start)
        return self._copy(start, count, dtype)

    def _copy(self, start: int, count: int, dtype: torch.dtype) -> Tensor:
        """The numbers in memory of their own, written there without a detour."""
        length = count * dtype.itemsize
        if self._data is not None or start < 0 or start + length > self.size:
            return torch.frombuffer(bytearray(self.read(start, length)), dtype=dtype)
        numbers = torch.empty(length, dtype=torch.uint8)
        with self.open() as stream:
            stream.seek(start)
            if stream.readinto(numbers.numpy()) != length:  # type: ignore[attr-defined]
                raise _cut_off()
        return numbers.view(dtype)

    def whole(self) -> bytes:
        """All bytes; for formats that cannot be read in parts."""
        return self.read(0, self.size)

    def open(self) -> BinaryIO:
        """A fresh seekable stream over the bytes."""
        if self._data is not None:
            return io.BytesIO(self._data)
        assert self._path is not None
        return open(self._path, "rb", opener=_without_waiting)


def _read_small(path: Path) -> tuple[int, bytearray | None]:
    """Size of a file, and the whole of a small one in a buffer that tensors can share."""
    handle = _without_waiting(os.fspath(path), os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            if stat.S_ISDIR(about.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            raise UnreadableFile("unreadable", "it is a device or a pipe, not a file; remove it or name a file.")
        if about.st_size > READ_WHOLE:
            return about.st_size, None
        data = bytearray(os.read(handle, about.st_size)) if about.st_size else bytearray()
        return len(data), data
    finally:
        os.close(handle)


def _without_waiting(path: str, flags: int) -> int:
    """Opening a pipe would otherwise wait for someone to write into it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _cut_off() -> UnreadableFile:
    return UnreadableFile("truncated", "truncated: it ends before its data does; download it again.")
