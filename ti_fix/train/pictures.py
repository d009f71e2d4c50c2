"""One picture file -> upright RGB pixels and weights of places."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageColor, ImageOps, UnidentifiedImageError
from torch import Tensor

from ti_fix.errors import TiFixError, WrongUse

ENDINGS = frozenset(".png .jpg .jpeg .jpe .jfif .webp .bmp .gif .tif .tiff .avif .jxl".split())

SMALLEST = 16
"""Pixels along the shorter side below which a picture is refused."""


class UnusablePicture(TiFixError):
    """A picture that cannot be trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture ready to be cut.

    Attributes:
        image: upright, mode RGB, transparent parts flattened.
        weight: mode L of the same size, how much each place counts; None where all count alike.
        notes: what was done to it: ``turned``, ``flattened``, ``first frame``, ``16 bit``, ``CMYK``.
    """

    image: Image.Image
    weight: Image.Image | None
    notes: tuple[str, ...]


def open_picture(
    source: Path | Image.Image, *, mask: Path | None = None, alpha: str = "flatten", background: str = "white"
) -> Picture:
    """Read a picture.

    Args:
        source: a file, or a picture in memory.
        mask: a file whose brightness weights the places.
        alpha: ``weight`` makes transparency a weight too.
        background: colour behind transparent parts.

    Raises:
        UnusablePicture: it cannot be read, or is too small.
    """
    try:
        with nullcontext(source) if isinstance(source, Image.Image) else Image.open(source) as image:
            image.load()
            upright = ImageOps.exif_transpose(image)
            turned, frames = image.getexif().get(0x0112, 1) not in (0, 1), getattr(image, "n_frames", 1)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, UnidentifiedImageError) as error:
        reason = "it is no picture" if isinstance(error, UnidentifiedImageError) else str(error)
        raise UnusablePicture(f"{_called(source)} cannot be read ({reason}); save it again or remove it.") from None
    if min(upright.size) < SMALLEST:
        raise UnusablePicture(
            f"{_called(source)} has {upright.width} x {upright.height} pixels; pictures need at least {SMALLEST} on "
            "each side. Remove it."
        )
    rgb, transparency = _flattened(upright, background)
    weight = transparency if alpha == "weight" else None
    if mask is not None:
        found = open_mask(mask)
        found = found if found.size == rgb.size else found.resize(rgb.size, Image.Resampling.BOX)
        weight = _multiplied(weight, found)
    return Picture(image=rgb, weight=weight, notes=tuple(_notes(upright, transparency, turned, frames)))


def _called(source: Path | Image.Image) -> str:
    return source.name if isinstance(source, Path) else "A picture in memory"


def _notes(upright: Image.Image, transparency: Image.Image | None, turned: bool, frames: int) -> list[str]:
    found = {
        "turned": turned,
        "flattened": transparency is not None and transparency.getextrema()[0] != 255,
        "first frame": frames > 1,
        "16 bit": upright.mode.startswith("I"),
        "CMYK": upright.mode == "CMYK",
    }
    return [note for note, holds in found.items() if holds]


def _flattened(image: Image.Image, background: str) -> tuple[Image.Image, Image.Image | None]:
    """RGB, and the alpha channel where there is one."""
    if image.mode.startswith("I"):  # 16 bits of grey, which Pillow would cut off at 255
        return Image.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8)).convert("RGB"), None
    if image.mode == "F":
        raise UnusablePicture("A picture of floating-point numbers cannot be used; save it as PNG.")
    if not _is_transparent(image):
        return image.convert("RGB"), None
    rgba = image.convert("RGBA")
    ground = Image.new("RGBA", rgba.size, (*colour(background), 255))
    return Image.alpha_composite(ground, rgba).convert("RGB"), rgba.getchannel("A")


def _is_transparent(image: Image.Image) -> bool:
    """Whether pixels may be transparent; the Pillow of the WebUIs (9.5) does not tell."""
    palette = getattr(image.palette, "mode", "") if image.mode == "P" else ""
    return image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or palette.endswith("A") or "transparency" in image.info


def colour(text: str) -> tuple[int, int, int]:
    """Red, green and blue of a colour name or #rrggbb.

    Raises:
        WrongUse: no such colour.
    """
    try:
        return ImageColor.getrgb(text)[:3]
    except ValueError:
        raise WrongUse(f"Background {text!r} is no colour; write a name such as white, or #rrggbb.") from None


def open_mask(path: Path) -> Image.Image:
    """Read a mask: upright, mode L, as large as it is.

    Raises:
        UnusablePicture: it cannot be read.
    """
    try:
        with Image.open(path) as image:
            mask: Image.Image = ImageOps.exif_transpose(image).convert("L")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UnusablePicture(f"The mask {path.name} cannot be read ({error}); save it again or remove it.") from None
    return mask


def _multiplied(one: Image.Image | None, other: Image.Image) -> Image.Image:
    if one is None:
        return other
    product = np.asarray(one, np.float32) * np.asarray(other, np.float32) / 255
    return Image.fromarray(product.round().astype(np.uint8))


def to_pixels(image: Image.Image) -> Tensor:
    """An RGB picture as (1, 3, height, width) from -1 to 1."""
    levels = torch.from_numpy(np.array(image, dtype=np.float32)).permute(2, 0, 1)
    return (levels / 127.5 - 1)[None]


def to_weights(image: Image.Image, floor: float) -> Tensor:
    """A weight picture as (1, 1, height, width) from `floor` to 1."""
    levels = torch.from_numpy(np.array(image, dtype=np.float32))[None, None] / 255
    return floor + (1 - floor) * levels
