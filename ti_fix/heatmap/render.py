"""Maps as pictures: an overlay for each word, and a sheet of them."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from ti_fix.errors import printable
from ti_fix.heatmap.capture import WordMaps

COLOURS = np.array(
    [(0, 0, 4), (60, 9, 101), (135, 32, 107), (203, 65, 73), (245, 125, 21), (249, 201, 50), (252, 255, 164)], float
)
"""From nothing to most; dark to light, so that it also reads without colour."""

Levels = NDArray[np.float64]
STRENGTH = 0.65
LEAST_CONTRAST = 0.01
"""Share of the largest value: a map that varies less is shown as it is, flat, and not as enlarged rounding."""

LABEL = 22
"""Height of a label in pixels."""

COLUMNS = 4


def coloured(map_: Tensor, size: tuple[int, int]) -> Image.Image:
    """A map in colours from its smallest to its largest value.

    Args:
        map_: (height, width).
        size: width and height of the picture.
    """
    return Image.fromarray(_colours(_levels(map_, size)).round().astype(np.uint8))


def overlay(picture: Image.Image, map_: Tensor, strength: float = STRENGTH) -> Image.Image:
    """The map over the picture: places that the word acted on stay bright and take colour, others go grey and dark.

    Args:
        picture: of any size.
        map_: (height, width).
        strength: 0 (the picture alone) … 1 (the map alone, where it is strongest).
    """
    plain = picture.convert("RGB")
    levels = _levels(map_, plain.size)
    grey = np.asarray(plain.convert("L"), dtype=float)[..., None] * (0.35 + 0.65 * levels[..., None])
    share = strength * np.sqrt(levels)[..., None]
    mixed = grey * (1 - share) + _colours(levels) * share
    return Image.fromarray(mixed.round().clip(0, 255).astype(np.uint8))


def sheet(picture: Image.Image, found: WordMaps, columns: int = COLUMNS) -> Image.Image:
    """The picture and an overlay for each word, with labels, in a grid."""
    plain = picture.convert("RGB")
    tiles = [("", plain), *((w, overlay(plain, m)) for w, m in zip(found.words, found.maps, strict=True))]
    width, height = plain.size
    rows = -(-len(tiles) // columns)
    board = Image.new("RGB", (min(columns, len(tiles)) * width, rows * (height + LABEL)), (24, 24, 27))
    draw = ImageDraw.Draw(board)
    for number, (label, tile) in enumerate(tiles):
        left, top = number % columns * width, number // columns * (height + LABEL)
        board.paste(tile, (left, top + LABEL))
        written = printable(label, 60).encode("latin-1", "replace").decode("latin-1")  # what Pillow's own font has
        draw.text((left + 6, top + 4), written, fill=(235, 235, 235), font=ImageFont.load_default())
    return board


def _levels(map_: Tensor, size: tuple[int, int]) -> Levels:
    """The map at a picture's size, 0…1."""
    whole = F.interpolate(map_[None, None].float(), size=(size[1], size[0]), mode="bicubic", align_corners=False)[0, 0]
    low, high = torch.aminmax(whole)
    contrast = (high - low).clamp(min=float(high) * LEAST_CONTRAST + 1e-12)
    return ((whole - low) / contrast).numpy().astype(float)


def _colours(levels: Levels) -> Levels:
    places = np.linspace(0, 1, len(COLOURS))
    return np.stack([np.interp(levels, places, COLOURS[:, channel]) for channel in range(3)], axis=-1)
