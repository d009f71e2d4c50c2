"""Every public bug report that comes as a file: what the project says of it, and the numbers it reads."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cases import cases, folder
from ti_fix.embedding import SD15, SDXL, Family
from ti_fix.repair import Judged, scan

FILES = {key: case for key, case in cases().items() if case["expect"]["verdict_on_sdxl"] != "n/a"}

PASSES = {"load": {"load", "warn"}, "repair": {"repair", "warn", "convert"}}
"""Verdicts that satisfy an expectation besides the expectation itself."""

BESIDE = {"D08": "corrupt", "N05": "dup-ti"}
"""Files of a case that the expected verdict does not speak of: trigger of the other embedding."""


def judge(key: str, family: Family = SDXL) -> list[Judged]:
    return [j for j in scan([folder() / "handover" / key], family=family) if j.trigger != BESIDE.get(key)]


@pytest.mark.parametrize("key", FILES)
def test_verdict(key: str) -> None:
    expected = FILES[key]["expect"]["verdict_on_sdxl"]
    judged = judge(key)
    assert judged or expected == "ignore"
    assert {j.result.verdict for j in judged} <= PASSES.get(expected, {expected})


@pytest.mark.parametrize("key", [k for k, c in FILES.items() if c["expect"]["encoders"]])
def test_encoders_and_values(key: str) -> None:
    expect = FILES[key]["expect"]
    for each in judge(key):
        shown = each.as_dict()
        assert shown["encoders"] == expect["encoders"]
        if each.parsed.paths[0].parent.name == "sub":
            continue  # the values are those of the file on top
        for encoder, values in expect.get("values", {}).items():
            block = each.result.after.vectors[encoder]  # type: ignore[union-attr]
            close = {"abs": expect["abs_tolerance"]}
            assert block[0, :4].tolist() == pytest.approx(values["row0_first4"], **close)
            assert block[-1, -4:].tolist() == pytest.approx(values["last_row_last4"], **close)
            assert shown["norms"][encoder] == pytest.approx(values["norms"], abs=0.01)


@pytest.mark.parametrize("key", [k for k, c in FILES.items() if c["expect"]["message_mentions"]])
def test_message_mentions(key: str) -> None:
    judged = scan([folder() / "handover" / key])
    told = " ".join(f.message for j in judged for f in j.result.findings)
    for word in FILES[key]["expect"]["message_mentions"]:
        assert word in told


@pytest.mark.parametrize("key", [k for k, c in FILES.items() if c["expect"].get("trigger")])
def test_trigger(key: str) -> None:
    expected = FILES[key]["expect"]["trigger"]
    if expected.startswith("each file's stem"):
        assert all(j.trigger == j.parsed.paths[0].stem for j in judge(key))
        return
    trigger, alias = re.fullmatch(r"(.+?)(?: \(alias (.+)\))?", expected).groups()  # type: ignore[union-attr]
    first = judge(key)[0]
    assert first.trigger == trigger
    assert alias is None or alias in first.aliases


@pytest.mark.parametrize("key", [k for k, c in FILES.items() if c["expect"].get("on_sd15_model") in ("load", "repair")])
def test_on_an_sd15_model(key: str) -> None:
    expected = FILES[key]["expect"]["on_sd15_model"]
    assert {j.result.verdict for j in judge(key, SD15)} <= PASSES.get(expected, {expected})


@pytest.mark.parametrize("key", FILES)
def test_nothing_on_disk_changes(key: str, tmp_path: Path) -> None:
    copy = tmp_path / key
    shutil.copytree(folder() / "handover" / key, copy)
    before = _contents(copy)
    scan([copy])
    assert _contents(copy) == before


def _contents(where: Path) -> dict[str, Any]:
    return {str(p): (p.read_bytes(), p.stat().st_mtime_ns) for p in sorted(where.rglob("*")) if p.is_file()}


def test_no_code_of_a_file_runs(capfd: pytest.CaptureFixture[str]) -> None:
    judge("D09")
    told = capfd.readouterr()
    assert "TI_FIX_CANARY executed" not in told.out + told.err


def test_a_pair_lists_both_files() -> None:
    (pair,) = judge("F07")
    assert [p.name for p in pair.parsed.paths] == ["learned_embeds.safetensors", "learned_embeds_2.safetensors"]


def test_the_longest_name_is_another_embedding() -> None:
    triggers = {j.trigger for j in judge("N06")}
    assert triggers == {"whatever-20", "whatever-200", "whatever-2000"}
