"""Rendered scenes with known ground truth: the pictures the small models are trained and judged on.

A scene is one or two flat objects on a plain background, 128 x 128 pixels. Everything about it is a number
(hue in degrees, period in pixels, lobe coefficients, ...); the numbers that a caption word covers are *named*
(see :mod:`ti_fix.small.captions`), the others can be drawn but not said, which is what makes Textual Inversion
on them a fair test.
"""

from __future__ import annotations

import colorsys
import math
import random
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

SIZE = 128
SUPERSAMPLE = 2
HUES = {"red": 0.0, "orange": 28.0, "yellow": 54.0, "green": 125.0, "blue": 225.0, "purple": 280.0}
GRAYS = {"white": 240.0, "black": 22.0, "gray": 128.0}
COLOURS = (*HUES, "white", "black")
BACKGROUNDS = ("white", "black", "gray", *HUES)
SHAPES = ("circle", "square", "triangle", "star", "cross", "ring", "heart", "diamond")
TEXTURES = ("striped", "dotted", "checkered")
HUE_BAND = 9.0  # a colour word covers its hue +- this many degrees
UNNAMED_HUES = ((76.0, 104.0), (146.0, 204.0), (302.0, 340.0))  # far from every colour word
FINE, COARSE = (20.0, 23.0), (31.0, 38.0)  # texture periods in pixels with a word; between them there is none
STRETCH = 1.5  # "tall" and "wide" scale the axes by sqrt of this
SLANT = 0.45  # horizontal shear of "slanted"
COMPASS = ("east", "south east", "south", "south west", "west", "north west", "north", "north east")
# words for silhouettes of lobes that no other word describes: what they mean is only what is drawn under them
SILHOUETTES = tuple(
    "leaf apple egg boat fish bird bear cat dog cloud stone bone shoe hat bell key nut bread cake tree flower duck "
    "horse pig cow skull brain hand foot ear nose rocket drum cup pot bottle".split()
)
LOBES = {"three": 3, "four": 4, "five": 5}
SMALL, LARGE = (20.0, 24.0), (37.0, 43.0)  # radii in pixels with a word
PLACES = {"left": (0.3, 0.5), "right": (0.7, 0.5), "top": (0.5, 0.3), "bottom": (0.5, 0.7)}
# word pairs that are never rendered together while a model trains: obedience on them is zero-shot
HELD_OUT_PAIRS = frozenset(
    {
        ("orange", "star"),
        ("purple", "heart"),
        ("green", "ring"),
        ("red", "cross"),
        ("blue", "diamond"),
        ("yellow", "triangle"),
        ("white", "circle"),
        ("black", "square"),
    }
)

Pixels = NDArray[np.uint8]
Points = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Paint:
    """A flat colour: a hue in degrees, or a gray level when ``hue`` is None."""

    hue: float | None = None
    gray: float = 0.0
    saturation: float = 0.85
    value: float = 0.92

    def rgb(self) -> NDArray[np.float64]:
        """RGB in 0..255, shape (3,)."""
        if self.hue is None:
            return np.full(3, self.gray)
        return np.array(colorsys.hsv_to_rgb(self.hue % 360 / 360, self.saturation, self.value)) * 255


@dataclass(frozen=True, kw_only=True, slots=True)
class Thing:
    """One object. Lengths are pixels of the 128-pixel picture, angles degrees."""

    shape: str
    paint: Paint
    cx: float
    cy: float
    radius: float
    turn: float = 0.0
    stretch: float = 1.0
    slant: float = 0.0
    lobes: tuple[tuple[int, float, float], ...] = ()  # (k, amplitude, phase) of a "blob"
    texture: str = "solid"
    second: Paint | None = None
    period: float = 28.0
    angle: float = 0.0
    phase: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """Objects in caption order (left before right, upper before lower) and the background."""

    things: tuple[Thing, ...]
    background: Paint


def hue_distance(a: float, b: float) -> float:
    """Distance on the colour circle in degrees, 0..180."""
    return abs((a - b + 180) % 360 - 180)


def _polar(radius: NDArray[np.float64], angle: NDArray[np.float64]) -> Points:
    return np.stack([radius * np.sin(angle), -radius * np.cos(angle)], 1)


def _heart() -> Points:
    t = np.linspace(0, 2 * math.pi, 60, endpoint=False)
    x = 16 * np.sin(t) ** 3
    y = -(13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t))
    return np.stack([x, y], 1) * (1.1 / 15)


def _cross() -> Points:
    t, e = 0.36, 1.1
    return np.array(
        [(-t, -e), (t, -e), (t, -t), (e, -t), (e, t), (t, t), (t, e), (-t, e), (-t, t), (-e, t), (-e, -t), (-t, -t)]
    )


def lobed_radius(lobes: tuple[tuple[int, float, float], ...], angle: NDArray[np.float64]) -> NDArray[np.float64]:
    """Radius of a blob outline per angle (radians, 0 = up), rms-normalised."""
    r = np.ones_like(angle)
    for k, amplitude, phase in lobes:
        r = r + amplitude * np.cos(k * (angle - phase))
    r = np.clip(r, 0.25, 2.2)
    return r / math.sqrt(float((r * r).mean()))


def outline(thing: Thing) -> Points:
    """Polygon around the origin, y down, unit scale, with stretch, slant and turn applied; shape (n, 2)."""
    turn = np.arange
    unit = {
        "square": lambda: _polar(np.full(4, 1.15), math.pi / 4 + turn(4) * math.pi / 2),
        "diamond": lambda: _polar(np.where(turn(4) % 2 == 0, 1.2, 0.65), turn(4) * math.pi / 2),
        "triangle": lambda: _polar(np.full(3, 1.2), turn(3) * 2 * math.pi / 3),
        "star": lambda: _polar(np.where(turn(10) % 2 == 0, 1.3, 0.55), turn(10) * math.pi / 5),
        "cross": _cross,
        "heart": _heart,
    }
    angle = np.linspace(0, 2 * math.pi, 72, endpoint=False)
    points = unit[thing.shape]() if thing.shape in unit else _polar(lobed_radius(thing.lobes, angle), angle)
    s, a = math.sqrt(thing.stretch), math.radians(thing.turn)
    points = points * np.array([1 / s, s])
    points = np.stack([points[:, 0] - thing.slant * points[:, 1], points[:, 1]], 1)
    rotate = np.array([[math.cos(a), math.sin(a)], [-math.sin(a), math.cos(a)]])
    return points @ rotate


def mask(thing: Thing, scale: int = SUPERSAMPLE) -> NDArray[np.bool_]:
    """Silhouette at ``scale`` times the picture size."""
    side = SIZE * scale
    image = Image.new("L", (side, side))
    draw = ImageDraw.Draw(image)
    centre = np.array([thing.cx, thing.cy])
    points = outline(thing) * thing.radius

    def polygon(p: Points, fill: int) -> None:
        draw.polygon([(float(x), float(y)) for x, y in (p + centre) * scale], fill=fill)

    polygon(points, 255)
    if thing.shape == "ring":
        polygon(points * 0.52, 0)
    return np.asarray(image) > 127


_GRID = np.mgrid[0 : SIZE * SUPERSAMPLE, 0 : SIZE * SUPERSAMPLE] / SUPERSAMPLE


def _second_region(thing: Thing) -> NDArray[np.bool_]:
    """Where the second colour of a textured or two-tone object goes."""
    a = math.radians(thing.angle)
    y, x = _GRID[0] - thing.cy, _GRID[1] - thing.cx
    u, v = x * math.cos(a) + y * math.sin(a), -x * math.sin(a) + y * math.cos(a)
    if thing.texture == "split":
        return u < 0
    w = 2 * math.pi / thing.period
    wave_u, wave_v = np.sin(w * u + thing.phase), np.sin(w * v + thing.phase)
    if thing.texture == "striped":
        return wave_u < 0
    if thing.texture == "checkered":
        return wave_u * wave_v < 0
    return wave_u + wave_v > 0.75  # dotted


def render(scene: Scene) -> Pixels:
    """The picture, (128, 128, 3) uint8; a pure function of the scene."""
    side = SIZE * SUPERSAMPLE
    canvas = np.empty((side, side, 3))
    canvas[:] = scene.background.rgb()
    for thing in scene.things:
        inside = mask(thing)
        canvas[inside] = thing.paint.rgb()
        if thing.texture != "solid" and thing.second is not None:
            canvas[inside & _second_region(thing)] = thing.second.rgb()
    small = canvas.reshape(SIZE, SUPERSAMPLE, SIZE, SUPERSAMPLE, 3).mean((1, 3))
    return small.clip(0, 255).round().astype(np.uint8)


def colour_paint(word: str, rng: random.Random) -> Paint:
    """A colour that the word covers."""
    if word in GRAYS:
        return Paint(gray=GRAYS[word] + rng.gauss(0, 4))
    return Paint(hue=HUES[word] + rng.uniform(-HUE_BAND, HUE_BAND))


def unnamed_paint(rng: random.Random) -> Paint:
    """A colour that no single word covers."""
    while True:
        paint = Paint(hue=rng.uniform(0, 360))
        if min(hue_distance(each, paint.hue or 0) for each in HUES.values()) > HUE_BAND:
            return paint


def seen_colour(paint: Paint) -> str | None:
    """The colour word that covers a paint, "unnamed" far from all of them, None where it could be taken for either."""
    if paint.hue is None:
        return min(("white", "black"), key=lambda word: abs(GRAYS[word] - paint.gray))
    hue = paint.hue % 360
    if any(low <= hue <= high for low, high in UNNAMED_HUES):
        return "unnamed"
    return next((word for word, centre in HUES.items() if hue_distance(centre, hue) <= HUE_BAND), None)


def two_words(paint: Paint) -> str:
    """The colour words on both sides of a hue, the nearer one last: "yellow green" is a green."""
    hue = paint.hue or 0
    below = min(HUES, key=lambda word: (hue - HUES[word]) % 360)
    above = min(HUES, key=lambda word: (HUES[word] - hue) % 360)
    near, other = sorted((below, above), key=lambda word: hue_distance(HUES[word], hue))
    return f"{other} {near}"


def background_paint(word: str, rng: random.Random) -> Paint:
    """Backgrounds are duller than objects, so that an object of the same hue would still be seen."""
    if word in GRAYS:
        return Paint(gray=GRAYS[word] + rng.gauss(0, 4))
    return Paint(hue=HUES[word] + rng.gauss(0, 4), saturation=0.6, value=0.62 + rng.gauss(0, 0.015))


def clear_of(background: str, paints: list[Paint]) -> bool:
    """Whether the objects stand out from the background."""
    for paint in paints:
        if paint.hue is None:
            if background in GRAYS and abs(GRAYS[background] - paint.gray) < 60:
                return False
        elif background in HUES and hue_distance(HUES[background], paint.hue) < 32:
            return False
    return True


def wild_lobes(rng: random.Random) -> tuple[tuple[int, float, float], ...]:
    """Lobe coefficients of a blob that no word describes."""
    return tuple((k, abs(rng.gauss(0, 0.42 / k**0.75)), rng.uniform(0, 2 * math.pi / k)) for k in (2, 3, 4, 5))


@cache
def silhouette_form(word: str) -> dict[str, Any]:
    """Lobes, stretch and slant of one of the `SILHOUETTES`."""
    rng = random.Random(f"silhouette {word}")
    return {"lobes": wild_lobes(rng), "stretch": math.exp(rng.gauss(0, 0.25)), "slant": rng.gauss(0, 0.2)}


def compass(angle: float) -> str:
    """The nearest of the eight points of the compass; 0 degrees is east, 90 south (y runs down)."""
    return COMPASS[round(angle % 360 / 45) % 8]


def plain_lobes(lobes: int, rng: random.Random) -> tuple[tuple[int, float, float], ...]:
    """Lobe coefficients of a "three lobed", ... blob: one strong wave, pointing up."""
    return ((lobes, rng.uniform(0.26, 0.36), rng.gauss(0, 0.25 / lobes)),)
