"""Where the bytes of a file come from: the disk or memory, always bounded, never by way of the host's loaders.

Hosts wrap `torch.load` and `safetensors.torch.load_file` and rename a file whose path reaches them and fails; nothing
here hands them a path.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from ti_fix.errors import UnreadableFile

READ_WHOLE = 4 * 2**20
"""Files up to this many bytes are read in one go; of larger ones only the parts that are asked for."""


class Source:
    """Random access to the bytes of one file.

    Args:
        where: a path, or the bytes themselves.

    Attributes:
        size: length in bytes.

    Raises:
        OSError: the file cannot be opened.
    """

    __slots__ = ("_data", "_path", "size")

    def __init__(self, where: Path | bytes) -> None:
        self._path = where if isinstance(where, Path) else None
        if isinstance(where, bytes):
            self._data: bytes | bytearray | None = where
        else:
            self._data = _read_small(where)
        self.size = len(self._data) if self._data is not None else os.stat(str(where)).st_size

    def read(self, start: int, length: int) -> bytes:
        """`length` bytes from `start`.

        Raises:
            UnreadableFile: the file ends before that.
        """
        if start < 0 or length < 0 or start + length > self.size:
            raise UnreadableFile("truncated", "truncated: it ends before its data does; download it again.")
        if self._data is not None:
            return bytes(memoryview(self._data)[start : start + length])
        with self.open() as stream:
            stream.seek(start)
            return stream.read(length)

    def numbers(self, start: int, count: int, dtype: torch.dtype) -> Tensor:
        """`count` little-endian numbers from byte `start` as a 1-D tensor; shares the file's buffer where it can.

        Raises:
            UnreadableFile: the file ends before that.
        """
        if count == 0:
            return torch.empty(0, dtype=dtype)
        if isinstance(self._data, bytearray) and start % dtype.itemsize == 0:
            if start + count * dtype.itemsize <= self.size:
                return torch.frombuffer(self._data, dtype=dtype, count=count, offset=start)
        return torch.frombuffer(bytearray(self.read(start, count * dtype.itemsize)), dtype=dtype)

    def whole(self) -> bytes:
        """All bytes; for formats that cannot be read in parts."""
        return self.read(0, self.size)

    def open(self) -> BinaryIO:
        """A fresh seekable stream over the bytes."""
        if self._data is not None:
            return io.BytesIO(self._data)
        assert self._path is not None
        return self._path.open("rb")


def _read_small(path: Path) -> bytearray | None:
    """The whole of a small file in a buffer that tensors can share, None for a larger one."""
    with open(path, "rb", buffering=0) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > READ_WHOLE:
            return None
        data = bytearray(size)
        return data[: stream.readinto(data) or 0] if size else data
