from __future__ import annotations

from html.parser import HTMLParser

import pytest
import torch
from PIL import Image

from tests.ui.folders import STATES, StandIn, fill, save, vectors
from ti_fix.ui import files_details, markup
from ti_fix.ui.files_details import details, head, preview, prompt_text
from ti_fix.ui.files_table import PAGE_ROWS, View, chips, clamped, filtered, found, table
from ti_fix.ui.library import Library

NOBODY = frozenset()


class Tags(HTMLParser):
    """Tags with their attributes, and the text."""

    def __init__(self, source):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def entries(tmp_path):
    return Library(StandIn(fill(tmp_path / "embeddings"))).refreshed()


def named(entries, trigger):
    return next(each for each in entries if each.trigger == trigger)


def triggers(entries):
    return {each.trigger for each in entries}


def test_search_wants_every_word_anywhere(entries):
    assert triggers(found(entries, "XQ sub/")) == {"swapped-xq"}
    assert triggers(found(entries, "sd1.5")) == {"old-xq"}
    assert triggers(found(entries, "")) == STATES.keys()
    assert not found(entries, "xq nothing")


def test_filter_by_state_and_by_picture(entries):
    assert triggers(filtered(entries, "reject", NOBODY)) == {"broken-xq", "long-xq"}
    assert triggers(filtered(entries, "used", frozenset({"READY-XQ", "learned_embeds"}))) == {"ready-xq", "my-toy"}


def test_chips_count(entries):
    drawn = Tags(chips(entries, "reject", frozenset({"ready-xq"})))
    buttons = [attrs for tag, attrs in drawn.tags if tag == "button"]
    assert [b["data-ti-fix"] for b in buttons if b["aria-pressed"] == "true"] == ["show:reject"]
    assert drawn.text == "All7Ready1Repaired2Look here1Converted1Unusable2In the last picture1"


def test_pages(tmp_path, entries):
    many = [entries[i % len(entries)] for i in range(2 * PAGE_ROWS + 3)]
    drawn = Tags(table(many, View(page=1), NOBODY))
    assert sum(tag == "tr" for tag, _ in drawn.tags) == PAGE_ROWS + 1
    commands = {attrs.get("data-ti-fix") for _, attrs in drawn.tags}
    assert {"page:0", "page:2"} <= commands
    assert "51–100 of 103" in drawn.text
    assert (clamped(9, 103), clamped(-1, 103), clamped(3, 0)) == (2, 0, 0)


def test_a_row_says_what_it_is(entries):
    drawn = Tags(table([named(entries, "swapped-xq")], View(), frozenset({"swapped-xq"})))
    for text in ("swapped-xq", "sub/swapped-xq.safetensors", "SDXL", "Repaired", "Swapped the halves back", "used"):
        assert text in drawn.text


@pytest.mark.parametrize(
    "name",
    [
        "<img src=x onerror=alert(1)>",
        'a"onmouseover="alert(1)',
        "a'onfocus='alert(1)",
        "&lt;b&gt;",
        "</div></td><script>alert(1)<!--",
        "\u202egpj.exe",
        "new\nline\tand\x07bell",
        "lone-\udcff-half",
    ],
)
def test_hostile_names_are_text(tmp_path, name):
    left, right = vectors(1)
    whole = save(tmp_path / "plain.safetensors", {"clip_l": left, "clip_g": right}).read_bytes()
    root = tmp_path / "embeddings"
    (root / name.replace("/", "_")).mkdir(parents=True)
    (root / name.replace("/", "_") / f"{name.replace('/', '_')}.safetensors").write_bytes(whole)
    [entry] = Library(StandIn(root)).refreshed()
    drawn = chips([entry], "all", NOBODY) + table([entry], View(chosen=entry.id), NOBODY) + head(entry) + details(entry)
    drawn += markup.message(str(entry.paths[0]), "bad") + markup.empty("none", "do", [str(entry.paths[0])])
    drawn.encode("utf-8")
    seen = Tags(drawn)
    assert not {"img", "script", "b><"} & {tag for tag, _ in seen.tags}
    attributes = {name for _, attrs in seen.tags for name in attrs}
    assert not [each for each in attributes if each.startswith("on")]
    assert not set("\u202e\x07\udcff") & set(drawn)


def test_what_a_prompt_must_contain(entries):
    told = {each.trigger: prompt_text(each) for each in entries}
    assert told["ready-xq"] == "ready-xq"
    assert told["old-xq"] == "old-xq"
    assert told["a(b)xq"] == "a-b-xq"
    assert told["broken-xq"] == told["long-xq"] == ""


def test_a_name_inside_a_file_that_is_an_ordinary_word_is_no_trigger(tmp_path):
    """Prompts hold such words; the WebUI is given the file under its stem (see `repair.on_load`)."""
    left, right = vectors(2)
    save(tmp_path / "learned_embeds.safetensors", {"<toy>": left})
    save(tmp_path / "learned_embeds_2.safetensors", {"<toy>": right})
    [entry] = Library(StandIn(tmp_path)).refreshed()
    assert (entry.trigger, prompt_text(entry)) == ("toy", "learned_embeds")


def test_details_show_findings_and_lengths(entries):
    drawn = Tags(details(named(entries, "broken-xq")))
    assert "NaN" in drawn.text
    bars = [attrs for tag, attrs in drawn.tags if tag == "i"]
    assert [b["title"] for b in bars if b.get("class") == "broken"] == [f"{n}: not a number" for n in (1, 2, 3)]
    left = torch.linalg.vector_norm(vectors(3)[0], dim=1)
    assert [b["title"] for b in bars][:3] == [f"{n}: {length:.4g}" for n, length in enumerate(left.tolist(), 1)]
    assert "Nothing: a healthy file." in Tags(details(named(entries, "ready-xq"))).text


def test_picture_beside_the_file(entries, tmp_path):
    entry = named(entries, "ready-xq")
    assert preview(entry) == ""
    picture = tmp_path / "embeddings" / "ready-xq.preview.png"
    Image.new("RGBA", (900, 300), (200, 30, 30, 255)).save(picture)
    assert preview(entry).startswith("data:image/jpeg;base64,")
    assert len(preview(entry)) < 20_000


@pytest.mark.parametrize("kind", ["broken", "bomb", "svg", "link"])
def test_pictures_that_are_none(entries, tmp_path, monkeypatch, kind):
    picture = tmp_path / "embeddings" / "ready-xq.preview.png"
    if kind == "broken":
        picture.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(50))
    elif kind == "bomb":
        Image.new("L", (300, 300)).save(picture)
        monkeypatch.setattr(files_details, "PREVIEW_PIXELS", 1000)
    elif kind == "svg":
        picture.write_text("<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>", encoding="utf-8")
    else:
        Image.new("L", (30, 30)).save(tmp_path / "secret.png")
        picture.symlink_to(tmp_path / "secret.png")
    assert preview(named(entries, "ready-xq")) == ""


@pytest.mark.parametrize(
    ("seconds", "told"), [(0.4, "0 s"), (61, "61 s"), (200, "3 min"), (3600, "60 min"), (7500, "2 h 5 min")]
)
def test_durations(seconds, told):
    assert markup.duration(seconds) == told


@pytest.mark.parametrize(("count", "told"), [(12, "12 bytes"), (32900, "32.9 kB"), (5_120_000, "5.12 MB")])
def test_sizes(count, told):
    assert markup.size(count) == told
