"""What is decided about one embedding while a host reads it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ti_fix.embedding import SD15, SDXL, SDXL_REFINER, Embedding, Vocabulary
from ti_fix.formats import Parsed
from ti_fix.repair.on_load import Policy, family_of_width, neutral_half, on_load


def block(rows, width):
    return torch.full((rows, width), 0.01)


def parsed(name="style", aliases=(), **blocks):
    embedding = Embedding(name=name, vectors={k: block(*shape) for k, shape in blocks.items()}, aliases=aliases)
    return Parsed(paths=(Path(f"{name}.safetensors"),), trigger=name, embedding=embedding)


XL = {"clip_l": (2, 768), "clip_g": (2, 1280)}
OLD = {"clip_l": (2, 768)}


@pytest.mark.parametrize(
    ("blocks", "family", "policy", "action", "label"),
    [
        (XL, SDXL, {}, "pass", ""),
        (XL, None, {}, "pass", ""),
        (OLD, None, {}, "pass", ""),
        (OLD, SD15, {}, "pass", ""),
        (OLD, SDXL, {}, "complete", "converted"),
        (OLD, SDXL, {"sd15": "L only"}, "complete", "L only"),
        (OLD, SDXL, {"sd15": "skip"}, "skip", ""),
        (OLD, SDXL, {"enabled": False}, "pass", ""),
        (XL, SD15, {}, "register", "clip_l half"),
        (XL, SDXL_REFINER, {}, "register", "repaired"),
        ({"clip_g": (2, 1280)}, SDXL, {}, "complete", "converted"),
        ({"clip_h": (2, 1024)}, SDXL, {}, "skip", ""),
        ({"clip_h": (2, 1024), "t5": (2, 4096)}, SDXL, {}, "skip", ""),
        ({"clip_l": (1, 768), "clip_g": (3, 1280)}, SDXL, {}, "register", "repaired"),
        ({"clip_l": (1, 768), "clip_g": (3, 1280)}, SDXL, {"rows": False}, "pass", ""),
        ({"clip_l": (80, 768), "clip_g": (80, 1280)}, SDXL, {}, "refuse", ""),
        ({"clip_l": (80, 768), "clip_g": (80, 1280)}, SDXL, {"refuse": False}, "pass", ""),
    ],
)
def test_the_decision(blocks, family, policy, action, label):
    loading = on_load(parsed("xqstyle", **blocks), family=family, policy=Policy(**policy))
    assert (loading.action, loading.label) == (action, label)
    assert bool(loading.line) == (action != "pass")


def test_a_healthy_embedding_stays_the_same_object():
    healthy = parsed(**XL)
    assert on_load(healthy, family=SDXL, policy=Policy()).embedding is healthy.embedding


def test_only_a_sound_file_may_be_opened_for_the_host():
    assert on_load(parsed(**XL), family=SDXL, policy=Policy()).sound
    uneven = parsed(clip_l=(1, 768), clip_g=(3, 1280))
    assert not on_load(uneven, family=SDXL, policy=Policy(rows=False)).sound


@pytest.mark.parametrize(
    ("name", "aliases", "names"),
    [
        ("xqstyle", ("cat", "a red cat", "xqother"), ("xqother",)),
        ("my:xqstyle", (), ("my-xqstyle",)),
        ("xqstyle", (), ()),
    ],
)
def test_further_names_are_none_that_prompts_hold_anyway(name, aliases, names):
    assert on_load(parsed(name, aliases, **XL), family=SDXL, policy=Policy()).names == names
    assert on_load(parsed(name, aliases, **XL), family=SDXL, policy=Policy(names=False)).names == ()


def test_a_converted_file_takes_no_ordinary_word():
    loading = on_load(parsed("castle", **OLD), family=SDXL, policy=Policy())
    assert loading.embedding.name == "castle-ti"
    assert "castle" not in loading.names


def test_a_neutral_half_is_the_comma():
    tables = {"clip_l": block(10, 768), "clip_g": torch.arange(10.0)[:, None].expand(10, 1280)}
    filled = neutral_half(parsed(**OLD).embedding, Vocabulary(tables=tables, tokenize=lambda text: [7]))
    assert torch.equal(filled.vectors["clip_g"], torch.full((2, 1280), 7.0))
    assert list(filled.vectors) == ["clip_l", "clip_g"]


@pytest.mark.parametrize(("width", "family"), [(768, SD15), (2048, SDXL), (1280, SDXL_REFINER), (5, None)])
def test_hosts_tell_their_family_by_a_width(width, family):
    assert family_of_width(width) is family
