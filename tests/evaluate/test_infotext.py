from __future__ import annotations

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from ti_fix.errors import WrongUse
from ti_fix.evaluate.infotext import in_picture, parse

WRITTEN = """(photo:1.2) of a mycat,
on a table <lora:tiny:0.8>
Negative prompt: EasyNegative, blurry
Steps: 20, Sampler: DPM++ 2M, CFG scale: 6.5, Seed: 12, Size: 832x1216, Model: x, Hires steps: 9, TI hashes: "a: 1"
"""
"""As AUTOMATIC1111 1.10 writes it."""


def test_prompt_and_settings_are_taken_apart():
    told = parse(WRITTEN)
    assert told.prompt == "(photo:1.2) of a mycat, on a table"
    assert told.negative_prompt == "EasyNegative, blurry"
    assert told.settings == {"steps": 20, "cfg_scale": 6.5, "width": 832, "height": 1216}


@pytest.mark.parametrize(
    ("text", "prompt", "negative", "settings"),
    [
        ("a cat", "a cat", "", {}),
        ("a cat\nSteps: 4, CFG scale: 7", "a cat", "", {"steps": 4, "cfg_scale": 7.0}),
        ("Negative prompt: x\nSteps: 4", "", "x", {"steps": 4}),
        ("a\nSteps: many", "a Steps: many", "", {}),
        ("a\nSteps: 20.5, CFG scale: 7, Size: 64x64", "a", "", {"cfg_scale": 7.0, "width": 64, "height": 64}),
        ("a\nSteps: 20, CFG scale: 1.2.3", "a", "", {"steps": 20}),
        (f"a\nSteps: {'9' * 5000}, CFG scale: 7", "a", "", {"cfg_scale": 7.0}),
    ],
)
def test_parts_that_are_missing(text, prompt, negative, settings):
    told = parse(text)
    assert (told.prompt, told.negative_prompt, told.settings) == (prompt, negative, settings)


def test_every_kind_of_picture_that_a_webui_saves(tmp_path):
    image, about = Image.new("RGB", (8, 8)), PngInfo()
    about.add_text("parameters", WRITTEN)
    image.save(tmp_path / "a.png", pnginfo=about)
    for coded in (WRITTEN.encode("utf-16-be"), WRITTEN.encode("utf-16-le")):
        exif = Image.Exif()
        exif.get_ifd(0x8769)[0x9286] = b"UNICODE\0" + coded
        for ending in ("jpg", "webp"):
            image.save(tmp_path / f"a.{ending}", exif=exif)
            assert in_picture(str(tmp_path / f"a.{ending}")) == parse(WRITTEN)
    assert in_picture(str(tmp_path / "a.png")) == parse(WRITTEN)


def test_what_carries_nothing_is_refused(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"no picture")
    with pytest.raises(WrongUse, match="carries no prompt"):
        in_picture(str(tmp_path / "a.png"))
    with pytest.raises(WrongUse, match="cannot be read"):
        in_picture(str(tmp_path / "b.png"))
