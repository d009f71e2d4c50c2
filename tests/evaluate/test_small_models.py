"""Planted orderings with the small judge on rendered scenes, and maps of the small model against the rendered mask."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter

from ti_fix.cli.judging import small_judge
from ti_fix.errors import TiFixError
from ti_fix.evaluate import EvalConfig, Material, ReportEvent, score_pictures
from ti_fix.heatmap import Recorder, Wanted, iou, places_of, pointing
from ti_fix.hosts.standalone import StandaloneModel, parts_of_small
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


def test_a_wrong_colour_lowers_the_colour_group_only(judge):
    # the scene here is a colour too (a white background), so the judge lowers it a little
    report = report_of(judge, right=pictures(["circle"], ["red"], 1), wrong=pictures(["circle"], ["blue", "green"], 1))
    found = report.differences["wrong"]
    colour = found["adherence.colour"].low
    assert colour > 0.5
    assert found["adherence.object"].low < 0.1
    assert colour > 1.5 * max(found["adherence.object"].high, found["adherence.scene"].high)


def test_the_map_of_the_shape_word_covers_the_shape():
    """Rendered scenes are noised as in training, so that the mask is known, and the small model looks at them."""
    model, rng = StandaloneModel(parts_of_small(load("sdxl"))), random.Random(3)
    alphas, size = model.schedule.alphas_cumprod, Sizes(original=(128, 128), target=(128, 128))
    overlaps, hits, areas = [], [], []
    for number in range(8):
        shape, colour = rng.choice(("circle", "heart", "diamond", "star")), rng.choice(("red", "blue", "green"))
        drawn = thing(shape, colour, rng)
        scene = scenes.Scene(things=(drawn,), background=scenes.background_paint("white", rng))
        mask = torch.from_numpy(scenes.mask(drawn, 1).copy())
        pixels = torch.from_numpy(scenes.render(scene)).permute(2, 0, 1)[None].float() / 127.5 - 1
        latents, prompt = model.encode_images(pixels), f"{colour} {shape} on a white background"
        with Recorder(model.unet) as recorder, torch.no_grad():
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
    assert np.mean(hits) >= 0.75
    assert np.mean(overlaps) > 2 * np.mean(areas)  # a map without shape overlaps by the mask's own share
