"""Attention maps inside a WebUI: which rows are named at each step, what ends a recording, where the sheets go."""

from __future__ import annotations

import gc
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from PIL import Image


class Run:
    """A recorder's stand-in."""

    def __init__(self, unet, steps, *values):
        self.unet, self.steps, self.values, self.closed, self.expected = unet, steps, values, 0, []

    def close(self):
        self.closed += 1

    def expect(self, contexts, rows, vectors, step):
        self.expected.append((tuple(contexts.shape), rows, dict(vectors), step))

    def sheets(self, pictures):
        return [(n, Image.new("RGB", (9, 9)), f"word {n}") for n in range(len(pictures))]


class P:
    """What the script reads of a generation."""

    def __init__(self, kind, prompts):
        unet = object()
        inner = SimpleNamespace(diffusion_model=unet)
        forge = SimpleNamespace(unet=SimpleNamespace(model=inner))
        self.sd_model = SimpleNamespace(forge_objects=forge) if kind == "forge" else SimpleNamespace(model=inner)
        self.unet, self.prompts, self.hr_prompts, self.steps = unet, prompts, ["a hires picture"], 10
        self.is_hr_pass, self.do_not_save_samples, self.outpath_samples = False, False, "out"


@pytest.fixture
def world(start, kind, monkeypatch):
    webui, _ = start(kind)
    webui.switch("sdxl")
    saved = []
    images = ModuleType("modules.images")
    images.save_image = lambda image, *_args, **more: saved.append(more["suffix"])
    monkeypatch.setitem(sys.modules, "modules.images", images)
    sys.modules["modules"].images = images
    options = SimpleNamespace(samples_save=True, samples_format="png")
    monkeypatch.setattr(sys.modules["modules.shared"], "opts", options)
    parser = sys.modules["modules.prompt_parser"]
    monkeypatch.setattr(parser, "get_multicond_prompt_list", _parts, raising=False)
    monkeypatch.setattr(parser, "get_learned_conditioning_prompt_schedules", _schedules)
    callbacks = sys.modules["modules.script_callbacks"]
    steps: list = []
    monkeypatch.setattr(callbacks, "on_cfg_denoiser", steps.append, raising=False)
    monkeypatch.delitem(sys.modules, "ti_fix.hosts.maps_script", raising=False)
    from ti_fix.hosts import maps_script

    made: list[Run] = []

    def begin(*args):
        made.append(Run(*args))
        return made[-1]

    maps_script.install(draw=lambda tab: [tab], begin=begin)
    yield SimpleNamespace(
        script=maps_script.MapsScript(), module=maps_script, made=made, step=steps[0], saved=saved, kind=kind
    )
    maps_script.close()
    sys.modules.pop("ti_fix.hosts.maps_script", None)


def _schedules(texts, steps):
    edit = "[red:blue:0.5]"
    return [[[5, text.replace(edit, "red")], [steps, text.replace(edit, "blue")]] for text in texts]


def _parts(prompts):
    flat, places = [], []
    for prompt in prompts:
        own = []
        for part in prompt.split(" AND "):
            own.append((len(flat), 1.0))
            flat.append(part)
        places.append(own)
    return places, flat, {}


def step(world, number, rows=1, *, as_dict=True):
    contexts = torch.zeros(rows, 77, 8)
    cond = {"crossattn": contexts} if as_dict else contexts
    world.step(SimpleNamespace(text_cond=cond, sampling_step=number, denoiser=SimpleNamespace(step=number)))


def processed(count, first=0):
    return SimpleNamespace(
        images=[Image.new("RGB", (8, 8)) for _ in range(first + count)],
        infotexts=["info"] * (first + count),
        index_of_first_image=first,
        all_seeds=list(range(count)),
        all_prompts=["p"] * count,
    )


def test_the_controls_are_those_of_the_tab(world):
    assert world.script.ui(False) == ["txt2img"] and world.script.ui(True) == ["img2img"]


def test_nothing_happens_when_it_is_off(world):
    p = P(world.kind, ["a cat"])
    world.script.before_process(p, False)
    world.script.process_batch(p, False, "cat")
    step(world, 0)
    result = processed(1)
    world.script.postprocess_batch(p, False, "cat", batch_number=0)
    world.script.postprocess(p, result, False, "cat")
    assert not world.made and len(result.images) == 1


def test_rows_are_named_at_each_step_as_the_prompt_stands_then(world):
    p = P(world.kind, ["a [red:blue:0.5] cat", "a dog AND a bird"])
    world.script.before_process(p, True)
    world.script.process_batch(p, True, "cat", False)
    (run,) = world.made
    assert run.unet is p.unet and run.steps == 10 and run.values == ("cat", False)
    step(world, 0, 3)
    step(world, 7, 3, as_dict=False)
    assert run.expected[0][:2] == ((3, 77, 8), [(0, "a red cat"), (1, "a dog"), (1, "a bird")])
    assert run.expected[1][1][0] == (0, "a blue cat") and run.expected[1][3] == 7
    p.is_hr_pass = True
    step(world, 1)
    assert run.expected[2][1] == [(0, "a hires picture")]


def test_sheets_stand_behind_the_pictures_of_all_batches(world):
    p = P(world.kind, ["a", "b"])
    world.script.before_process(p, True)
    for number in range(2):
        world.script.process_batch(p, True)
        world.script.postprocess_batch(p, True, batch_number=number)
        step(world, 3)  # between two batches nothing is recorded
    assert [run.closed > 0 for run in world.made] == [True, True] and not world.made[0].expected
    result = processed(4, first=1)  # a grid stands in front
    world.script.postprocess(p, result, True)
    assert len(result.images) == 9 and len(result.infotexts) == 9
    assert result.infotexts[5].endswith("TI Fix maps: word 0") and world.saved == ["-maps"] * 4


def test_a_generation_that_fails_leaves_no_hooks(world):
    p = P(world.kind, ["a"])
    world.script.before_process(p, True)
    world.script.process_batch(p, True)
    (run,) = world.made
    assert not run.closed
    del p
    gc.collect()
    assert run.closed
    step(world, 0)
    assert not run.expected


def test_a_fault_in_a_recording_does_not_reach_the_host(world, monkeypatch):
    p = P(world.kind, ["a"])
    monkeypatch.setattr(world.module._parts, "begin", lambda *_: 1 / 0)
    world.script.before_process(p, True)
    world.script.process_batch(p, True)
    step(world, 0)
    world.script.postprocess_batch(p, True)
    world.script.postprocess(p, processed(1), True)
