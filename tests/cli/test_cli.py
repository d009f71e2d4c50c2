"""The contract of the command line that scripts rely on."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from tests.cases import folder
from ti_fix.cli import main
from ti_fix.formats import read

CASES = folder() / "handover"
FIELDS = {
    "paths", "trigger", "aliases", "layout", "made_for", "verdict", "encoders", "norms", "repairs", "findings",
}  # fmt: skip


def run_json(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> list[dict[str, Any]]:
    assert main([*map(str, argv), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def files_of(where: Path) -> list[str]:
    return sorted(p.name for p in where.iterdir())


def test_inspect_prints_one_object_per_embedding(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = run_json(capsys, "inspect", CASES / "F06")
    assert set(found) == FIELDS
    assert found["paths"] == [str(CASES / "F06" / "unaesthetic.safetensors")]
    assert (found["trigger"], found["made_for"], found["verdict"]) == ("unaesthetic", "sdxl", "load")
    assert found["encoders"] == {"clip_l": [3, 768], "clip_g": [3, 1280]}
    assert found["norms"]["clip_l"] == pytest.approx([0.3898, 0.395, 0.3839], abs=1e-3)


def test_findings_have_code_severity_and_message(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = run_json(capsys, "inspect", CASES / "S01")
    assert all(set(f) == {"code", "severity", "message"} for f in found["findings"])
    assert found["repairs"]


def test_numbers_that_are_not_finite_are_null(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = run_json(capsys, "inspect", CASES / "V01" / "nan.safetensors")
    norms = [n for rows in found["norms"].values() for n in rows]
    assert None in norms
    assert found["verdict"] == "reject"
    assert found["encoders"] is None


@pytest.mark.parametrize(("family", "verdict"), [("sdxl", "convert"), ("sd15", "load"), ("sd2", "reject")])
def test_for_another_family(family: str, verdict: str, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = run_json(capsys, "inspect", CASES / "F03", "--for", family)
    assert found["verdict"] == verdict


def test_folders_recurse_and_a_file_given_twice_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "inspect", CASES / "N05", CASES / "N05" / "dup.pt")
    assert len(found) == 3


def test_a_missing_path_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(CASES / "F06"), "no-such-file.pt", "--json"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "no-such-file.pt" in told.err


@pytest.mark.parametrize(
    "argv", [[], ["inspect"], ["inspect", ".", "--for", "sd9"], ["no-such-command"], ["repair", "."]]
)
def test_wrong_use_is_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err


@pytest.mark.parametrize(
    "argv", [["--help"], ["inspect", "--help"], ["repair", "--help"], ["demo", "--help"], ["--version"]]
)
def test_help_is_0(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize(("case", "code"), [("F06", 0), ("V01", 1), ("S01", 0)])
def test_strict_is_1_when_a_file_is_rejected(case: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(CASES / case), "--strict"]) == code


def test_the_table_for_people_names_every_file_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(CASES / "D08")]) == 0
    told = capsys.readouterr().out
    assert "corrupt.pt" in told
    assert "good" in told
    assert told.rstrip().endswith("2 looked at: 1 warn, 1 reject.")


def test_repair_writes_clean_files_and_says_which(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "repair", CASES / "S04", CASES / "F07", CASES / "V01", "--out", tmp_path)
    assert all(set(f) == FIELDS | {"written"} for f in found)
    written = {f["trigger"]: [Path(p).name for p in f["written"]] for f in found}
    assert written == {"uneven": ["uneven.safetensors"], "toy": ["toy.safetensors"], "inf": [], "nan": []}
    assert files_of(tmp_path) == ["toy.safetensors", "uneven.safetensors"]
    clean = safetensors.torch.load_file(tmp_path / "uneven.safetensors")
    assert {k: list(v.shape) for k, v in clean.items()} == {"clip_l": [4, 768], "clip_g": [4, 1280]}
    before = read(CASES / "S04" / "uneven.safetensors").embedding
    assert before is not None
    assert torch.equal(clean["clip_l"], before.vectors["clip_l"])


def test_repairing_the_result_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_json(capsys, "repair", CASES / "S01", "--out", tmp_path / "one")
    first = (tmp_path / "one" / "swapped.safetensors").read_bytes()
    (again,) = run_json(capsys, "repair", tmp_path / "one", "--out", tmp_path / "two")
    assert again["repairs"] == []
    second = safetensors.torch.load(Path(again["written"][0]).read_bytes())
    assert all(torch.equal(block, second[key]) for key, block in safetensors.torch.load(first).items())


def test_running_it_twice_is_fine_but_other_content_is_never_replaced(tmp_path: Path) -> None:
    command = ["repair", str(CASES / "F06"), "--out", str(tmp_path)]
    assert main(command) == 0
    assert main(command) == 0
    target = tmp_path / "unaesthetic.safetensors"
    target.write_bytes(b"mine")
    assert main(command) == 2
    assert target.read_bytes() == b"mine"
    assert main([*command, "--overwrite"]) == 0
    assert target.read_bytes() != b"mine"


def test_the_forms_of_other_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = run_json(capsys, "repair", CASES / "S01", "--out", tmp_path, "--form", "diffusers")
    assert len(found["written"]) == 2
    widths = {block.shape[1] for p in found["written"] for block in safetensors.torch.load_file(p).values()}
    assert widths == {768, 1280}


def test_a_clean_file_says_where_it_comes_from(tmp_path: Path) -> None:
    source = CASES / "S01" / "swapped.safetensors"
    assert main(["repair", str(source), "--out", str(tmp_path)]) == 0
    with safetensors.safe_open(tmp_path / "swapped.safetensors", "pt") as clean:
        about = clean.metadata()
    assert about["ti_fix.source_sha256"] == hashlib.sha256(source.read_bytes()).hexdigest()
    assert about["ti_fix.source_layout"] == "clip_l/clip_g"


def test_split_writes_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = run_json(capsys, "repair", CASES / "V07", "--out", tmp_path, "--split")
    assert [Path(p).name for p in found["written"]] == ["long80-1.safetensors", "long80-2.safetensors"]
    assert safetensors.torch.load_file(tmp_path / "long80-2.safetensors")["clip_g"].shape == (5, 1280)


def test_extract_takes_embeddings_out_of_a_lora(tmp_path: Path) -> None:
    lora = CASES / "X03"
    assert main(["repair", str(lora), "--out", str(tmp_path)]) == 0
    assert not list(tmp_path.glob("*"))
    assert main(["repair", str(lora), "--out", str(tmp_path), "--extract"]) == 0
    assert files_of(tmp_path) == ["hero.safetensors"]


def test_one_name_from_two_folders_gives_two_files(tmp_path: Path) -> None:
    assert main(["repair", str(CASES / "N07"), str(CASES / "N05"), "--out", str(tmp_path)]) == 0
    names = [n.casefold() for n in files_of(tmp_path)]
    assert len(names) == 5
    assert len(set(names)) == 5


def test_names_that_prompts_cannot_hold_become_their_alias(tmp_path: Path) -> None:
    assert main(["repair", str(CASES / "N03"), "--out", str(tmp_path)]) == 0
    expected = ["a-b", "cat-toy", "emb-v2-final", "fast-slow", "name_with_-1.2"]
    assert files_of(tmp_path) == [f"{name}.safetensors" for name in expected]
    assert main(["inspect", str(tmp_path), "--strict"]) == 0


def test_the_demo_ends_in_clean_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--only", "repair", "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "14 clean files written, parts and extracted ones too; read again: 14 looked at: 12 load, 2 convert." in told


def test_as_a_program_with_names_that_the_terminal_cannot_show(tmp_path: Path) -> None:
    name = "猫-\udcff.safetensors"
    healthy = {"clip_l": torch.ones(1, 768), "clip_g": torch.ones(1, 1280)}
    (tmp_path / name).write_bytes(safetensors.torch.save(healthy))
    environment = {"PYTHONIOENCODING": "ascii", "PYTHONPATH": str(Path(__file__).parents[2])}
    for flags in ([], ["--json"]):
        command = [sys.executable, "-m", "ti_fix", "inspect", str(tmp_path), *flags]
        done = subprocess.run(command, capture_output=True, env=environment, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert b"\\u732b" in done.stdout or b"\\u" in done.stdout


def test_wrong_use_is_one_line_that_names_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ti-fix train: ") and line.endswith("see ti-fix train --help")
