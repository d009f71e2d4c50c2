"""Scenes show what they say: measured from pixels, against the numbers they were drawn from."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from ti_fix.small import captions, measure, scenes
from ti_fix.small.concepts import KINDS, NAMES, concepts
from ti_fix.small.scenes import Paint, Scene, Thing

GRAY = Paint(gray=128)


def picture(thing: Thing, background: Paint = GRAY) -> np.ndarray:
    return scenes.render(Scene(things=(thing,), background=background)).astype(float)


def thing(**values: object) -> Thing:
    base: dict[str, object] = {"shape": "circle", "paint": Paint(hue=0), "cx": 64.0, "cy": 64.0, "radius": 34.0}
    return Thing(**(base | values))  # type: ignore[arg-type]


def test_rendering_is_a_pure_function() -> None:
    first, second = (scenes.render(captions.draw(random.Random(3)).scene) for _ in range(2))
    assert first.shape == (128, 128, 3)
    assert np.array_equal(first, second)


@pytest.mark.parametrize("hue", [0.0, 54.0, 125.0, 176.0, 225.0, 322.0])
def test_measured_hue_is_the_drawn_hue(hue: float) -> None:
    assert measure.hue_error(picture(thing(paint=Paint(hue=hue))), hue) < 2
    assert measure.hue_error(picture(thing(paint=Paint(hue=hue))), hue + 40) > 35


@pytest.mark.parametrize(("period", "angle"), [(22.0, 0.0), (26.0, 35.0), (30.0, 120.0)])
def test_measured_stripes_are_the_drawn_stripes(period: float, angle: float) -> None:
    striped = picture(thing(texture="striped", second=Paint(gray=240), period=period, angle=angle))
    octaves, degrees = measure.stripe_errors(striped, period, angle)
    assert octaves < 0.15
    assert degrees < 6
    assert measure.stripe_errors(picture(thing()), period, angle) == (1.0, 45.0)


def test_measured_two_tone_is_the_drawn_two_tone() -> None:
    split = picture(thing(texture="split", paint=Paint(hue=90), second=Paint(hue=322), angle=65))
    hues, degrees = measure.two_tone_errors(split, 90, 322, 65)
    assert hues < 3
    assert degrees < 6
    swapped, turned = measure.two_tone_errors(split, 322, 90, 65)
    assert swapped < 3
    assert turned == 90


def test_silhouette_error_is_small_for_itself_at_another_place_and_size() -> None:
    wild = concepts("shape")
    wanted = measure.silhouette(scenes.mask(thing(shape="blob", lobes=wild[0].lobes), 1))
    same = picture(thing(shape="blob", lobes=wild[0].lobes, radius=27.0, cx=58.0, cy=70.0))
    other = picture(thing(shape="blob", lobes=wild[3].lobes))
    assert measure.silhouette_error(same, wanted) < 0.06
    assert measure.silhouette_error(other, wanted) > 0.15


@pytest.mark.parametrize("kind", KINDS)
def test_concepts_score_well_on_their_own_pictures_and_badly_on_the_next_concept(kind: str) -> None:
    rng = random.Random(11)
    own, other = [], []
    for concept, neighbour in zip(concepts(kind), concepts(kind)[1:] + concepts(kind)[:1], strict=True):
        for _ in range(4):
            own.append(concept.errors(scenes.render(concept.draw(rng).scene))["error"])
            other.append(concept.errors(scenes.render(neighbour.draw(rng).scene))["error"])
    assert np.mean(own) < 0.12
    assert np.mean(other) > 3 * np.mean(own)


def test_held_out_pairs_and_names_are_never_said() -> None:
    rng = random.Random(5)
    drawn = [captions.draw(rng) for _ in range(3000)]
    said = {(w.get("colour"), w["shape"]) for d in drawn for w in d.words}
    assert not said & scenes.HELD_OUT_PAIRS
    assert len(said) > 60
    words = {w for d in drawn for w in captions.caption(d, rng).replace(",", " ").replace(".", " ").split()}
    assert not words & set(NAMES)


def hue_word(hue: float) -> str | None:
    """The colour word whose band holds this hue."""
    bands = scenes.HUES.items()
    return next((word for word, centre in bands if scenes.hue_distance(centre, hue) <= scenes.HUE_BAND), None)


def test_words_are_true_of_the_numbers() -> None:
    rng = random.Random(6)
    for described in (captions.draw(rng) for _ in range(800)):
        for item, words in zip(described.scene.things, described.words, strict=True):
            if item.paint.hue is not None and "colour" in words:
                word = hue_word(item.paint.hue)
                assert words["colour"] == (word or scenes.two_words(item.paint))
            if words.get("stretch") == "tall":
                assert item.stretch > 1.25
            if "grain" in words:
                low, high = scenes.FINE if words["grain"] == "fine" else scenes.COARSE
                assert low <= item.period <= high


def test_two_words_are_the_neighbours_of_a_hue_the_nearer_one_last() -> None:
    said = {hue: scenes.two_words(Paint(hue=hue)) for hue in (42.0, 78.0, 138.0, 190.0, 322.0, 350.0)}
    assert said == {
        42.0: "orange yellow",
        78.0: "green yellow",
        138.0: "blue green",
        190.0: "green blue",
        322.0: "purple red",
        350.0: "purple red",
    }


def test_hues_left_unsaid_are_of_all_kinds() -> None:
    """Were they only those without a word, a caption that is silent about the colour would mean "one of these"."""
    rng = random.Random(8)
    silent = [
        item.paint.hue
        for described in (captions.draw(rng) for _ in range(4000))
        for item, words in zip(described.scene.things, described.words, strict=True)
        if "colour" not in words and item.paint.hue is not None
    ]
    assert len(silent) > 300
    named = sum(hue_word(hue) is not None for hue in silent) / len(silent)
    assert 0.3 < named < 0.7
    counts = np.histogram(np.array(silent) % 360, 12, (0, 360))[0]
    assert counts.min() > 0.3 * counts.mean()


def test_seen_colours_are_told_apart_only_where_they_can_be() -> None:
    hues = {0.0: "red", 350.0: None, 54.0: "yellow", 68.0: None, 90.0: "unnamed", 176.0: "unnamed"}
    assert {hue: scenes.seen_colour(Paint(hue=hue)) for hue in hues} == hues
    assert scenes.seen_colour(Paint(gray=236)) == "white"
    assert scenes.seen_colour(Paint(gray=25)) == "black"


def test_named_silhouettes_are_none_of_the_held_out_ones() -> None:
    for word in scenes.SILHOUETTES:
        named = picture(thing(shape="blob", **scenes.silhouette_form(word)))
        assert min(concept.errors(named)["error"] for concept in concepts("shape")) > 0.15


def test_compass_points_to_where_the_first_half_lies() -> None:
    for angle, word in ((0.0, "east"), (-20.0, "east"), (70.0, "south"), (225.0, "north west"), (350.0, "east")):
        assert scenes.compass(angle) == word
    split = picture(thing(texture="split", paint=Paint(hue=90), second=Paint(hue=322), angle=90))
    y = np.nonzero(np.abs(split - Paint(hue=90).rgb()).sum(-1) < 60)[0]
    assert y.mean() > 70  # south is down


def test_unnamed_hues_are_far_from_every_word() -> None:
    for concept in concepts("hue"):
        assert hue_word(concept.hue) is None
        assert min(scenes.hue_distance(concept.hue, h) for h in scenes.HUES.values()) > 2 * scenes.HUE_BAND
    assert all(any(a < c.hue < b for a, b in scenes.UNNAMED_HUES) for c in concepts("hue"))


def test_captions_have_all_lengths() -> None:
    rng = random.Random(7)
    lengths = [len(captions.caption(captions.draw(rng), rng).split()) for _ in range(5000)]
    assert min(lengths) <= 4
    assert max(lengths) >= 50
    assert math.isclose(float(np.median(lengths)), 14, abs_tol=6)
