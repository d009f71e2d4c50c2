"""``ti-fix convert`` from files to files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from ti_fix.cli import main
from ti_fix.embedding import family_name

L_NAME = "conditioner.embedders.0.transformer.text_model.embeddings.token_embedding.weight"
G_NAME = "conditioner.embedders.1.model.token_embedding.weight"


def tables(seed: int = 0) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return {
        L_NAME: torch.randn(300, 768, generator=random) * 0.0134,
        G_NAME: torch.randn(300, 1280, generator=random) * 0.0163,
    }


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(tables(), path)
    return path


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "in" / "hero-xq.safetensors"
    path.parent.mkdir()
    told = {"modelspec.author": "somebody", "modelspec.license": "CC0"}
    safetensors.torch.save_file({"emb_params": tables()[L_NAME][4:6] * 3}, path, metadata=told)
    return path


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is learned of the checkpoint is learned once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


def run(capsys: pytest.CaptureFixture[str], *argv: object, code: int = 0) -> Any:
    assert main(["convert", *map(str, argv), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_a_folder_to_sdxl(old: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = run(capsys, old.parent, "--to", "SDXL", "--model", model, "--out", tmp_path / "out")
    assert [row["method"] for row in found["vectors"]] == ["vocabulary"] * 2
    assert found["vectors"][0]["confidence"] == {"expected": 1.0, "low": 1.0, "high": 1.0}
    written = Path(found["written"][0])
    torch.testing.assert_close(safetensors.torch.load_file(written)["clip_g"], tables()[G_NAME][4:6] * 3)
    with safetensors.safe_open(written, "pt") as file:
        told = file.metadata()
    assert (told["modelspec.author"], told["modelspec.license"]) == ("somebody", "CC0")
    assert told["ti_fix.converted_from"] == "SD1.5, auto"
    assert len(told["ti_fix.source_sha256"]) == 64


def test_there_and_back(old: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (there,) = run(capsys, old, "--to", "sdxl", "--model", model, "--out", tmp_path / "xl")
    (back,) = run(capsys, there["written"][0], "--to", "sd1.5", "--out", tmp_path / "back")
    first, second = (safetensors.torch.load_file(path)["emb_params"] for path in (old, back["written"][0]))
    assert torch.equal(first, second)


def test_drift_is_told_where_both_checkpoints_are_named(
    old: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.safetensors"
    safetensors.torch.save_file(tables(seed=1), other)
    (there,) = run(capsys, old, "--to", "sdxl", "--model", model, "--out", tmp_path / "xl")
    both = ("--from-model", model, "--model", other)
    (back,) = run(capsys, there["written"][0], "--to", "SD1.5", *both, "--out", tmp_path / "back")
    assert [finding["code"] for finding in back["findings"]] == ["drifted-vocabulary"]


def test_what_cannot_be_converted_has_its_reason(
    old: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (there,) = run(capsys, old, "--to", "sdxl", "--model", model, "--out", tmp_path / "xl")
    (again,) = run(capsys, there["written"][0], "--to", "sdxl", "--model", model, "--out", tmp_path / "no", code=1)
    assert "already" in again["message"]
    sd2 = tmp_path / "two-xq.safetensors"
    safetensors.torch.save_file({"emb_params": torch.ones(1, 1024)}, sd2)
    (refused,) = run(capsys, sd2, "--to", "sdxl", "--model", model, "--out", tmp_path / "no", code=1)
    assert "SD 2" in refused["message"] and not refused["written"]


def test_without_a_model_it_says_what_to_name(old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(old), "--to", "sdxl", "--out", str(tmp_path)]) == 2
    assert "--model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("SD1.5", "sd15"),
        ("sd 1.5", "sd15"),
        ("SD-XL", "sdxl"),
        ("SDXL 1.0", "sdxl"),
        ("sd2.1", "sd2"),
        ("sdxl-refiner", "sdxl-refiner"),
        ("sd9", "sd9"),
    ],
)
def test_families_as_people_write_them(written: str, name: str) -> None:
    assert family_name(written) == name
