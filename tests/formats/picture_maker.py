"""Pictures with embedding data, made from the contract alone and without the product's code.

Written loop by loop, so that a mistake in the reader's array arithmetic cannot hide in both.
"""

from __future__ import annotations

import base64
import io
import json
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image


def hiding_values(count: int) -> list[int]:
    """The low four bits of the first `count` values of the hiding sequence."""
    seed, values = 0, []
    for _ in range(count):
        seed = (1664525 * seed + 1013904223) % 4294967296
        values.append((seed % 255) & 15)
    return values


def text_of(tree: dict[str, Any]) -> bytes:
    return json.dumps(tree).encode()


def a1111(vectors: np.ndarray, name: str = "hidden") -> dict[str, Any]:
    """The dict that the WebUI stores for one embedding."""
    return {
        "string_to_token": {"*": 265},
        "string_to_param": {"*": {"TORCHTENSOR": vectors.tolist()}},
        "name": name,
        "step": 500,
        "sd_checkpoint": "6ce0161689",
        "sd_checkpoint_name": "v1-5",
    }


def vectors(rows: int, width: int = 768, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((rows, width)) * 0.0135).astype(np.float32)


def photo(width: int, height: int, seed: int = 7) -> np.ndarray:
    """Smooth colours with some grain, as a generated picture has."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(40, 250, (8, 8, 3), dtype=np.uint8))
    smooth = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    return np.clip(smooth + rng.integers(-6, 7, smooth.shape), 0, 255).astype(np.uint8)


def hide(picture: np.ndarray, stream: bytes) -> np.ndarray:
    """`picture` (height, width, 3) with `stream` in columns to its left (low halves) and right (high halves)."""
    height = picture.shape[0]
    width = -(-len(stream) // (3 * height))
    count = 3 * width * height
    filled = (stream * (count // len(stream) + 1))[:count]
    hiding = hiding_values(count)
    shades = [(i * 37) & 0xF0 for i in range(count)]
    low = [s | (b & 15) ^ h for s, b, h in zip(shades, filled, hiding, strict=True)]
    high = [s | (b >> 4) ^ h for s, b, h in zip(shades, filled, hiding, strict=True)]
    black = np.zeros((height, 1, 3), np.uint8)
    blocks = [np.array(values, np.uint8).reshape(height, width, 3) for values in (low, high)]
    return np.concatenate([blocks[0], black, picture, black, blocks[1]], axis=1)


def pixels_with(tree: dict[str, Any], width: int = 48, height: int = 64) -> np.ndarray:
    return hide(photo(width, height), zlib.compress(text_of(tree), 9))


def saved(pixels: np.ndarray, form: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, form, **options)
    return out.getvalue()


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png_with_chunk(kind: bytes, content: bytes, *, last: bool = False) -> bytes:
    """A small PNG with one more chunk, before its pixels or after them."""
    plain = saved(photo(16, 16))
    at = len(plain) - 12 if last else 33
    return plain[:at] + chunk(kind, content) + plain[at:]


def text_chunk(text: bytes, kind: bytes = b"tEXt") -> bytes:
    """Content of a ``tEXt``, ``zTXt``, ``iTXt`` or packed ``iTXz`` chunk with the JSON `text` in base64."""
    value, keyword = base64.b64encode(text), b"sd-ti-embedding\x00"
    if kind == b"zTXt":
        return keyword + b"\x00" + zlib.compress(value)
    if kind == b"iTXt":
        return keyword + b"\x00\x00en\x00\x00" + value
    if kind == b"iTXz":
        return keyword + b"\x01\x00\x00\x00" + zlib.compress(value)
    return keyword + value
