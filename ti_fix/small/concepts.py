"""Held-out concepts that words cannot name: unnamed hues, textures, two-tone objects and silhouettes.

Eight values of each kind. The base models have drawn such values but know no word for them, at most a phrase for a
stretch of which they are a part (`scenes.two_words`, `scenes.compass`); the twin was trained on them under invented
names. ``error`` is the yardstick's figure.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ti_fix.small import captions, measure, scenes
from ti_fix.small.captions import Described, Words
from ti_fix.small.scenes import Paint, Thing

KINDS = ("hue", "texture", "two-tone", "shape")
VALUES = 8
_HUES = (78.0, 90.0, 101.0, 150.0, 163.0, 176.0, 190.0, 322.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Concept:
    """One held-out value. ``name`` is the twin's word for it, ``class_word`` the nearest word of the base models."""

    kind: str
    index: int
    name: str
    class_word: str
    hue: float = 0.0
    second_hue: float = 0.0
    period: float = 0.0
    angle: float = 0.0
    lobes: tuple[tuple[int, float, float], ...] = ()
    stretch: float = 1.0
    slant: float = 0.0

    @property
    def slot(self) -> str:
        """Which word of an object's description the concept takes the place of."""
        return {"hue": "colour", "texture": "texture", "two-tone": "texture", "shape": "shape"}[self.kind]

    def draw(self, rng: random.Random, word: str | None = None) -> Described:
        """A scene that shows the concept, described with ``word`` (the concept's own name when None)."""
        while True:
            shape = (
                "blob"
                if self.kind == "shape"
                else rng.choice([s for s in scenes.SHAPES if self.kind == "hue" or s not in ("ring", "cross", "star")])
            )
            colour = rng.choice(tuple(scenes.HUES))
            paint = scenes.colour_paint(colour, rng)
            words: Words = {"shape": shape, "colour": colour}
            look: dict[str, Any] = {}
            if self.kind == "hue":
                paint = Paint(hue=self.hue + rng.gauss(0, 1.5))
            if self.kind == "texture":
                look = {
                    "texture": "striped",
                    "second": Paint(gray=scenes.GRAYS["white"] + rng.gauss(0, 4)),
                    "period": self.period * math.exp(rng.gauss(0, 0.02)),
                    "angle": self.angle + rng.gauss(0, 2),
                    "phase": rng.uniform(0, 2 * math.pi),
                }
            if self.kind == "two-tone":
                del words["colour"]
                paint = Paint(hue=self.hue + rng.gauss(0, 1.5))
                look = {
                    "texture": "split",
                    "second": Paint(hue=self.second_hue + rng.gauss(0, 1.5)),
                    "angle": self.angle + rng.gauss(0, 2),
                }
            if self.kind == "shape":
                look = {"lobes": self.lobes, "stretch": self.stretch, "slant": self.slant}
            words[self.slot] = self.name if word is None else word
            plain = Thing(shape=shape, paint=paint, cx=0, cy=0, radius=rng.uniform(29, 36), turn=rng.gauss(0, 3))
            thing = replace(plain, **look)
            paints = [p for p in (thing.paint, thing.second) if p is not None]
            if any(scenes.clear_of(b, paints) for b in scenes.BACKGROUNDS):
                return captions.compose([thing], [words], rng)

    def errors(self, picture: NDArray[np.uint8] | NDArray[np.float64]) -> dict[str, float]:
        """Named errors of one picture; ``error`` is the kind's single figure (0 = exact, about 1 = missed)."""
        x = np.asarray(picture, float)
        if self.kind == "hue":
            degrees = measure.hue_error(x, self.hue)
            return {"error": degrees / 45, "hue_degrees": degrees}
        if self.kind == "texture":
            octaves, degrees = measure.stripe_errors(x, self.period, self.angle)
            return {"error": (octaves + degrees / 45) / 2, "octaves": octaves, "angle_degrees": degrees}
        if self.kind == "two-tone":
            hues, degrees = measure.two_tone_errors(x, self.hue, self.second_hue, self.angle)
            return {"error": (hues / 45 + degrees / 90) / 2, "hue_degrees": hues, "angle_degrees": degrees}
        overlap = measure.silhouette_error(x, _template(self))
        return {"error": overlap, "one_minus_iou": overlap}


@cache
def _template(concept: Concept) -> measure.Mask:
    thing = Thing(
        shape="blob",
        paint=Paint(),
        cx=64,
        cy=64,
        radius=32,
        lobes=concept.lobes,
        stretch=concept.stretch,
        slant=concept.slant,
    )
    return measure.silhouette(scenes.mask(thing, 1))


def nearest_colour(hue: float) -> str:
    """The colour word nearest to a hue."""
    return min(scenes.HUES, key=lambda w: scenes.hue_distance(scenes.HUES[w], hue))


def _concept(kind: str, index: int, name: str) -> Concept:
    rng = random.Random(f"{kind}{index}")
    if kind == "hue":
        return Concept(kind=kind, index=index, name=name, hue=_HUES[index], class_word=nearest_colour(_HUES[index]))
    if kind == "texture":
        angle = rng.choice((rng.uniform(16, 30), rng.uniform(60, 74), rng.uniform(106, 164)))
        return Concept(
            kind=kind, index=index, name=name, class_word="striped", period=rng.uniform(24, 29.5), angle=angle
        )
    if kind == "two-tone":
        first = _HUES[index]
        second = next(h for h in rng.sample(_HUES, len(_HUES)) if scenes.hue_distance(h, first) > 60)
        return Concept(
            kind=kind,
            index=index,
            name=name,
            class_word="split",
            hue=first,
            second_hue=second,
            angle=rng.choice((20.0, 65.0, 115.0, 160.0, 200.0, 245.0, 295.0, 340.0)),
        )
    while True:
        lobes = scenes.wild_lobes(rng)
        if sum(a for _, a, _ in lobes[1:]) > 0.35 and max(a for _, a, _ in lobes) < 0.5:
            break
    return Concept(
        kind=kind,
        index=index,
        name=name,
        class_word="blob",
        lobes=lobes,
        stretch=math.exp(rng.gauss(0, 0.25)),
        slant=rng.gauss(0, 0.2),
    )


@cache
def concepts(kind: str | None = None) -> tuple[Concept, ...]:
    """All held-out concepts, or those of one kind."""
    names = iter(NAMES)
    made = [_concept(k, i, next(names)) for k in KINDS for i in range(VALUES)]
    return tuple(c for c in made if kind in (None, c.kind))


# one-token words of the CLIP vocabulary that no training caption uses
NAMES = (
    "taster",
    "arose",
    "uncles",
    "prasad",
    "grimsby",
    "umpire",
    "dramas",
    "convey",
    "wanda",
    "trill",
    "banff",
    "osborne",
    "enroll",
    "secular",
    "coded",
    "ethel",
    "motel",
    "seymour",
    "shatter",
    "becca",
    "suresh",
    "declan",
    "uphill",
    "stint",
    "henson",
    "arden",
    "tableau",
    "latam",
    "andes",
    "marissa",
    "maclean",
    "herts",
)
