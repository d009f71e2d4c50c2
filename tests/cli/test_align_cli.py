"""`ti-fix align` and `ti-fix tokens` as scripts use them."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from ti_fix.cli import main

LEFT = "conditioner.embedders.0.transformer.text_model.embeddings."
RIGHT = "conditioner.embedders.1.model."


@pytest.fixture
def merged(tmp_path):
    """A checkpoint with one extra row and position ids as a merge leaves them."""
    generator = torch.Generator().manual_seed(0)
    path = tmp_path / "merged.safetensors"
    tensors = {
        LEFT + "token_embedding.weight": torch.randn(49409, 8, generator=generator),
        LEFT + "position_ids": (torch.arange(77) - 0.02).clamp(min=0)[None],
        RIGHT + "token_embedding.weight": torch.randn(49409, 8, generator=generator),
    }
    save_file(tensors, path)
    return path


def run_json(capsys, *argv):
    code = main([*map(str, argv), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_report_as_json(merged, capsys):
    code, report = run_json(capsys, "align", merged, "--text", "my\u200btoy")
    assert code == 0
    assert (report["family"], report["light"]) == ("sdxl", "red")
    told = {(c["code"], c["severity"]) for c in report["checks"] if c["severity"] != "ok"}
    assert told == {("table-rows", "warning"), ("position-ids", "error"), ("text", "warning")}
    (positions,) = (c for c in report["checks"] if c["code"] == "position-ids")
    assert (positions["expected"], positions["repaired"]) == ("0 to 76", "0 to 76")
    assert report["encoders"][0]["rows"] == 49409


def test_mended_copy_extra_rows_and_strict(merged, tmp_path, capsys):
    out, folder = tmp_path / "mended.safetensors", tmp_path / "embeddings"
    assert main(["align", str(merged), "--out", str(out), "--embeddings", str(folder), "--strict"]) == 1
    assert "merged.safetensors: SDXL, red" in capsys.readouterr().out
    assert load_file(out)[LEFT + "token_embedding.weight"].shape == (49408, 8)
    assert main(["align", str(out), "--strict"]) == 0


def test_rows_of_the_real_width_become_files(tmp_path, capsys):
    rows = {LEFT + "token_embedding.weight": (49409, 768), RIGHT + "token_embedding.weight": (49409, 1280)}
    save_file({k: torch.ones(shape, dtype=torch.float16) for k, shape in rows.items()}, tmp_path / "wide.safetensors")
    assert main(["align", str(tmp_path / "wide.safetensors"), "--embeddings", str(tmp_path / "out")]) == 0
    found = load_file(tmp_path / "out" / "extra-1.safetensors")
    assert {k: list(v.shape) for k, v in found.items()} == {"clip_l": [1, 768], "clip_g": [1, 1280]}
    capsys.readouterr()


def test_the_self_test_as_json(capsys):
    code, result = run_json(capsys, "align", "--self-test")
    assert code == 0
    assert result["false_alarms"] == 0
    assert len(result["faults"]) >= 13
    assert all(fault["found"] and fault["repaired"] for fault in result["faults"])


@pytest.mark.parametrize("argv", [["align"], ["align", "no-such-model"], ["tokens"]])
def test_wrong_use(argv, capsys):
    assert main(argv) == 2
    assert capsys.readouterr().err


def test_tokens_with_an_embedding_from_a_folder(tmp_path, capsys):
    halves = {"clip_l": torch.rand(2, 768), "clip_g": torch.rand(2, 1280)}
    save_file(halves, tmp_path / "mytoy.safetensors")
    code, found = run_json(capsys, "tokens", "a photo of mytoy", "--embeddings", tmp_path)
    assert code == 0
    assert [e["encoder"] for e in found["encoders"]] == ["clip_l", "clip_g"]
    assert found["encoders"][1]["embeddings"] == [
        {"name": "mytoy", "chunk": 0, "position": 4, "vectors": 2, "missing": 0}
    ]
    assert main(["tokens", "a (cat:1.2)", "--for", "sd15"]) == 0
    assert "2368  cat</w>  x 1.2" in capsys.readouterr().out


def test_tokens_of_a_model_know_its_added_rows(merged, capsys):
    code, found = run_json(capsys, "tokens", "a extra-1", "--model", merged)
    assert code == 0
    assert found["encoders"][0]["embeddings"][0]["name"] == "extra-1"


def test_a_small_model_is_to_be_written_first_where_files_are_read(capsys):
    assert main(["align", "small:sdxl"]) == 2
    assert "ti-fix demo-model --model sdxl --layout a1111" in capsys.readouterr().err
