"""Captions of rendered scenes: which words a scene has, and every length and order in which they can be said."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace

from ti_fix.small import scenes
from ti_fix.small.scenes import Paint, Scene, Thing

Words = dict[str, str]

# said beside the content, at any place and length: the models must not read words by absolute position
FILLERS = (
    "simple",
    "clean",
    "flat",
    "minimal",
    "detailed",
    "sharp",
    "crisp",
    "clear",
    "high quality",
    "best quality",
    "digital art",
    "vector art",
    "graphic design",
    "illustration",
    "icon",
    "masterpiece",
    "professional",
    "centered",
    "geometric",
    "modern",
    "studio",
    "bright",
    "colorful",
    "vivid",
    "neat",
    "plain",
    "basic",
    "lovely",
    "nice",
    "good",
    "new",
    "old",
    "pretty",
    "beautiful",
    "cute",
    "fresh",
    "smooth",
    "bold",
    "quiet",
    "calm",
    "a a a",
    "the",
    "very",
    "really",
    "nothing else",
    "no text",
    "no people",
    "no shadow",
    "one picture",
    "a test",
)
STARTS = (
    "a picture of ",
    "an image of ",
    "a photo of ",
    "a drawing of ",
    "an illustration of ",
    "a view of ",
    "here is ",
    "there is ",
    "we see ",
    "this is ",
    "",
    "",
    "",
    "",
    "",
    "",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Described:
    """A scene with the words that are true of it: ``words[i]`` belongs to ``scene.things[i]``."""

    scene: Scene
    words: tuple[Words, ...]
    background: str
    layout: str  # "one", "beside" or "above"
    extra: Words = field(default_factory=dict)


def _maybe(rng: random.Random, chance: float) -> bool:
    return rng.random() < chance


def _between(rng: random.Random) -> tuple[Paint, str]:
    """A hue that no single word covers, with the two words around it ("" where it is left unsaid).

    Were such hues never said, a caption without a colour would mean "one of them", and a learned vector would find
    that class instead of a hue.
    """
    paint = scenes.unnamed_paint(rng)
    return paint, scenes.two_words(paint) if _maybe(rng, 0.6) else ""


def _colour(rng: random.Random, words: Words, shape: str) -> Paint:
    if _maybe(rng, 0.24):
        paint, said = _between(rng)
        if said:
            words["colour"] = said
        return paint
    while True:
        word = rng.choice(scenes.COLOURS)
        if (word, shape) not in scenes.HELD_OUT_PAIRS:
            break
    if not _maybe(rng, 0.12):
        words["colour"] = word
    return scenes.colour_paint(word, rng)


def _period(rng: random.Random, words: Words) -> float:
    grain = rng.choice(("fine", "coarse", None))
    if grain is None:
        return rng.uniform(scenes.FINE[0], scenes.COARSE[1])
    words["grain"] = grain
    return rng.uniform(*(scenes.FINE if grain == "fine" else scenes.COARSE))


def _direction(rng: random.Random, words: Words, split: bool) -> float:
    """Angle of the pattern's normal; stripes are "vertical" when the normal is horizontal.

    Of two halves it is the way from the second to the first, and its word a compass point: "north" is up.
    """
    if split:
        angle = rng.uniform(0, 360)
        if _maybe(rng, 0.6):
            words["direction"] = scenes.compass(angle)
        return angle
    named = {"vertical": 0.0, "horizontal": 90.0, "diagonal": 45.0}
    word = rng.choice((*named, None, None))
    if word is None:
        return rng.uniform(0, 180)
    words["direction"] = word
    return named[word] + rng.gauss(0, 3)


def _second(rng: random.Random, first: Paint, words: Words) -> Paint:
    """Second colour, clear of the first; white unless said otherwise."""
    while True:
        word = rng.choice(scenes.COLOURS) if words.get("texture") == "split" or _maybe(rng, 0.4) else "white"
        if words.get("texture") == "split" and _maybe(rng, 0.16):
            paint, name = _between(rng)
        else:
            paint, name = scenes.colour_paint(word, rng), word
        if first.hue is not None and paint.hue is not None:
            apart = scenes.hue_distance(first.hue, paint.hue) > 40
        else:
            apart = (first.hue is None) != (paint.hue is None) or abs(first.gray - paint.gray) > 60
        if apart:
            if name and (name != "white" or words.get("texture") == "split" or _maybe(rng, 0.5)):
                words["second"] = name
            return paint


def _form(rng: random.Random, shape: str, words: Words) -> dict[str, object]:
    """Stretch, slant and lobes, with their words."""
    form: dict[str, object] = {"turn": rng.gauss(0, 4)}
    if shape == "blob" and _maybe(rng, 0.42):
        words["shape"] = rng.choice(scenes.SILHOUETTES)
        return form | scenes.silhouette_form(words["shape"])
    if shape == "blob" and _maybe(rng, 0.48):
        form["lobes"] = scenes.wild_lobes(rng)
        form["stretch"] = math.exp(rng.gauss(0, 0.25))
        form["slant"] = rng.gauss(0, 0.2)
        return form
    if shape == "blob":
        words["lobes"] = rng.choice(tuple(scenes.LOBES))
        form["lobes"] = scenes.plain_lobes(scenes.LOBES[words["lobes"]], rng)
    if _maybe(rng, 0.3):
        words["stretch"] = rng.choice(("tall", "wide"))
        form["stretch"] = scenes.STRETCH ** (1 if words["stretch"] == "tall" else -1) * math.exp(rng.gauss(0, 0.05))
    if _maybe(rng, 0.18) and shape != "ring":
        words["slant"] = "slanted"
        form["slant"] = scenes.SLANT + rng.gauss(0, 0.04)
    return form


def draw_thing(rng: random.Random, crowded: bool, shape: str | None = None) -> tuple[Thing, Words]:
    """One object at the origin (cx = cy = 0) with its words; ``crowded`` objects are smaller and often plain."""
    shape = shape or ("blob" if _maybe(rng, 0.34) else rng.choice(scenes.SHAPES))
    words: Words = {"shape": shape}
    paint = _colour(rng, words, shape)
    form = _form(rng, shape, words)
    radius = rng.uniform(20, 26) if crowded else rng.uniform(26, 36)
    if not crowded and _maybe(rng, 0.25):
        words["size"] = rng.choice(("small", "large"))
        radius = rng.uniform(*(scenes.SMALL if words["size"] == "small" else scenes.LARGE))
    look: dict[str, object] = {}
    if _maybe(rng, 0.12 if crowded else 0.42):
        words["texture"] = rng.choice((*scenes.TEXTURES, "split"))
        look["texture"] = words["texture"]
        look["second"] = _second(rng, paint, words)
        look["angle"] = _direction(rng, words, words["texture"] == "split")
        if words["texture"] != "split":
            look["period"] = _period(rng, words)
            look["phase"] = rng.uniform(0, 2 * math.pi)
            radius = max(radius, 25.0)
            if words.get("size") == "small":
                del words["size"]
    thing = Thing(shape=shape, paint=paint, cx=0.0, cy=0.0, radius=radius, **form, **look)  # type: ignore[arg-type]
    return thing, words


def place(thing: Thing, at: tuple[float, float], rng: random.Random, jitter: float = 4.0) -> Thing:
    """Move an object to a place (fractions of the picture), kept inside the frame and out of its neighbour's half."""
    reach = abs(scenes.outline(thing)).max(0)
    room = scenes.SIZE / 2 - 2 if at == (0.5, 0.5) else scenes.SIZE / 4 + 1
    thing = replace(thing, radius=min(thing.radius, room / float(reach.max()))) if at != (0.5, 0.5) else thing
    half = reach * thing.radius + 2
    spots = []
    for fraction, extent in zip(at, half, strict=True):
        spot = fraction * scenes.SIZE + rng.uniform(-jitter, jitter)
        spots.append(
            min(max(spot, float(extent)), scenes.SIZE - float(extent)) if extent < scenes.SIZE / 2 else scenes.SIZE / 2
        )
    return replace(thing, cx=spots[0], cy=spots[1])


def _paints(things: list[Thing]) -> list[Paint]:
    return [p for t in things for p in (t.paint, t.second) if p is not None]


def compose(things: list[Thing], words: list[Words], rng: random.Random, layout: str | None = None) -> Described:
    """Put objects on a background that they stand out from."""
    layout = layout or ("one" if len(things) == 1 else rng.choice(("beside", "above")))
    extra: Words = {}
    if layout == "one":
        spot = rng.choice(tuple(scenes.PLACES)) if _maybe(rng, 0.3) and things[0].radius < 30 else None
        if spot:
            extra["place"] = spot
        placed = [place(things[0], scenes.PLACES[spot] if spot else (0.5, 0.5), rng)]
    else:
        spots = ((0.26, 0.5), (0.74, 0.5)) if layout == "beside" else ((0.5, 0.26), (0.5, 0.74))
        placed = [place(t, s, rng) for t, s in zip(things, spots, strict=True)]
    free = [b for b in scenes.BACKGROUNDS if scenes.clear_of(b, _paints(things))]
    background = rng.choice(free or ["gray"])
    scene = Scene(things=tuple(placed), background=scenes.background_paint(background, rng))
    return Described(scene=scene, words=tuple(words), background=background, layout=layout, extra=extra)


def draw(rng: random.Random, two: float = 0.32) -> Described:
    """A random scene with its words; a share ``two`` has two objects."""
    while True:
        count = 2 if _maybe(rng, two) else 1
        pairs = [draw_thing(rng, count == 2) for _ in range(count)]
        things, words = [p[0] for p in pairs], [p[1] for p in pairs]
        if any(scenes.clear_of(b, _paints(things)) for b in scenes.BACKGROUNDS):
            return compose(things, words, rng)


def thing_phrase(words: Words, rng: random.Random, keep: float = 0.9) -> str:
    """Noun phrase without article; each adjective is said with probability ``keep``, in any order."""
    said = {k: v for k, v in words.items() if k == "shape" or _maybe(rng, keep)}
    if "texture" not in said:
        said = {k: v for k, v in said.items() if k not in ("second", "grain", "direction")}
    adjectives = [said[k] for k in ("size", "stretch", "slant") if k in said]
    if "lobes" in said:
        adjectives.append(said["lobes"] + " lobed")
    if "name" in said:
        adjectives.append(said["name"])
    colour = said.get("colour", "")
    if "second" in said:
        colour = f"{colour} and {said['second']}" if colour else f"{said['second']} and colored"
    pattern = " ".join(said[k] for k in ("grain", "direction", "texture") if k in said)
    adjectives += [a for a in (colour, pattern) if a]
    rng.shuffle(adjectives)
    return " ".join([*adjectives, said["shape"]])


def _article(phrase: str, rng: random.Random) -> str:
    if _maybe(rng, 0.15):
        return phrase
    return rng.choice(("a ", "a ", "a ", "one ", "the ")) + phrase


def objects_clause(described: Described, rng: random.Random, keep: float = 0.9) -> str:
    """The part of a caption that names the objects and where they are."""
    phrases = [_article(thing_phrase(w, rng, keep), rng) for w in described.words]
    if described.layout == "one":
        where = described.extra.get("place")
        if where is None or not _maybe(rng, keep):
            return phrases[0]
        at = {"left": "on the left", "right": "on the right", "top": "at the top", "bottom": "at the bottom"}[where]
        return rng.choice((f"{phrases[0]} {at}", f"{phrases[0]} {at}", f"{at} {phrases[0]}"))
    a, b = phrases
    if described.layout == "beside":
        return rng.choice(
            (
                f"{a} on the left and {b} on the right",
                f"{a} on the left, {b} on the right",
                f"{b} on the right and {a} on the left",
                f"on the left {a}, on the right {b}",
                f"{a} beside {b}",
                f"{a} and {b}",
            )
        )
    return rng.choice(
        (
            f"{a} above {b}",
            f"{b} below {a}",
            f"{a} at the top and {b} at the bottom",
            f"{a} on top of {b}",
            f"at the bottom {b}, at the top {a}",
        )
    )


def _sentences(described: Described, rng: random.Random) -> list[str]:
    """Redundant statements that make a long caption."""
    lines = [f"the background is {described.background}"]
    for words in described.words:
        noun = "the " + words["shape"]
        if "colour" in words and "texture" not in words:
            lines.append(f"{noun} is {words['colour']}")
        lines += [f"{noun} is {words[k]}" for k in ("size", "stretch", "texture") if k in words]
    lines.append("there is one shape" if len(described.words) == 1 else "there are two shapes")
    rng.shuffle(lines)
    return lines[: rng.randint(0, len(lines))]


def caption(described: Described, rng: random.Random, keep: float = 0.9) -> str:
    """A caption of any length (2 to about 75 tokens) and order."""
    body = objects_clause(described, rng, keep)
    ground = rng.choice(("on a {} background", "on a {} background", "on {}", "{} background", "with a {} background"))
    ground = ground.format(described.background) if _maybe(rng, 0.93) else ""
    if ground and _maybe(rng, 0.2):
        content = f"{ground}, {body}"
    else:
        join = ", " if ground.startswith(described.background) or _maybe(rng, 0.2) else " "
        content = body + (join + ground if ground else "")
    content = rng.choice(STARTS) + content
    if _maybe(rng, 0.45):
        return content
    size = min(int(rng.expovariate(1 / 5)) + 1, 22)
    parts = [rng.choice(FILLERS) for _ in range(size)]
    if _maybe(rng, 0.35):
        parts = _sentences(described, rng) + parts[: rng.randint(0, 6)]
    cut = rng.randint(0, len(parts))
    join = rng.choice((", ", ", ", " ", ". "))
    return join.join([*parts[:cut], content, *parts[cut:]])


def plain_caption(described: Described, rng: random.Random) -> str:
    """A short caption that says every word there is: the form used to measure obedience."""
    body = objects_clause(described, rng, keep=1.0)
    return f"{body} on a {described.background} background"
