"""What the first bytes of a picture tell: its format, its size, and whether it keeps every bit of its pixels.

Sources: PNG specification, third edition (W3C), sections 5 and 11; WebP container and lossless bitstream (RFC 9649);
AVIF 1.1 with ISO/IEC 14496-12 boxes and the code points of ITU-T H.273; JPEG XL, ISO/IEC 18181-1 annex D and -2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"

MAX_CHUNKS = 65_536
"""Parts of a file that are walked over; the pixels of a PNG of 32 MB, in libpng's 8 KB pieces, are 4,096."""

_JXL_BOX = b"\x00\x00\x00\x0cJXL \r\n\x87\n"
_BRANDS = frozenset({b"avif", b"avis", b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1"})
_LOSSLESS_MATRICES = frozenset({0, 8, 16, 17})
"""H.273 matrix coefficients that take RGB back without rounding: identity, YCgCo, YCgCo-Re and -Ro."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Pixels of a picture."""

    width: int
    height: int


def picture_kind(head: bytes) -> str | None:
    """``png``, ``webp``, ``jpeg``, ``gif``, ``bmp``, ``avif`` (and HEIC), ``jxl``, or None for no picture.

    Args:
        head: the first 16 bytes or more.
    """
    if head.startswith(PNG_SIGNATURE):
        return "png"
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "webp"
    if head.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    if head.startswith(b"BM") and head[6:10] == b"\x00\x00\x00\x00":
        return "bmp"
    if head[4:8] == b"ftyp" and head[8:12] in _BRANDS:
        return "avif"
    return "jxl" if head.startswith((b"\xff\x0a", _JXL_BOX)) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PngHeader:
    """IHDR of a PNG file."""

    size: Size
    depth: int
    colour: int
    interlaced: bool

    @property
    def is_true_colour(self) -> bool:
        """RGB or RGBA; palettes and grey cannot hold three free values a pixel."""
        return self.colour in (2, 6) and self.depth in (8, 16)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row before compression, with the filter byte that precedes it."""
        return 1 + self.size.width * (3 if self.colour == 2 else 4) * self.depth // 8


def png_chunks(data: bytes) -> Iterator[tuple[bytes, memoryview, bytes]]:
    """Type, content and checksum of each chunk; a chunk that the file cuts off comes with what is there of it."""
    view = memoryview(data)
    at = len(PNG_SIGNATURE)
    for _ in range(MAX_CHUNKS):
        if at + 8 > len(data):
            return
        length, kind = int.from_bytes(view[at : at + 4], "big"), bytes(view[at + 4 : at + 8])
        end = at + 8 + length
        yield kind, view[at + 8 : end], bytes(view[end : end + 4])
        if kind == b"IEND":
            return
        at = end + 4


def png_header(data: bytes) -> PngHeader | None:
    """The header, None where the file does not begin with one."""
    if len(data) < 33 or data[12:16] != b"IHDR":
        return None
    size = Size(width=int.from_bytes(data[16:20], "big"), height=int.from_bytes(data[20:24], "big"))
    return PngHeader(size=size, depth=data[24], colour=data[25], interlaced=data[28] != 0)


def webp_lossless(data: bytes) -> bytes | None:
    """The lossless bitstream of a still WebP as a file of its own; None for lossy and animated ones."""
    at = 12
    for _ in range(MAX_CHUNKS):
        kind, length = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        if kind in (b"VP8 ", b"ANIM", b"ANMF"):
            return None
        if kind == b"VP8L":
            chunk = data[at : at + 8 + length + length % 2]
            return b"RIFF" + (len(chunk) + 4).to_bytes(4, "little") + b"WEBP" + chunk
        if not kind:
            return None
        at += 8 + length + length % 2
    return None


def webp_size(lossless: bytes) -> Size | None:
    """Size of a file that `webp_lossless` returned."""
    if len(lossless) < 25 or lossless[20] != 0x2F:
        return None
    bits = int.from_bytes(lossless[21:25], "little")
    return Size(width=(bits & 0x3FFF) + 1, height=(bits >> 14 & 0x3FFF) + 1)


def avif_lossless_size(data: bytes) -> Size | None:
    """Size of an AVIF picture whose colours are coded reversibly; None for all others.

    The two boxes are searched for in the first 4 KB instead of walked to: a wrong hit only costs a look at the pixels.
    """
    head = data[:4096]
    colour = re.search(rb"colrnclx.{4}(.{2})", head, re.DOTALL)
    extent = re.search(rb"ispe\x00{4}(.{8})", head, re.DOTALL)
    if not colour or not extent or int.from_bytes(colour[1], "big") not in _LOSSLESS_MATRICES:
        return None
    return Size(width=int.from_bytes(extent[1][:4], "big"), height=int.from_bytes(extent[1][4:], "big"))


def jxl_lossless_size(data: bytes) -> Size | None:
    """Size of a JPEG XL picture that can be lossless; None where its header says that it is not, or is unusual.

    Lossy pictures are coded in the XYB colour space, or are repacked JPEG files (box ``jbrd``).
    """
    stream = _jxl_stream(data)
    if stream is None:
        return None
    bits = _Bits(stream)
    size = _jxl_size(bits)
    if bits.take(1) or bits.take(1):  # all defaults, so XYB; or orientation, preview, animation: not from a WebUI
        return None
    if bits.take(1) or bits.choose((8, 0), (10, 0), (12, 0), (1, 6)) != 8:  # floats, or more than 8 bits
        return None
    bits.take(1)
    channels = bits.choose((0, 0), (1, 0), (2, 4), (1, 12))
    if channels > 1 or (channels == 1 and not bits.take(1)):  # more than a plain alpha channel
        return None
    return None if bits.take(1) else size


def _jxl_stream(data: bytes) -> bytes | None:
    """The first 64 bytes of the codestream after its signature, bare or in the first box that carries it.

    Boxes are walked, not searched for: the plugin decodes on opening, so the size found here has to be the true one.
    """
    if data.startswith(b"\xff\x0a"):
        return data[2:66]
    found, at = None, 0
    for _ in range(MAX_CHUNKS):
        length, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        if found is None and kind in (b"jxlc", b"jxlp"):  # the latter with a 4-byte index before its part of the stream
            start = at + (8 if kind == b"jxlc" else 12)
            found = data[start + 2 : start + 66] if data[start : start + 2] == b"\xff\x0a" else b""
        if kind == b"jbrd":
            return None
        if length < 8:  # 0: up to the end of the file, which an empty slice past it reads as too
            break
        at += length
    return found or None


class _Bits:
    """Bits of a byte string, least significant first; zeros after its end."""

    def __init__(self, data: bytes) -> None:
        self._value = int.from_bytes(data, "little")

    def take(self, count: int) -> int:
        taken = self._value & ((1 << count) - 1)
        self._value >>= count
        return taken

    def choose(self, *ways: tuple[int, int]) -> int:
        """JPEG XL's U32: two bits choose an (offset, further bits) pair."""
        offset, count = ways[self.take(2)]
        return offset + self.take(count)


_JXL_RATIOS = ((1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))


def _jxl_size(bits: _Bits) -> Size:
    small = bits.take(1)

    def length() -> int:
        return 8 * (bits.take(5) + 1) if small else bits.choose((1, 9), (1, 13), (1, 18), (1, 30))

    height = length()
    ratio = bits.take(3)
    if ratio == 0:
        return Size(width=length(), height=height)
    over, under = _JXL_RATIOS[ratio - 1]
    return Size(width=height * over // under, height=height)
