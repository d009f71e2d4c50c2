"""Embedding data in the pixels of a picture.

Contract: AUTOMATIC1111 stable-diffusion-webui, ``modules/textual_inversion/image_embedding.py``. The picture stands
between two black columns; left of them lie the low, right of them the high halves of the bytes of a zlib stream, in the
low four bits of each colour value, row by row over the whole block, hidden behind a fixed pseudo-random sequence. Black
borders added later are cut off.

An ordinary picture is dismissed without decoding it wherever its header allows: JPEG, GIF and BMP never carry data;
lossy WebP, AVIF and JPEG XL, palette and grey PNG cannot. Of an RGB PNG the first 8 rows are decoded; they hold the
black columns and the start of the stream. Only interlaced PNG, PNG with 8 black rows at the top, and lossless WebP,
AVIF and JPEG XL are decoded whole.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

from ti_fix.errors import UnreadableFile
from ti_fix.formats import picture_headers as headers
from ti_fix.formats.picture_headers import PngHeader, Size
from ti_fix.formats.picture_json import damaged

Pixels = npt.NDArray[np.uint8]

MAX_PIXELS = 8 * 2**20
"""Larger pictures are not decoded; the largest that a WebUI trains on (2048 x 2048) with 75 vectors has 5.4 million."""

MAX_STREAM = 6 * 2**20
"""Bytes of zlib stream that are looked at."""

_PROBE_ROWS = 8
_NIBBLE = np.uint8(0x0F)

_PLUGINS = {
    "webp": (("PIL.WebPImagePlugin", "WebPImageFile"),),
    "avif": (("PIL.AvifImagePlugin", "AvifImageFile"), ("pillow_avif.AvifImagePlugin", "AvifImageFile")),
    "jxl": (("pillow_jxl.JpegXLImagePlugin", "JXLImageFile"),),
}
"""Where the classes live that open a format; called directly, `Image.open` would warn and keep process-wide limits."""

_REMEDIES = {
    "webp": "WebP; install pillow anew",
    "avif": "AVIF; install pillow 11.3 or later, or pillow-avif-plugin",
    "jxl": "JPEG XL; install pillow-jxl-plugin",
}

_DECODER_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RuntimeError,
    EOFError,
    MemoryError,
    struct.error,
    zlib.error,
)
"""What pillow's decoders raise on damaged input, depending on their version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Blocks:
    """Where the two data blocks lie: first row, first columns of the low and the high halves, width of each."""

    top: int
    low: int
    high: int
    width: int


def pixel_stream(kind: str, data: bytes) -> memoryview | None:
    """The zlib stream (with filling after its end) in the pixels, None for a picture without one.

    Args:
        kind: as `picture_headers.picture_kind` says.
        data: the whole file.

    Raises:
        UnreadableFile: the picture very likely holds data, but is damaged, or nothing here can open its format.
    """
    if kind == "png":
        return _from_png(data)
    if kind == "webp":
        data = headers.webp_lossless(data) or b""
        return _from_picture(kind, data, headers.webp_size(data))
    if kind == "avif":
        return _from_picture(kind, data, headers.avif_lossless_size(data))
    return _from_picture(kind, data, headers.jxl_lossless_size(data)) if kind == "jxl" else None


def _from_png(data: bytes) -> memoryview | None:
    header = headers.png_header(data)
    if header is None or not header.is_true_colour or not _is_decodable(header.size):
        return None
    likely = False
    if not header.interlaced and header.size.height > _PROBE_ROWS:
        rows = _first_rows(data, header)
        likely = rows is not None and _find_blocks(rows) is not None
        if not likely and (rows is None or rows.any()):
            return None  # black rows may be a border that was added later; what follows them is not decoded yet
    image = _load(PngImageFile, _bare_png(data[8:33], _idat(data)))
    if image is None and likely:
        raise damaged("its pixels cannot be decoded, the file may be truncated")
    return _from_image(image) if image is not None else None


def _from_picture(kind: str, data: bytes, size: Size | None) -> memoryview | None:
    if size is None or not _is_decodable(size):
        return None
    opener = _opener(kind)
    if opener is None:
        _check_unlikely(kind, size)
        return None
    image = _load(opener, data)
    return _from_image(image) if image is not None else None


def _check_unlikely(kind: str, size: Size) -> None:
    """Raise for a height that suits a WebUI with a width that does not: columns have been added to the picture."""
    if size.height % 8 == 0 and size.width % 8 != 0:
        raise UnreadableFile(
            "missing-decoder",
            f"it is a picture of {size.width} x {size.height} pixels, as those are that hold an embedding, but the "
            f"installed pillow cannot open {_REMEDIES[kind]}, or save the picture as PNG.",
        )


def _is_decodable(size: Size) -> bool:
    return size.width > 3 and 0 < size.width * size.height <= MAX_PIXELS


def _opener(kind: str) -> Any:
    for module, name in _PLUGINS[kind]:
        try:
            plugin = import_module(module)
        except ImportError:
            continue
        if getattr(plugin, "SUPPORTED", True):
            return getattr(plugin, name)
    return None


def _load(opener: Any, data: bytes) -> Image.Image | None:
    """The decoded picture, None where it is damaged or larger than its header said."""
    try:
        image: Image.Image = opener(BytesIO(data))
        if not _is_decodable(Size(width=image.size[0], height=image.size[1])):
            return None
        image.load()
    except _DECODER_ERRORS:
        return None
    return image if image.mode in ("RGB", "RGBA", "RGBX") else None


def _idat(data: bytes) -> list[bytes | memoryview]:
    return [content for kind, content, _ in headers.png_chunks(data) if kind == b"IDAT"]


def _bare_png(ihdr: bytes, idat: list[bytes | memoryview]) -> bytes:
    """A PNG of the header chunk and the pixels only: no other chunk of a stranger's file reaches the decoder."""
    parts: list[bytes | memoryview] = [headers.PNG_SIGNATURE, ihdr]
    for content in idat:
        checksum = zlib.crc32(content, zlib.crc32(b"IDAT"))
        parts += [len(content).to_bytes(4, "big"), b"IDAT", content, checksum.to_bytes(4, "big")]
    return b"".join((*parts, b"\x00\x00\x00\x00IEND\xaeB`\x82"))


def _first_rows(data: bytes, header: PngHeader) -> Pixels | None:
    """The first rows, read from the start of the compressed data, as an array (rows, width, 3)."""
    wanted = _PROBE_ROWS * header.row_bytes
    unpacker = zlib.decompressobj()
    raw = bytearray()
    try:
        for content in _idat(data):
            raw += unpacker.decompress(content, wanted - len(raw))
            if len(raw) >= wanted:
                break
    except zlib.error:
        return None
    if len(raw) < wanted:
        return None
    fields = data[16:20] + _PROBE_ROWS.to_bytes(4, "big") + data[24:29]
    ihdr = b"\x00\x00\x00\x0dIHDR" + fields + zlib.crc32(b"IHDR" + fields).to_bytes(4, "big")
    image = _load(PngImageFile, _bare_png(ihdr, [zlib.compress(raw, 0)]))
    return _array(image) if image is not None else None


def _array(image: Image.Image) -> Pixels:
    return np.asarray(image.convert("RGB"))


def _from_image(image: Image.Image) -> memoryview | None:
    width, height = image.size
    first = _array(image.crop((0, 0, width, min(height, _PROBE_ROWS))))
    blocks = _find_blocks(first if first.any() else _array(image))
    if blocks is None:
        return None
    rows = min(height - blocks.top, -(-MAX_STREAM // (3 * blocks.width)))

    def block(left: int) -> Pixels:
        return _array(image.crop((left, blocks.top, left + blocks.width, blocks.top + rows)))

    stream = _join(block(blocks.low), block(blocks.high))
    return memoryview(stream) if _first_byte(stream) == b"{" else None


def _find_blocks(pixels: Pixels) -> _Blocks | None:
    """The blocks in the first rows of a picture, as it is or with its black borders cut off."""
    lit: npt.NDArray[np.bool_] = np.all(pixels > 0, axis=2)
    rows = np.flatnonzero(lit.any(axis=1))
    if not len(rows):
        return None
    top = int(rows[0])
    columns = np.flatnonzero(lit[top : top + _PROBE_ROWS].any(axis=0))
    whole = _blocks_between(pixels, 0, 0, pixels.shape[1])
    return whole or _blocks_between(pixels, top, int(columns[0]), int(columns[-1]) + 1)


def _blocks_between(pixels: Pixels, top: int, left: int, right: int) -> _Blocks | None:
    """The blocks outside the first and the last column whose low halves are all zero, if a zlib stream starts there."""
    area = pixels[top : top + _PROBE_ROWS, left:right] & _NIBBLE
    black = np.flatnonzero(~area.any(axis=2).any(axis=0))
    if len(black) < 2:
        return None
    width = int(black[0])
    if width == 0 or width != area.shape[1] - 1 - int(black[-1]):
        return None
    first = _first_byte(_join(area[:, :width], area[:, -width:]))
    return _Blocks(top=top, low=left, high=right - width, width=width) if first in (b"", b"{") else None


def _first_byte(stream: bytes) -> bytes | None:
    """First byte that a zlib stream (RFC 1950, section 2.2) holds; empty if it needs more input, None if it is none."""
    if stream[0] & 0x0F != 8 or int.from_bytes(stream[:2], "big") % 31 != 0:
        return None
    try:
        return zlib.decompressobj().decompress(stream, 1)
    except zlib.error:
        return None


def _join(low: Pixels, high: Pixels) -> bytes:
    """The bytes of two blocks of shape (rows, width, 3); only the low four bits of each value count."""
    noise = _noise(low.size).reshape(low.shape)
    joined: Pixels = ((high & _NIBBLE) ^ noise) << np.uint8(4) | ((low & _NIBBLE) ^ noise)
    return joined.tobytes()


def _noise(count: int) -> Pixels:
    """Low four bits of the hiding sequence: x' = 1664525 x + 1013904223 mod 2^32 from 0 on, each x mod 255.

    Made by doubling: n steps of the recurrence are one step with another factor and addend.
    """
    modulus, factor, addend = 2**32, 1664525, 1013904223
    states = np.array([addend], dtype=np.uint32)
    while len(states) < count:
        more = states * np.uint32(factor) + np.uint32(addend)
        states = np.concatenate([states, more])
        factor, addend = factor * factor % modulus, (factor * addend + addend) % modulus
    noise: Pixels = (states[:count] % np.uint32(255)).astype(np.uint8) & _NIBBLE
    return noise
