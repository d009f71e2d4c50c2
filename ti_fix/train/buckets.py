"""Which part of a picture is trained at which size, and what SDXL is told about it.

SDXL was trained with the picture's original size, the crop's corner and the target size as inputs (Podell et al.
2023, arXiv 2307.01952, sections 2.2 and 2.3), so they are told as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from PIL import Image

from ti_fix.protocols import Sizes

WIDEST = 4.0
"""Proportion of the widest and tallest buckets; what is beyond is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One way to cut one picture.

    Attributes:
        picture: place of the picture in its data set.
        original: (height, width) of the picture.
        resized: (height, width) it is brought to.
        crop: (top, left) of the part in the resized picture.
        target: (height, width) of the part: the bucket.
        mirrored: left and right are exchanged afterwards.
    """

    picture: int
    original: tuple[int, int]
    resized: tuple[int, int]
    crop: tuple[int, int]
    target: tuple[int, int]
    mirrored: bool = False

    @property
    def sizes(self) -> Sizes:
        """The size conditioning; for a mirrored view the corner is that in the mirrored picture."""
        top, left = self.crop
        if self.mirrored:
            left = self.resized[1] - self.target[1] - left
        return Sizes(original=self.original, crop=(top, left), target=self.target)

    def cut(self, image: Image.Image) -> Image.Image:
        """The part of the picture, at its size."""
        height, width = self.resized
        if image.size != (width, height):
            image = image.resize((width, height), Image.Resampling.LANCZOS)
        top, left = self.crop
        part = image.crop((left, top, left + self.target[1], top + self.target[0]))
        return part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if self.mirrored else part


def step_of(resolution: int) -> int:
    """Bucket sides are multiples of this: 64 as in SDXL's own training, less for small resolutions."""
    return max(8, min(64, resolution // 64 * 8))


def bucket(original: tuple[int, int], resolution: int, *, square: bool = False) -> tuple[int, int]:
    """(height, width) of the bucket for a picture: nearest in proportion, of an area up to resolution².

    Args:
        original: (height, width) of the picture.
        resolution: side of the square bucket.
        square: cut every picture square.
    """
    step = step_of(resolution)
    if square:
        return resolution // step * step, resolution // step * step
    wanted = min(max(math.log(original[1] / original[0]), -math.log(WIDEST)), math.log(WIDEST))
    return min(_buckets(resolution, step), key=lambda hw: (abs(math.log(hw[1] / hw[0]) - wanted), -hw[0] * hw[1]))


def _buckets(resolution: int, step: int) -> list[tuple[int, int]]:
    """For each width the tallest bucket within the area, and for each height the widest."""
    area = resolution * resolution
    shortest = max(step, int(resolution / math.sqrt(WIDEST)) // step * step)
    found = []
    for width in range(shortest, area // shortest + 1, step):
        height = area // width // step * step
        if height >= shortest:
            found += [(height, width), (width, height)]
    return found


def views(
    picture: int, size: tuple[int, int], resolution: int, *, square: bool, scales: tuple[float, ...], flip: bool
) -> list[View]:
    """All views of one picture.

    Args:
        picture: its place in the data set.
        size: (height, width).
        resolution: of the square bucket.
        square: no buckets.
        scales: 1 is the whole picture but for what the bucket cuts off; below it, crops of that share of each side,
            one in the centre and one towards each corner.
        flip: each view mirrored as well.
    """
    target = bucket(size, resolution, square=square)
    found = [view for scale in scales for view in _at_scale(picture, size, target, scale)]
    return [*found, *(_mirrored(view) for view in found)] if flip else found


def _at_scale(picture: int, size: tuple[int, int], target: tuple[int, int], scale: float) -> list[View]:
    factor = max(target[0] / size[0], target[1] / size[1]) / scale
    resized = max(target[0], round(size[0] * factor)), max(target[1], round(size[1] * factor))
    room = resized[0] - target[0], resized[1] - target[1]
    # a crop that is smaller than the picture also looks at its corners, half of the way out
    places = [(0.5, 0.5)] if scale == 1 else [(0.5, 0.5), (0.25, 0.25), (0.25, 0.75), (0.75, 0.25), (0.75, 0.75)]
    crops = dict.fromkeys((round(room[0] * y), round(room[1] * x)) for y, x in places)
    return [View(picture=picture, original=size, resized=resized, crop=crop, target=target) for crop in crops]


def _mirrored(view: View) -> View:
    return View(
        picture=view.picture,
        original=view.original,
        resized=view.resized,
        crop=view.crop,
        target=view.target,
        mirrored=True,
    )
