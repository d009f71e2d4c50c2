"""A folder that is read once per change."""

from __future__ import annotations

import time

import pytest
import torch
from safetensors.torch import save_file

from ti_fix.embedding import SD15, SDXL
from ti_fix.formats import read
from ti_fix.repair import folder as module
from ti_fix.repair.folder import EmbeddingFolder, key
from ti_fix.repair.on_load import Policy, is_plain_text

POLICY = Policy()


def save(path, **blocks):
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: torch.full(shape, 0.01) for name, shape in blocks.items()}, path)
    return path


def xl(path, rows=1):
    return save(path, clip_l=(rows, 768), clip_g=(rows, 1280))


@pytest.fixture
def reads(monkeypatch):
    """The paths that were read."""
    seen = []
    monkeypatch.setattr(module, "read", lambda path: seen.append(path.name) or read(path))
    return seen


def test_only_changed_files_are_read_again(tmp_path, reads):
    save(tmp_path / "a.safetensors", emb_params=(1, 768))
    b = save(tmp_path / "b.safetensors", emb_params=(1, 768))
    folder = EmbeddingFolder(tmp_path)
    folder.plan(SDXL, POLICY)
    folder.plan(SDXL, POLICY)
    folder.plan(SD15, POLICY)
    assert reads == ["a.safetensors", "b.safetensors"]
    save(b, emb_params=(2, 768))
    plan = folder.plan(SDXL, POLICY)
    assert reads == ["a.safetensors", "b.safetensors", "b.safetensors"]
    assert plan[key(b)].embedding.num_vectors == 2


def test_healthy_embeddings_are_not_kept_in_memory(tmp_path):
    path = xl(tmp_path / "a.safetensors")
    folder = EmbeddingFolder(tmp_path)
    assert folder.plan(SDXL, POLICY)[key(path)].embedding is None
    assert folder.plan(SD15, POLICY)[key(path)].embedding.vectors.keys() == {"clip_l"}


def test_the_version_grows_with_what_a_host_must_see(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "REST", 0)
    folder = EmbeddingFolder(tmp_path)
    path = xl(tmp_path / "sub" / "a.safetensors")
    first = folder.look()
    assert folder.look() == first
    (tmp_path / "note.txt").write_text("no embedding")
    assert folder.look() == first
    xl(path, rows=2)
    second = folder.look()
    path.unlink()
    assert first < second < folder.look()


def test_looks_take_little_of_the_time(tmp_path, monkeypatch):
    folder = EmbeddingFolder(tmp_path)
    looks = []
    monkeypatch.setattr(module, "_stamps", lambda path: looks.append(path) or time.sleep(0.01) or {})
    for _ in range(50):
        folder.look()
    assert len(looks) == 1
    folder.look(now=True)
    assert len(looks) == 2


def test_two_healthy_files_of_one_name_are_left_to_the_host_with_a_line(tmp_path):
    one, other = xl(tmp_path / "ckstyle.safetensors"), xl(tmp_path / "deep" / "CKstyle.safetensors")
    plan = EmbeddingFolder(tmp_path).plan(SDXL, POLICY)
    assert [plan[key(path)].action for path in (one, other)] == ["pass", "pass"]
    assert not plan[key(one)].line
    assert "ckstyle.safetensors has the same trigger 'CKstyle'" in plan[key(other)].line


def test_of_one_name_the_healthy_file_wins_whatever_its_place(tmp_path):
    healthy = xl(tmp_path / "deep" / "deeper" / "ckstyle.safetensors")
    old = save(tmp_path / "CKstyle.safetensors", emb_params=(1, 768))
    plan = EmbeddingFolder(tmp_path).plan(SDXL, POLICY)
    assert plan[key(healthy)].action == "pass"
    assert plan[key(old)].action == "skip"
    assert "has the same trigger" in plan[key(old)].line


def test_a_picture_beside_a_file_takes_no_name_from_it(tmp_path):
    from PIL import Image

    old = save(tmp_path / "ckstyle.safetensors", emb_params=(1, 768))
    Image.new("RGB", (8, 8)).save(tmp_path / "ckstyle.png")
    assert EmbeddingFolder(tmp_path).plan(SDXL, POLICY)[key(old)].action == "complete"


@pytest.mark.parametrize(
    ("name", "plain"),
    [("cat", True), ("a red cat", True), ("easynegative", False), ("cat-toy", False), ("my xqz", False)],
)
def test_plain_text(name, plain):
    assert is_plain_text(name) is plain
