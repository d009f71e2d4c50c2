"""Embeddings in pictures: both ways of storing, every picture format, and what strangers may do to them."""

from __future__ import annotations

import contextlib
import logging
import math
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from tests.formats import picture_maker as make
from ti_fix.errors import UnreadableFile
from ti_fix.formats import picture_headers, picture_pixels
from ti_fix.formats.pictures import is_picture, read_picture
from ti_fix.formats.stored import Container

DATA = Path(__file__).parents[1] / "data" / "pictures"
RAMP = (np.arange(768, dtype=np.float32) / 8192).reshape(1, 768)
"""What the files in `DATA` hold; they were written with avifenc 0.11 (lossless) and pillow-jxl-plugin 1.3."""

KINDS = {b"tEXt": b"tEXt", b"zTXt": b"zTXt", b"iTXt": b"iTXt", b"iTXz": b"iTXt"}


def vectors_of(container: Container | None) -> torch.Tensor:
    assert container is not None
    tree: Any = container.tree
    return tree["string_to_param"]["*"].read()


def error_of(data: bytes) -> UnreadableFile:
    with pytest.raises(UnreadableFile) as caught:
        read_picture(data)
    return caught.value


@pytest.mark.parametrize("form", KINDS)
@pytest.mark.parametrize("last", [False, True])
def test_reads_text_chunk(form: bytes, last: bool) -> None:
    vectors = make.vectors(2)
    content = make.text_chunk(make.text_of(make.a1111(vectors, "emb_1.5")), form)
    found = read_picture(make.png_with_chunk(KINDS[form], content, last=last))
    assert found is not None
    assert (found.kind, found.metadata) == ("picture", {"picture": "PNG text chunk"})
    assert torch.equal(vectors_of(found), torch.from_numpy(vectors))
    assert {k: v for k, v in found.tree.items() if k != "string_to_param"} == {
        "string_to_token": {"*": 265},
        "name": "emb_1.5",
        "step": 500,
        "sd_checkpoint": "6ce0161689",
        "sd_checkpoint_name": "v1-5",
    }


@pytest.mark.parametrize(
    ("rows", "width", "height"),
    [(1, 16, 64), (8, 512, 512), (2, 33, 61), (2, 5, 2), (1, 1, 509), (75, 64, 96)],
)
def test_reads_pixels_of_any_size(rows: int, width: int, height: int) -> None:
    vectors = make.vectors(rows, seed=rows)
    found = read_picture(make.saved(make.pixels_with(make.a1111(vectors), width, height)))
    assert torch.equal(vectors_of(found), torch.from_numpy(vectors))


def test_reads_both_encoders_from_pixels() -> None:
    low, high = make.vectors(3), make.vectors(3, 1280)
    tree = {"clip_l": {"TORCHTENSOR": low.tolist()}, "clip_g": {"TORCHTENSOR": high.tolist()}}
    found: Any = read_picture(make.saved(make.pixels_with(tree)))
    assert torch.equal(found.tree["clip_l"].read(), torch.from_numpy(low))
    assert torch.equal(found.tree["clip_g"].read(), torch.from_numpy(high))


@pytest.mark.parametrize(
    ("form", "mode", "options"),
    [
        ("PNG", "RGBA", {}),
        ("PNG", "RGB", {"optimize": True}),
        ("WEBP", "RGB", {"lossless": True}),
        ("WEBP", "RGBA", {"lossless": True, "exact": True}),
        ("WEBP", "RGB", {"lossless": True, "exif": b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00"}),
    ],
)
def test_reads_pixels_of_each_format(tmp_path: Path, form: str, mode: str, options: dict[str, Any]) -> None:
    vectors = make.vectors(2)
    Image.fromarray(make.pixels_with(make.a1111(vectors))).convert(mode).save(tmp_path / "x", form, **options)
    assert torch.equal(vectors_of(read_picture((tmp_path / "x").read_bytes())), torch.from_numpy(vectors))


def test_reads_pixels_of_lossless_avif() -> None:
    if picture_pixels._opener("avif") is None:
        pytest.skip("this pillow cannot open AVIF")
    assert torch.equal(vectors_of(read_picture((DATA / "hidden.avif").read_bytes())), torch.from_numpy(RAMP))


def test_reads_pixels_of_lossless_jxl() -> None:
    pytest.importorskip("pillow_jxl", reason="pillow-jxl-plugin is not installed")
    assert torch.equal(vectors_of(read_picture((DATA / "hidden.jxl").read_bytes())), torch.from_numpy(RAMP))


@pytest.mark.parametrize(("name", "word"), [("hidden.jxl", "pillow-jxl-plugin"), ("hidden.avif", "pillow-avif-plugin")])
def test_names_the_missing_plugin(monkeypatch: pytest.MonkeyPatch, name: str, word: str) -> None:
    monkeypatch.setattr(picture_pixels, "_opener", lambda kind: None)
    error = error_of((DATA / name).read_bytes())
    assert error.code == "missing-decoder"
    assert word in str(error)
    assert read_picture((DATA / "lossy.jxl").read_bytes()) is None


def test_black_borders_are_cut_off() -> None:
    vectors = make.vectors(2)
    framed = np.pad(make.pixels_with(make.a1111(vectors)), ((30, 9), (4, 11), (0, 0)))
    for form, options in (("PNG", {}), ("WEBP", {"lossless": True})):
        assert torch.equal(vectors_of(read_picture(make.saved(framed, form, **options))), torch.from_numpy(vectors))


def test_interlaced_png() -> None:
    """Row order differs there: such a file has to be decoded as a whole."""
    vectors = make.vectors(1)
    pixels = make.pixels_with(make.a1111(vectors), 8, 40)
    assert torch.equal(vectors_of(read_picture(_interlaced(pixels))), torch.from_numpy(vectors))


def _interlaced(pixels: np.ndarray) -> bytes:
    """Adam7 with filter 0 (PNG specification, section 8.2); pillow cannot write it."""
    height, width, _ = pixels.shape
    passes = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
    raw = b"".join(
        b"\x00" + pixels[y, left::across].tobytes()
        for left, top, across, down in passes
        for y in range(top, height, down)
        if left < width
    )
    ihdr = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 1])
    chunks = make.chunk(b"IHDR", ihdr) + make.chunk(b"IDAT", zlib.compress(raw)) + make.chunk(b"IEND", b"")
    return picture_headers.PNG_SIGNATURE + chunks


def test_text_wins_and_pixels_replace_damaged_text() -> None:
    """The WebUI writes both copies into one file."""
    text, hidden = make.vectors(1, seed=1), make.vectors(1, seed=2)
    png = make.saved(make.pixels_with(make.a1111(hidden)))
    for value, expected in (
        (make.text_chunk(make.text_of(make.a1111(text))), text),
        (b"sd-ti-embedding\x00e30", hidden),
    ):
        both = png[:33] + make.chunk(b"tEXt", value) + png[33:]
        assert torch.equal(vectors_of(read_picture(both)), torch.from_numpy(expected))


def _ordinary() -> dict[str, bytes]:
    photo = make.photo(120, 90)
    framed = photo.copy()
    framed[:, 10] = framed[:, -11] = 0
    image = Image.fromarray(photo)
    return {
        "photo": make.saved(photo),
        "photo with thin black lines": make.saved(framed),
        "with black bars": make.saved(np.pad(photo, ((40, 40), (0, 0), (0, 0)))),
        "black": make.saved(np.zeros((70, 70, 3), np.uint8)),
        "white": make.saved(np.full((70, 70, 3), 255, np.uint8)),
        "one pixel": make.saved(np.full((1, 1, 3), 9, np.uint8)),
        "one row": make.saved(make.photo(300, 8)[:1]),
        "grey": make.saved(photo[:, :, 0]),
        "transparent": make.saved(np.zeros((70, 70, 4), np.uint8)),
        "palette": make.saved(np.asarray(image.convert("P", palette=Image.Palette.ADAPTIVE))),
        "lossless webp": make.saved(photo, "WEBP", lossless=True),
        "lossy webp": make.saved(photo, "WEBP"),
        "jpeg": make.saved(photo, "JPEG"),
        "gif": make.saved(photo[:, :, 0], "GIF"),
        "bmp": make.saved(photo, "BMP"),
        "other text": make.png_with_chunk(b"tEXt", b"parameters\x00a cat, Steps: 20"),
        "data squeezed by jpeg": make.saved(make.pixels_with(make.a1111(make.vectors(1))), "JPEG", quality=95),
        "cut off": make.saved(photo)[:900],
        "only a signature": picture_headers.PNG_SIGNATURE,
        "empty webp": b"RIFF\x04\x00\x00\x00WEBP",
        "heic": b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00" + bytes(64),
        "bare jxl signature": b"\xff\x0a",
    }


@pytest.mark.parametrize("name", _ordinary())
def test_ordinary_pictures_are_silent(name: str, caplog: pytest.LogCaptureFixture) -> None:
    data = _ordinary()[name]
    assert is_picture(data[:16])
    with caplog.at_level(logging.INFO), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_picture(data) is None
    assert not caplog.records


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"\x80\x02}q", b"<!DOCTYPE html>", b"BMI of the patients:"])
def test_other_files_are_no_pictures(data: bytes) -> None:
    assert not is_picture(data)
    assert read_picture(data) is None


def test_most_pictures_are_dismissed_undecoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole of a picture is decoded only where nothing cheaper can tell."""
    seen: list[int] = []
    load = ImageFile.ImageFile.load

    def spy(self: ImageFile.ImageFile) -> Any:
        seen.append(self.size[1])
        return load(self)

    monkeypatch.setattr(ImageFile.ImageFile, "load", spy)
    ordinary = _ordinary()
    seen.clear()
    read_picture(ordinary["photo"])
    assert set(seen) == {8}
    seen.clear()
    for name in ("jpeg", "lossy webp", "gif", "bmp", "grey", "palette"):
        read_picture(ordinary[name])
    assert seen == []


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (b"", "JSON"),
        (b"\xff\xfe", "JSON"),
        (b"[1, 2]", "table"),
        (b'{"a": [}', "JSON"),
        (b'{"TORCHTENSOR": [[1.0]]}', "name"),
        (b'{"a": {"TORCHTENSOR": [[1.0, 2.0], [3.0]]}}', "differ in length"),
        (b'{"a": {"TORCHTENSOR": [[1.0], 2.0]}}', "differ in length"),
        (b'{"a": {"TORCHTENSOR": [1.0, [2.0]]}}', "other than numbers"),
        (b'{"a": {"TORCHTENSOR": ["1.0"]}}', "other than numbers"),
        (b'{"a": {"TORCHTENSOR": [true]}}', "other than numbers"),
        (b'{"a": {"TORCHTENSOR": [null]}}', "other than numbers"),
        (b'{"a": {"TORCHTENSOR": {"b": 1}}}', "other than numbers"),
        (b'{"a": ' * 40 + b"1" + b"}" * 40, "nested"),
        (b"[" * 15_000, "nested"),
        (b"[" * 300_000, "too large"),
        (b'{"a": [' + b"1," * 2_000_000 + b"1]}", "too large"),
    ],
)
def test_damaged_text_is_one_plain_error(text: bytes, word: str) -> None:
    error = error_of(make.png_with_chunk(b"tEXt", make.text_chunk(text)))
    assert word in str(error)
    assert error.code == ("too-large" if word == "too large" else "damaged-picture")


def test_odd_numbers_stay_what_they_are() -> None:
    text = (
        b'{"a": {"TORCHTENSOR": [NaN, -Infinity, 1e39, 12345678901234567890123, 1, 0.5]}, "step": 7, "name": "\\ud83d"}'
    )
    found: Any = read_picture(make.png_with_chunk(b"tEXt", make.text_chunk(text)))
    values = found.tree["a"].read().tolist()
    assert math.isnan(values[0])
    assert values[1:] == [-math.inf, math.inf, pytest.approx(1.2345679e22), 1.0, 0.5]
    assert found.tree["step"] == 7
    assert found.tree["name"].encode("utf-8")


def test_numbers_of_a_million_digits_do_not_hang() -> None:
    text = b'{"step": ' + b"9" * 1_000_000 + b"}"
    found: Any = read_picture(make.png_with_chunk(b"tEXt", make.text_chunk(text)))
    assert found.tree["step"] == math.inf


@pytest.mark.parametrize("cut", [200, 4000])
def test_truncated_text_chunk(cut: int) -> None:
    whole = make.png_with_chunk(b"tEXt", make.text_chunk(make.text_of(make.a1111(make.vectors(1)))))
    assert "truncated" in str(error_of(whole[:cut]))


def test_one_changed_digit_is_noticed() -> None:
    whole = bytearray(make.png_with_chunk(b"tEXt", make.text_chunk(make.text_of(make.a1111(make.vectors(1))))))
    at = whole.index(b"sd-ti-embedding") + 3000
    whole[at] = ord("A") if whole[at] != ord("A") else ord("B")
    assert "checksum" in str(error_of(bytes(whole)))


def test_one_changed_pixel_is_noticed() -> None:
    pixels = make.pixels_with(make.a1111(make.vectors(2)))
    pixels[40, 2, 1] ^= 5
    assert error_of(make.saved(pixels)).code == "damaged-picture"


def test_pixels_cut_off_below() -> None:
    pixels = make.pixels_with(make.a1111(make.vectors(2)))
    assert "ends too early" in str(error_of(make.saved(pixels[:40])))


@pytest.mark.parametrize("cut", [0.5, 0.95])
def test_truncated_file_with_data_in_its_pixels(cut: float) -> None:
    whole = make.saved(make.pixels_with(make.a1111(make.vectors(8))))
    assert "truncated" in str(error_of(whole[: int(len(whole) * cut)]))


_SEEDS = {
    "text": make.png_with_chunk(b"tEXt", make.text_chunk(make.text_of(make.a1111(make.vectors(1))))),
    "packed": make.png_with_chunk(b"zTXt", make.text_chunk(make.text_of(make.a1111(make.vectors(1))), b"zTXt")),
    "pixels": make.saved(make.pixels_with(make.a1111(make.vectors(1)))),
    "webp": make.saved(make.pixels_with(make.a1111(make.vectors(1))), "WEBP", lossless=True),
    "avif": (DATA / "hidden.avif").read_bytes(),
    "jxl": (DATA / "hidden.jxl").read_bytes(),
}


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(sorted(_SEEDS)),
    spots=st.lists(st.tuples(st.floats(0, 0.9999), st.integers(0, 255)), min_size=1, max_size=4),
    early=st.booleans(),
    cut=st.floats(0.02, 1),
)
def test_mutations_give_data_silence_or_one_error(
    name: str, spots: list[tuple[float, int]], early: bool, cut: float
) -> None:
    data = bytearray(_SEEDS[name])
    for where, value in spots:
        data[int(where * (min(120, len(data)) if early else len(data)))] = value
    try:
        found = read_picture(bytes(data[: int(cut * len(data))]))
    except UnreadableFile:
        return
    assert found is None or isinstance(found.tree, dict)


@settings(max_examples=150, deadline=None)
@given(text=st.binary(max_size=200) | st.from_regex(r'(?:[\[\]{}",:]|TORCHTENSOR|1e?|-|NaN| ){0,40}', fullmatch=True))
def test_any_text_gives_data_or_one_error(text: bytes | str) -> None:
    raw = text if isinstance(text, bytes) else text.encode()
    try:
        found = read_picture(make.png_with_chunk(b"tEXt", make.text_chunk(raw)))
    except UnreadableFile:
        return
    assert found is not None
    assert isinstance(found.tree, dict)


def test_pillow_is_left_as_it_was() -> None:
    before = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters)
    for data in _SEEDS.values():
        with contextlib.suppress(UnreadableFile):
            read_picture(data)
    assert before == (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters))
