"""Embeddings hidden in pictures, as AUTOMATIC1111's WebUI writes them: in a PNG text chunk, or in the pixels.

An ordinary picture is no error and costs little: see `picture_pixels` for when its pixels are looked at.
"""

from __future__ import annotations

import base64
import binascii
import zlib

from ti_fix.errors import UnreadableFile
from ti_fix.formats.picture_headers import picture_kind, png_chunks
from ti_fix.formats.picture_json import MAX_JSON, damaged, inflate, read_tree, too_large
from ti_fix.formats.picture_pixels import pixel_stream
from ti_fix.formats.stored import Container

KEYWORD = b"sd-ti-embedding"
"""Keyword of the text chunk that holds the data in base64."""

MAX_FILE = 48 * 2**20
"""Bytes; larger pictures are not looked into: the pixels and the text that are accepted fit in, even uncompressed."""

_MAX_BASE64 = MAX_JSON * 4 // 3 + 4


def is_picture(head: bytes) -> bool:
    """Whether the first bytes (16 or more) are those of a PNG, WebP, JPEG, GIF, BMP, AVIF, HEIC or JPEG XL picture."""
    return picture_kind(head) is not None


def read_picture(data: bytes) -> Container | None:
    """The embedding data inside a picture, None for a picture without any.

    Args:
        data: the whole file.

    Returns:
        A container of kind ``picture``: the dict that the WebUI stored (normally ``string_to_param``, ``name``,
        ``step`` and the checkpoint), its tensors float32. The metadata entry ``picture`` says where the data was.

    Raises:
        UnreadableFile: there is data, and it is damaged or larger than any embedding's.
    """
    kind = picture_kind(data[:16])
    if kind is None or len(data) > MAX_FILE:
        return None
    try:
        text = _text_chunk(data) if kind == "png" else None
        tree = read_tree(_from_base64(text)) if text is not None else None
    except UnreadableFile:
        # The WebUI writes both copies into one picture, so the pixels may still have what the text has lost.
        found = _from_pixels(kind, data)
        if found is None:
            raise
        return found
    if tree is not None:
        return Container(kind="picture", tree=tree, metadata={"picture": "PNG text chunk"})
    return _from_pixels(kind, data)


def _from_pixels(kind: str, data: bytes) -> Container | None:
    stream = pixel_stream(kind, data)
    if stream is None:
        return None
    tree = read_tree(inflate(stream))
    return Container(kind="picture", tree=tree, metadata={"picture": f"pixels of a {kind.upper()} file"})


def _from_base64(text: bytes) -> bytes:
    try:
        return base64.b64decode(text)
    except (binascii.Error, ValueError):
        raise damaged("it is not base64") from None


def _text_chunk(data: bytes) -> bytes | None:
    """The value of the last text chunk with our keyword (PNG specification, section 11.3.3)."""
    found = None
    for kind, content, checksum in png_chunks(data):
        if kind in (b"tEXt", b"zTXt", b"iTXt") and content[: len(KEYWORD) + 1] == KEYWORD + b"\x00":
            found = kind, content, checksum
    if found is None:
        return None
    kind, content, checksum = found
    if len(content) > _MAX_BASE64:
        raise too_large()
    if zlib.crc32(content, zlib.crc32(kind)).to_bytes(4, "big") != checksum:
        raise damaged("wrong checksum, or the file is truncated")
    value = bytes(content[len(KEYWORD) + 1 :])
    return {b"tEXt": _plain, b"zTXt": _packed, b"iTXt": _international}[kind](value)


def _plain(value: bytes) -> bytes:
    return value


def _packed(value: bytes) -> bytes:
    """One byte of method, always 0, then a zlib stream."""
    return inflate(value[1:], _MAX_BASE64)


def _international(value: bytes) -> bytes:
    """A flag, a method, language and translated keyword, each ended by a zero byte, then text or a zlib stream."""
    language_end = value.find(b"\x00", 2)
    keyword_end = value.find(b"\x00", language_end + 1) if language_end >= 0 else -1
    if keyword_end < 0:
        raise damaged("its text chunk is cut off")
    text = value[keyword_end + 1 :]
    return inflate(text, _MAX_BASE64) if value[0] else text
