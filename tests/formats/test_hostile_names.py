"""Names in and of files that would command a terminal, fake a line of the report, or lead out of a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.formats import bombs
from tests.formats import picture_maker as make
from tests.formats.test_hostile import error, judged
from ti_fix.cli import main
from ti_fix.embedding import Finding
from ti_fix.errors import UnreadableFile
from ti_fix.formats import read
from ti_fix.repair import repair

NASTY = {
    "terminal commands": "\x1b[2J\x1b]0;owned\x07\x1b[32mhero\x1b[0m",
    "line ends": "hero\nload    good.pt for SDXL\r\n",
    "backspaces": "bad\b\b\bgood",
    "turned reading direction": "hero\u202etp.\u2066fdp",
    "line and paragraph separators": "hero\u2028load\u2029load\x85load",
    "zero-width": "he\u200bro\ufeff",
    "very long": "x" * 480,
    "quotes and braces": "'{hero!r}\" % {0} %s %(x)s \\",
    "markup": "<script>alert(1)</script>",
}


def halves(name: str) -> dict[str, torch.Tensor]:
    return {f"{name}1": torch.ones(1, 768), f"{name}2": torch.ones(1, 1280), "other": torch.ones(3, 5)}


LAYOUTS = {
    "several": lambda n: {n: torch.ones(1, 768), f"{n}b": torch.ones(1, 768)},
    "nested": lambda n: {n: {f"{n}.clip_l": torch.ones(1, 768)}},
    "extra": lambda n: {"clip_l": torch.ones(1, 768), "clip_g": torch.ones(1, 1280), n: torch.ones(3, 5)},
    "outputs": lambda n: {"clip_l": torch.ones(1, 768), f"{n}.clip_g_out": torch.ones(1, 1280)},
    "only outputs": lambda n: {f"{n}.clip_g_out": torch.ones(1, 1280)},
    "unknown": lambda n: {n: torch.ones(2, 77)},
    "bundle": lambda n: {
        "lora_unet_x.lora_down.weight": torch.ones(4, 4),
        f"bundle_emb.{n}.clip_l": torch.ones(1, 768),
    },
    "parts": lambda n: {f"{n}_1": torch.ones(1, 768), f"{n}_2": torch.ones(1, 768)},
    "metadata": lambda n: {"string_to_param": {"*": torch.ones(1, 768)}, "name": n, "sd_checkpoint_name": n},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("nasty", NASTY)
def test_names_in_a_file_cannot_leave_their_quotes(nasty: str, layout: str, tmp_path: Path) -> None:
    path = tmp_path / "hero.pt"
    torch.save(LAYOUTS[layout](NASTY[nasty]), path)
    result = repair(read(path))
    for finding in result.findings:
        assert finding.message.isprintable()
        assert len(finding.message) < 600
        assert finding.repaired.isprintable()
    assert read(path).layout.isprintable()


@pytest.mark.parametrize("nasty", [n for n in NASTY if n not in ("very long", "markup")])
def test_names_of_files_cannot_leave_their_sentence(nasty: str, tmp_path: Path) -> None:
    path = tmp_path / f"{NASTY[nasty]}.pt"
    path.write_bytes(b"<html>")
    message = error(read(path)).message
    assert message.isprintable()
    assert len(message) < 600
    assert "web page" in message


def test_a_file_name_of_the_longest_kind_leaves_room_for_the_reason(tmp_path: Path) -> None:
    path = tmp_path / ("\x1b" * 250 + ".pt")
    path.write_bytes(b"<html><title>Log in</title>")
    message = error(read(path)).message
    assert "web page" in message
    assert "download it again" in message


def test_titles_and_errors_of_web_pages_are_quoted(tmp_path: Path) -> None:
    page = b"<html><title>&#27;[2J&#10;load good.pt &#8238;</title>"
    answer = json.dumps({"error": "\x1b[2J\nload good.pt " + "x" * 2000}).encode()
    for data in (page, answer, b"\xef\xbb\xbfhello \x1b[2J".replace(b"\x1b", b"\xc2\x9b") * 50):
        message = error(judged(data, tmp_path / "hero.pt")).message
        assert message.isprintable()
        assert len(message) < 600


def test_findings_and_errors_are_safe_by_themselves() -> None:
    text = "\x1b[2J" + "\n" * 5000
    finding = Finding(code="x", severity="note", message=text, repaired=text)
    for shown in (finding.message, finding.repaired, str(UnreadableFile("x", text))):
        assert shown.isprintable()
        assert len(shown) < 600
        assert shown.startswith("\\x1b[2J\\n")


def test_names_cannot_command_the_terminal_or_add_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, name in enumerate(n for n in NASTY.values() if len(n) < 200 and "/" not in n):
        (tmp_path / f"{name}{number}.pt").write_bytes(bombs.honest_zip())
        (tmp_path / f"{name}{number}.bin").write_bytes(b"<html>")
    assert main(["inspect", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert all(line.isprintable() for line in told.split("\n"))
    lines = [line for line in told.splitlines() if not line.startswith("   ")]
    assert len(lines) == 2 + len(list(tmp_path.iterdir()))  # the summary, and how SD1.5 files are converted


def test_names_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    source, out = tmp_path / "deep" / "source", tmp_path / "deep" / "out"
    source.mkdir(parents=True)
    names = [
        "../evil",
        str(tmp_path / "evil"),
        "..",
        ".",
        "a/../../evil",
        "..\\evil",
        "CON",
        "evil:stream",
        "nul\0evil",
        "-rf",
    ]
    for number, name in enumerate(names):
        text = make.text_chunk(make.text_of(make.a1111(make.vectors(1), name)))
        (source / f"{number}.png").write_bytes(make.png_with_chunk(b"tEXt", text))
        bundle = {"lora_unet_x.lora_down.weight": torch.ones(4, 4), f"bundle_emb.{name}.clip_l": torch.ones(1, 768)}
        torch.save(bundle, source / f"{number}.pt")
    before = sorted(source.iterdir())
    assert main(["repair", str(source), "--out", str(out), "--extract"]) == 0
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path.parent != source]
    assert len(written) == 2 * len(names)
    assert all(path.parent == out and path.suffix == ".safetensors" for path in written)
    assert sorted(source.iterdir()) == before
