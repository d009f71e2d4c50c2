"""What is written: whole, the same each time, nothing private, never over another file."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from ti_fix import __version__
from ti_fix.embedding import SD3, SD15, SDXL, Embedding
from ti_fix.errors import TiFixError, WrongUse
from ti_fix.formats import read
from ti_fix.formats.metadata import travels
from ti_fix.formats.write import file_name, to_bytes, write, write_bytes


def embedding(rows: int = 2, widths: dict[str, int] | None = None, **more: Any) -> Embedding:
    generator = torch.Generator().manual_seed(3)
    widths = widths or {"clip_l": 768, "clip_g": 1280}
    blocks = {key: torch.randn(rows, width, generator=generator) * 0.0135 for key, width in widths.items()}
    return Embedding(**{"name": "hero", "vectors": blocks, **more})


def header_of(data: bytes) -> dict[str, str]:
    """The metadata, read byte by byte after the format's description."""
    (length,) = struct.unpack("<Q", data[:8])
    assert (8 + length) % 8 == 0
    return json.loads(data[8 : 8 + length])["__metadata__"]


@pytest.mark.parametrize(
    ("widths", "family", "keys", "architecture"),
    [
        ({"clip_l": 768, "clip_g": 1280}, None, {"clip_l", "clip_g"}, "stable-diffusion-xl-v1-base"),
        ({"clip_l": 768}, None, {"emb_params"}, "stable-diffusion-v1"),
        ({"clip_l": 768}, SDXL, {"clip_l"}, "stable-diffusion-xl-v1-base"),
        ({"clip_g": 1280}, SDXL, {"clip_g"}, "stable-diffusion-xl-v1-base"),
        ({"clip_h": 1024}, None, {"emb_params"}, "stable-diffusion-v2-768-v"),
        ({"clip_g": 1280}, None, {"clip_g"}, "stable-diffusion-xl-v1-refiner"),
        ({"clip_l": 768, "clip_g": 1280, "t5": 4096}, SD3, {"clip_l", "clip_g", "t5xxl"}, "stable-diffusion-v3-medium"),
    ],
)
def test_keys_and_architecture(widths: dict[str, int], family: Any, keys: set[str], architecture: str) -> None:
    whole = embedding(widths=widths)
    data = to_bytes(whole, family=family)
    tensors = safetensors.torch.load(data)
    assert tensors.keys() == keys
    assert sorted(t.shape[1] for t in tensors.values()) == sorted(widths.values())
    for tensor in tensors.values():
        same = [b for b in whole.vectors.values() if b.shape == tensor.shape]
        assert torch.equal(tensor, same[0])
    assert header_of(data)["modelspec.architecture"] == f"{architecture}/textual-inversion"


def test_reads_back_as_the_same(tmp_path: Path) -> None:
    before = embedding(name="heldin ñ", metadata={"modelspec.author": "Ada Lovelace", "name": "heldin"})
    parsed = read(write(before, tmp_path))
    assert parsed.trigger == "heldin ñ"
    assert parsed.embedding is not None
    assert all(torch.equal(parsed.embedding.vectors[k], v) for k, v in before.vectors.items())
    assert to_bytes(parsed.embedding) == to_bytes(before)


def test_header_follows_model_spec() -> None:
    data = to_bytes(embedding())
    start = 8 + struct.unpack("<Q", data[:8])[0]
    assert header_of(data) == {
        "format": "pt",
        "modelspec.architecture": "stable-diffusion-xl-v1-base/textual-inversion",
        "modelspec.hash_sha256": "0x" + hashlib.sha256(data[start:]).hexdigest(),
        "modelspec.implementation": "https://github.com/Stability-AI/generative-models",
        "modelspec.resolution": "1024x1024",
        "modelspec.sai_model_spec": "1.0.0",
        "modelspec.title": "hero",
        "modelspec.trigger_phrase": "hero",
        "ti_fix.schema": "1",
        "ti_fix.version": __version__,
    }


def test_same_bytes_in_every_process() -> None:
    """Dictionary order of the library's metadata changes from process to process."""
    code = (
        "import hashlib, torch; from ti_fix.embedding import Embedding; from ti_fix.formats.write import to_bytes;"
        "e = Embedding(name='a', vectors={'clip_g': torch.ones(1, 1280), 'clip_l': torch.ones(1, 768)});"
        "print(hashlib.sha256(to_bytes(e)).hexdigest())"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    turned = Embedding(name="a", vectors={"clip_l": torch.ones(1, 768), "clip_g": torch.ones(1, 1280)})
    assert ran.stdout.strip() == hashlib.sha256(to_bytes(turned)).hexdigest()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_precisions(dtype: torch.dtype) -> None:
    whole = embedding()
    tensors = safetensors.torch.load(to_bytes(whole, dtype=dtype))
    assert all(torch.equal(tensors[k], v.to(dtype)) for k, v in whole.vectors.items())


def test_refuses_what_would_not_survive() -> None:
    large = embedding().with_vectors({"clip_l": torch.full((1, 768), 7e4)})
    assert to_bytes(large)
    with pytest.raises(WrongUse, match="too large"):
        to_bytes(large, dtype=torch.float16)
    with pytest.raises(WrongUse, match="float64"):
        to_bytes(large, dtype=torch.float64)
    with pytest.raises(WrongUse, match="no encoder"):
        to_bytes(embedding().with_vectors({}))
    with pytest.raises(WrongUse, match="clip_l and clip_g"):
        to_bytes(embedding(), family=SD15)
    with pytest.raises(WrongUse, match="clip_l and clip_h"):
        to_bytes(embedding(widths={"clip_l": 768, "clip_h": 1024}))


def test_views_and_gradients_are_written_plainly() -> None:
    """Both halves cut from one tensor that still takes gradients: the library alone refuses shared memory."""
    both = (torch.randn(2, 2048) * 0.01).requires_grad_()
    halves = embedding().with_vectors({"clip_l": both[:, :768], "clip_g": both[:, 768:]})
    tensors = safetensors.torch.load(to_bytes(halves))
    assert torch.equal(torch.cat([tensors["clip_l"], tensors["clip_g"]], dim=1), both.detach())


KEPT = {
    "modelspec.author": "Ada Lovelace",
    "modelspec.license": "CreativeML Open RAIL-M",
    "modelspec.description": "A hero; see https://example.org/models/hero, and use it at 0.8/1.0.",
    "modelspec.date": "2024-02-03T04:05:06",
    "modelspec.merged_from": "one, two",
    "license": "cc-by-4.0",
    "ss_sd_model_name": "stabilityai/stable-diffusion-xl-base-1.0",
    "ss_learning_rate": "0.0001",
    "step": "500",
    "sd_checkpoint_name": "v1-5-pruned",
    "ti_fix.source_sha256": "ab" * 32,
    "ti_fix.source_layout": "diffusers pair",
}
DROPPED = {
    "ss_dataset_dirs": '{"3_ann": {"n_repeats": 3, "img_count": 12}}',
    "ss_tag_frequency": '{"3_ann": {"ann smiling": 12}}',
    "ss_output_name": "my_ex",
    "ss_training_comment": "for Bob",
    "ss_datasets": "[]",
    "ot_config": '{"base_model_name": "x"}',
    "parameters": "a prompt",
    "prompt": "a prompt",
    "image_hashes": "[]",
    "ti_fix.private.captions": "[]",
    "ss_vae_name": "C:\\Users\\ann\\vae.pt",
    "modelspec.title": "/home/ann/out/hero.safetensors",
    "modelspec.usage_hint": "see ~/notes/hero.txt",
    "modelspec.tags": "\\\\nas\\ann",
    "sd_checkpoint": "models\\ann.ckpt",
    "author": "file:///etc/passwd",
    "modelspec.thumbnail": "data:image/jpeg;base64," + "A" * 300_000,
    "modelspec.hash_sha256": "0xdead",
    "sshs_model_hash": "dead",
}


def test_only_what_may_travels() -> None:
    about = header_of(to_bytes(embedding(metadata={**KEPT, **DROPPED})))
    assert {k: v for k, v in about.items() if k in KEPT} == KEPT
    assert about["modelspec.title"] == "hero"
    added = {"format", "modelspec.title", "modelspec.hash_sha256", "ti_fix.version", "ti_fix.schema"}
    added |= {
        f"modelspec.{k}" for k in ("sai_model_spec", "architecture", "implementation", "resolution", "trigger_phrase")
    }
    assert about.keys() == KEPT.keys() | added
    text = json.dumps(about)
    assert not [word for word in ("ann", "my_ex", "Bob", "a prompt", "nas", "passwd") if word in text]


def test_everything_travels_when_asked() -> None:
    about = header_of(to_bytes(embedding(metadata={**KEPT, **DROPPED}), keep_private=True))
    stale = {"modelspec.hash_sha256", "sshs_model_hash"}
    assert {k: about[k] for k in {**KEPT, **DROPPED}.keys() - stale} == {
        k: v for k, v in {**KEPT, **DROPPED}.items() if k not in stale
    }
    assert about["modelspec.hash_sha256"] != "0xdead"
    assert "sshs_model_hash" not in about


@given(
    st.from_regex(
        r"[A-Za-z]:\\[a-z]{1,9}\\[a-z]{1,9}|/(home|Users|mnt)/[a-z]{1,9}(/[a-z. ]{1,9})?|~/[a-z]{1,9}/x", fullmatch=True
    )
)
def test_no_path_travels_under_any_key(path: str) -> None:
    for value in (path, f"trained on {path}", json.dumps({"dir": path})):
        assert not travels("modelspec.description", value)


def test_odd_texts_can_be_written() -> None:
    data = to_bytes(embedding(name="half \ud83d", metadata={"modelspec.author": "\udc00 名前"}))
    about = header_of(data)
    assert about["modelspec.title"] == "half ?"
    assert about["modelspec.author"] == "? 名前"
    assert safetensors.torch.load(data)


@pytest.mark.parametrize(
    ("trigger", "name"),
    [
        ("hero", "hero"),
        ("<cat-toy>", "cat-toy"),
        ("a/b\\c", "a_b_c"),
        ("con", "_con"),
        ("Com1.v2", "_Com1.v2"),
        ("contrast", "contrast"),
        (" .hidden. ", "hidden"),
        ("...", "embedding"),
        ("", "embedding"),
        ("what?*", "what"),
        ("emb_1.5", "emb_1.5"),
        ("tab\there", "tab_here"),
        ("名前 ñ", "名前 ñ"),
        ("n\u0303", "ñ"),
        ("x\ud800y", "x_y"),
    ],
)
def test_file_names(trigger: str, name: str) -> None:
    assert file_name(trigger) == name


@given(st.text(max_size=400))
def test_every_name_is_possible_everywhere(trigger: str) -> None:
    name = file_name(trigger)
    assert 0 < len(name.encode()) <= 201
    assert not set('<>:"/\\|?*') & set(name)
    assert name == name.strip(". ")
    assert min(map(ord, name)) >= 32
    assert file_name(name) == name or name.startswith("_")


def test_names_the_file_after_the_trigger(tmp_path: Path) -> None:
    assert write(embedding(name="<cat>"), tmp_path) == tmp_path / "cat.safetensors"
    assert write(embedding(), tmp_path / "new" / "folder" / "x.safetensors").is_file()
    with safe_open(tmp_path / "cat.safetensors", framework="pt") as opened:
        assert opened.metadata()["modelspec.title"] == "<cat>"


def test_never_overwrites_unless_told(tmp_path: Path) -> None:
    path = write(embedding(), tmp_path)
    before = path.read_bytes()
    with pytest.raises(TiFixError, match="exists already"):
        write(embedding(rows=5), path)
    assert path.read_bytes() == before
    write(embedding(rows=5), path, overwrite=True)
    assert safetensors.torch.load(path.read_bytes())["clip_l"].shape == (5, 768)
    assert [p.name for p in tmp_path.iterdir()] == ["hero.safetensors"]


def test_never_overwrites_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: Any) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    path = write(embedding(), tmp_path)
    before = path.read_bytes()
    with pytest.raises(TiFixError, match="exists already"):
        write(embedding(rows=5), path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("where", ["fsync", "naming"])
def test_a_crash_leaves_the_old_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, overwrite: bool
) -> None:
    path = tmp_path / "x.safetensors"
    if overwrite:
        path.write_bytes(b"old")

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    if where == "fsync":
        monkeypatch.setattr(os, "fsync", crash)
    else:
        monkeypatch.setattr(os, "link", crash)
        monkeypatch.setattr(Path, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        write(embedding(), path, overwrite=overwrite)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == ({path.name: b"old"} if overwrite else {})


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, "disk is full"), (errno.EROFS, "permission"), (errno.EIO, "check the disk")],
)
def test_trouble_with_the_disk_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(TiFixError, match=words):
        write(embedding(), tmp_path / "x.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_impossible_places(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(TiFixError, match="in each other's way"):
        write(embedding(), tmp_path / "file" / "x.safetensors")
    (tmp_path / "folder").mkdir()
    with pytest.raises(TiFixError, match="in each other's way"):
        write_bytes(tmp_path / "folder", b"", overwrite=True)
    with pytest.raises(TiFixError, match="too long"):
        write_bytes(tmp_path / ("x" * 300), b"")
    with pytest.raises(TiFixError, match="no possible file name"):
        write_bytes(tmp_path / "x\x00y", b"")


@pytest.mark.skipif(os.name != "posix", reason="permission bits")
def test_file_is_as_readable_as_any_other(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    written = write(embedding(), tmp_path)
    assert stat.S_IMODE(written.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)
