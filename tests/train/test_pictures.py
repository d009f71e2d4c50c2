"""Pictures of every kind become upright RGB; crops and what SDXL is told about them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.cases import folder
from tests.train.making import image
from ti_fix.errors import WrongUse
from ti_fix.train.buckets import bucket, step_of, views
from ti_fix.train.pictures import UnusablePicture, colour, open_picture, to_pixels, to_weights

CASES = folder() / "handover"


def test_exif_orientation_is_applied():
    picture = open_picture(CASES / "DS_exif6" / "phone.jpg")
    assert picture.image.size == (48, 64) and picture.notes == ("turned",)


@pytest.mark.parametrize("background", ["white", "#ff0000"])
def test_transparency_is_flattened_on_the_colour_never_on_the_hidden_one(background):
    path = CASES / "DS_rgba" / "cutout.png"
    picture = open_picture(path, background=background)
    raw = np.asarray(Image.open(path))
    out = np.asarray(picture.image)
    clear, solid = raw[..., 3] == 0, raw[..., 3] == 255
    assert clear.any() and solid.any()
    assert (out[clear] == colour(background)).all()
    assert (out[solid] == raw[solid][:, :3]).all()
    assert picture.notes == ("flattened",) and picture.weight is None


def test_transparency_can_be_a_weight():
    path = CASES / "DS_rgba" / "cutout.png"
    weight = open_picture(path, alpha="weight").weight
    assert (np.asarray(weight) == np.asarray(Image.open(path))[..., 3]).all()


@pytest.mark.parametrize("name", ["anim.webp", "cmyk.jpg", "deep16.png", "grey.png", "liar.jpg", "pal.png"])
def test_every_kind_becomes_rgb(name):
    picture = open_picture(CASES / "DS_palette" / name)
    assert picture.image.mode == "RGB" and picture.image.size == (32, 32)
    assert picture.image.getextrema() != ((0, 0), (0, 0), (0, 0))
    notes = {"anim.webp": "first frame", "cmyk.jpg": "CMYK", "deep16.png": "16 bit"}
    assert picture.notes == ((notes[name],) if name in notes else ())


def test_sixteen_bits_are_not_cut_off():
    levels = np.linspace(0, 65535, 32 * 32).astype(np.uint16).reshape(32, 32)
    out = np.asarray(open_picture(Image.fromarray(levels)).image)[..., 0]
    assert np.abs(out.astype(int) - (levels / 257).astype(int)).max() <= 1


def test_a_single_pixel_is_refused_by_name():
    with pytest.raises(UnusablePicture, match=r"dot\.png has 1 x 1"):
        open_picture(CASES / "DS_palette" / "dot.png")


@pytest.mark.parametrize("name", ["cut.jpg", "notes.docx"])
def test_broken_files_are_refused_by_name(name):
    with pytest.raises(UnusablePicture, match=name):
        open_picture(CASES / "DS_broken" / name)


def test_a_mask_weights_and_multiplies_with_transparency(tmp_path):
    mask = np.zeros((64, 64), np.uint8)
    mask[:, :32] = 255
    Image.fromarray(mask).save(tmp_path / "m.png")
    path = CASES / "DS_rgba" / "cutout.png"
    alone = open_picture(path, mask=tmp_path / "m.png").weight
    both = open_picture(path, mask=tmp_path / "m.png", alpha="weight").weight
    assert (np.asarray(alone) == mask).all()
    assert (np.asarray(both) == np.where(mask, np.asarray(Image.open(path))[..., 3], 0)).all()
    assert to_weights(alone, 0.25).unique().tolist() == [0.25, 1.0]


def test_pixels_run_from_minus_one_to_one():
    pixels = to_pixels(Image.fromarray(np.array([[[0, 255, 51]]], np.uint8)))
    assert pixels.shape == (1, 3, 1, 1) and pixels.flatten().tolist() == pytest.approx([-1, 1, -0.6])


def test_an_unknown_colour_is_refused():
    with pytest.raises(WrongUse, match="no colour"):
        colour("whitish")


# crops


@given(st.integers(16, 3000), st.integers(16, 3000), st.sampled_from([64, 512, 768, 1024]))
@settings(max_examples=80, deadline=None)
def test_buckets_fit_the_area_and_the_step(height, width, resolution):
    found = bucket((height, width), resolution)
    step = step_of(resolution)
    assert found[0] % step == 0 and found[1] % step == 0
    assert found[0] * found[1] <= resolution**2
    assert found[0] * found[1] >= 0.6 * resolution**2
    if height == width:
        assert found == (resolution, resolution)


def test_a_bucket_is_the_nearest_in_proportion():
    assert bucket((1000, 2000), 1024) == (704, 1408)
    assert bucket((2000, 1000), 1024) == (1408, 704)
    assert bucket((100, 3000), 1024, square=True) == (1024, 1024)


@given(st.integers(20, 400), st.integers(20, 400), st.sampled_from([(1.0,), (1.0, 0.5), (0.7,)]), st.booleans())
@settings(max_examples=80, deadline=None)
def test_views_lie_inside_and_keep_the_proportion(height, width, scales, flip):
    for view in views(0, (height, width), 64, square=False, scales=scales, flip=flip):
        top, left = view.crop
        assert 0 <= top <= view.resized[0] - view.target[0] and 0 <= left <= view.resized[1] - view.target[1]
        stretch = (view.resized[0] / height) / (view.resized[1] / width)
        assert abs(stretch - 1) < 0.1
        assert view.sizes.original == (height, width) and view.sizes.target == view.target
        assert view.cut(image(0, (width, height))).size == (view.target[1], view.target[0])


def test_a_square_picture_is_told_as_it_is():
    (view,) = views(0, (1200, 1200), 1024, square=False, scales=(1.0,), flip=False)
    assert (view.sizes.original, view.sizes.crop, view.sizes.target) == ((1200, 1200), (0, 0), (1024, 1024))


def test_the_told_crop_is_where_the_pixels_are():
    """A picture whose colours are its coordinates, at its own scale: the crop's corner can be read off."""
    y, x = np.mgrid[0:96, 0:128]
    picture = Image.fromarray(np.stack([y, x, 0 * x], -1).astype(np.uint8))
    for view in views(0, (96, 128), 64, square=True, scales=(64 / 96,), flip=True):
        assert view.resized == (96, 128)
        corner = np.asarray(view.cut(picture))[0, 0]
        top, left = view.sizes.crop
        assert corner[0] == top
        assert corner[1] == (127 - left if view.mirrored else left)


def test_scales_look_at_the_centre_and_the_corners():
    found = views(0, (640, 640), 64, square=False, scales=(1.0, 0.5), flip=False)
    assert len(found) == 6 and len({v.crop for v in found[1:]}) == 5
    assert {v.resized for v in found[1:]} == {(128, 128)}
    assert len(views(0, (640, 640), 64, square=False, scales=(1.0, 0.5), flip=True)) == 12


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB", "L"])
def test_transparency_is_found_with_the_pillow_of_the_webuis(mode, monkeypatch):
    """Pillow 9.5 does not tell; where it does, both agree."""
    clear = Image.new(mode, (32, 32), 0)
    keyed = Image.new("RGB", (32, 32), 0)
    keyed.info["transparency"] = (0, 0, 0)
    expected = clear.has_transparency_data
    monkeypatch.delattr(Image.Image, "has_transparency_data")
    assert (open_picture(clear).notes == ("flattened",)) == expected
    assert open_picture(keyed).notes == ("flattened",)
