"""The demo's parts on the small model: what they leave, and what the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from safetensors.torch import load_file

from ti_fix.cli import demo_training, main
from ti_fix.cli.demo_report import Section, strip, write_report


def test_the_page_escapes_what_it_shows_and_names_pictures_beside_it(tmp_path: Path) -> None:
    picture = strip([Image.new("RGB", (8, 6), colour) for colour in ("red", "blue")], tmp_path / "pictures" / "a.png")
    with Image.open(picture) as joined:
        assert (
            joined.size == (20, 6)
            and joined.getpixel((0, 0)) == (255, 0, 0)
            and joined.getpixel((19, 0)) == (0, 0, 255)
        )
    section = Section(title="<One>", lines=["a & b"], table=[("head",), ("<cell>",)], pictures={picture: "two"})
    page = write_report(tmp_path / "report.html", [section]).read_text()
    assert "<h2>&lt;One&gt;</h2><p>a &amp; b</p>" in page and 'src="pictures/a.png"' in page
    assert "<th>head</th>" in page and "<td>&lt;cell&gt;</td>" in page


@pytest.mark.slow
def test_the_demo_trains_converts_and_writes_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"STEPS": 2, "_SHOWN": 1, "_MADE": 1}.items():
        monkeypatch.setattr(demo_training, name, value)
    assert main(["demo", "--only", "train", "convert", "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "Trained for 2 steps" in told and "Converted 2 vectors" in told
    for path in ("learned/zqx-demo", "converted/zqx-old"):
        assert {k: b.shape[1] for k, b in load_file(tmp_path / f"{path}.safetensors").items()} == {
            "clip_l": 768, "clip_g": 1280,
        }  # fmt: skip
    assert (tmp_path / "photos" / "1.png").is_file() and "zqx-demo" in (tmp_path / "photos" / "1.txt").read_text()
    page = (tmp_path / "report.html").read_text()
    for name in ("shown", "before", "after", "left", "converted", "words"):
        assert f'src="pictures/{name}.png"' in page and (tmp_path / "pictures" / f"{name}.png").is_file()
