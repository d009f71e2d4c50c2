"""Planted orderings with the small judge on rendered scenes, and maps of the small model against the rendered mask."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter

from ti_fix.cli.judging import small_judge
from ti_fix.errors import TiFixError
from ti_fix.evaluate import EvalConfig, Material, ReportEvent, adherence, score_pictures
from ti_fix.heatmap import MapSettings, Recorder, Wanted, iou, places_of, pointing
from ti_fix.hosts.standalone import StandaloneModel, parts_of_small
from ti_fix.phrases import lexicon, phrases
from ti_fix.protocols import Sizes
from ti_fix.small import load, scenes

COUNT = 16
TEXT = "red circle on a white background"
CONFIG = EvalConfig(good="sharp red circle on a white background", bad="blurred red circle on a white background")


def thing(shape, colour, rng):
    paint = scenes.colour_paint(colour, rng)
    return scenes.Thing(
        shape=shape, paint=paint, cx=rng.uniform(48, 80), cy=rng.uniform(48, 80), radius=rng.uniform(26, 36)
    )


def pictures(shapes, colours, seed, background="white"):
    rng, made = random.Random(seed), []
    for _ in range(COUNT):
        scene = scenes.Scene(
            things=(thing(rng.choice(shapes), rng.choice(colours), rng),),
            background=scenes.background_paint(background, rng),
        )
        made.append(Image.fromarray(scenes.render(scene)))
    return made


@pytest.fixture(scope="module")
def judge():
    try:
        return small_judge()
    except TiFixError as missing:
        pytest.skip(str(missing))


def report_of(judge, **sets):
    texts = {label: [TEXT] * COUNT for label in sets}
    references = pictures(["circle"], ["red"], 99)
    events = score_pictures(CONFIG, sets, texts, judge, Material(references=references))
    return next(e.report for e in events if isinstance(e, ReportEvent))


def test_right_concept_above_class_word_above_unrelated(judge):
    sides = {
        "right": pictures(["circle"], ["red"], 1),
        "class": pictures(["circle"], ["blue", "green", "red", "yellow"], 2),
        "unrelated": pictures(["star"], ["blue", "green"], 3),
    }
    for first, second in (("right", "class"), ("class", "unrelated")):
        found = report_of(judge, **{first: sides[first], second: sides[second]}).differences[second]
        assert found["clip_i"].low > 0 and found["clip_t"].low > 0


def test_sharp_above_blurred(judge):
    sharp = pictures(["circle"], ["red"], 1)
    blurred = [picture.filter(ImageFilter.GaussianBlur(8)) for picture in sharp]
    assert report_of(judge, sharp=sharp, blurred=blurred).differences["blurred"]["clip_iqa"].low > 0


@pytest.mark.parametrize(
    ("group", "shown"),
    [
        ("colour", (["circle"], ["blue", "green"], "white")),
        ("object", (["star", "square"], ["red"], "white")),
        ("scene", (["circle"], ["red"], "black")),
    ],
)
def test_a_wrong_word_lowers_its_own_group_only(judge, group, shown):
    """The word's own group falls to nothing; what the others lose is at most a fifth of that, and is no misreading."""
    shapes, colours, ground = shown
    wrong = pictures(shapes, colours, 1, ground)
    found = report_of(judge, right=pictures(["circle"], ["red"], 1), wrong=wrong).differences["wrong"]
    lost = found.pop(f"adherence.{group}")
    others = [each for name, each in found.items() if name.startswith("adherence.")]
    assert len(others) == 2
    assert lost.low > 0.7
    assert lost.low > 5 * max(each.mean for each in others) and lost.low > 3.5 * max(each.high for each in others)
    words = phrases(TEXT, lexicon())
    places = {phrase.group: place for place, phrase in enumerate(words)}
    read = [adherence.reading(each, TEXT, words, judge.texts) for each in judge.pictures(wrong)]
    for other, place in places.items():
        same = sum(each[place] == words[place].text for each in read)
        assert same == 0 if other == group else same >= COUNT - 1, (other, read)


def test_the_map_of_the_shape_word_covers_the_shape():
    """Rendered scenes are noised as in training, so that the mask is known, and the small model looks at them."""
    hits, overlaps, areas = looked_at(MapSettings())
    assert np.mean(hits) >= 0.9
    assert np.mean(overlaps) > 1.7 * np.mean(areas)  # a map without shape overlaps by the mask's own share
    hits, overlaps, areas = looked_at(MapSettings(layers="up"))  # where forms are drawn
    assert np.mean(hits) >= 0.9
    assert np.mean(overlaps) > 0.3 and np.mean(overlaps) > 2 * np.mean(areas)


def looked_at(settings):
    """Whether the peak lies on the shape, overlap with it, and its share of the picture, for each of 12 scenes."""
    model, rng = StandaloneModel(parts_of_small(load("sdxl"))), random.Random(3)
    alphas, size = model.schedule.alphas_cumprod, Sizes(original=(128, 128), target=(128, 128))
    overlaps, hits, areas = [], [], []
    for number in range(12):
        shape, colour = rng.choice(("circle", "heart", "diamond", "star")), rng.choice(("red", "blue", "green"))
        drawn = thing(shape, colour, rng)
        scene = scenes.Scene(things=(drawn,), background=scenes.background_paint("white", rng))
        mask = torch.from_numpy(scenes.mask(drawn, 1).copy())
        pixels = torch.from_numpy(scenes.render(scene)).permute(2, 0, 1)[None].float() / 127.5 - 1
        latents, prompt = model.encode_images(pixels), f"{colour} {shape} on a white background"
        with Recorder(model.unet, settings) as recorder, torch.no_grad():
            told = model.encode_prompts([prompt], {}, [size])
            recorder.expect([Wanted(picture=0, context=told.context[0], places=places_of(prompt, [shape], {}))])
            for timestep in (300, 500, 700):
                noise = torch.randn(latents.shape, generator=torch.Generator().manual_seed(number))
                noisy = alphas[timestep].sqrt() * latents + (1 - alphas[timestep]).sqrt() * noise
                model.predict(noisy, torch.tensor([timestep]), told)
        (found,) = recorder.maps()
        overlaps.append(iou(found.maps[0], mask))
        hits.append(pointing(found.maps[0], mask, tolerance=8))  # one place of the latents
        areas.append(float(mask.float().mean()))
    return hits, overlaps, areas
