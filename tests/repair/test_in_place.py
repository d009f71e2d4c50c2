from __future__ import annotations

import os

import pytest
import safetensors.torch
import torch

from ti_fix.errors import TiFixError, WrongUse
from ti_fix.repair import in_place, repair_in_place, repairable, scan, undo


def vectors(rows):
    random = torch.Generator().manual_seed(rows)
    return torch.randn(rows, 768, generator=random) * 0.0134, torch.randn(rows, 1280, generator=random) * 0.0163


def save(path, tensors):
    path.parent.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file({k: v.contiguous() for k, v in tensors.items()}, path)
    return path


@pytest.fixture
def root(tmp_path):
    return tmp_path / "embeddings"


def only(root):
    [judged] = [j for j in scan([root]) if j.result.verdict != "ignore"]
    return judged


def fix(judged, root):
    return repair_in_place(judged, root=root, backups=root / "ti_fix_backup")


def contents(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_same_name_is_replaced_and_the_original_kept(root):
    left, right = vectors(3)
    path = save(root / "sub" / "style-xq.safetensors", {"clip_l": right, "clip_g": left})
    before = path.read_bytes()
    done = fix(only(root), root)
    kept = root / "ti_fix_backup" / "sub" / "style-xq.safetensors.bak"
    assert done.kept == ((path, kept),)
    assert kept.read_bytes() == before
    now = only(root)
    assert now.result.verdict == "load"
    assert torch.equal(now.result.after.vectors["clip_l"], left)
    assert undo(done) == (path,)
    assert contents(root) == {"sub/style-xq.safetensors": before}
    assert not (root / "ti_fix_backup").exists()


def test_another_ending_leaves_no_second_file_of_the_name(root):
    left, right = vectors(2)
    path = root / "style-xq.pt"
    root.mkdir()
    torch.save([{"a": left}, {"b": right}], path)
    before = contents(root)
    done = fix(only(root), root)
    assert set(contents(root)) == {"style-xq.safetensors", "ti_fix_backup/style-xq.pt.bak"}
    undo(done)
    assert contents(root) == before


def test_a_pair_becomes_one_file(root):
    left, right = vectors(2)
    save(root / "learned_embeds.safetensors", {"<my-toy>": left})
    save(root / "learned_embeds_2.safetensors", {"<my-toy>": right})
    before = contents(root)
    done = fix(only(root), root)
    assert len(done.kept) == 2
    assert only(root).result.verdict in ("load", "warn")
    undo(done)
    assert contents(root) == before


def test_a_long_one_is_cut(root):
    left, right = vectors(80)
    save(root / "long-xq.safetensors", {"clip_l": left, "clip_g": right})
    fix(only(root), root)
    assert sorted(j.trigger for j in scan([root])) == ["long-xq-1", "long-xq-2"]


def test_backups_never_replace_each_other(root):
    left, right = vectors(2)
    for _ in range(3):
        save(root / "style-xq.safetensors", {"clip_l": right, "clip_g": left})
        fix(only(root), root)
    kept = sorted(p.name for p in (root / "ti_fix_backup").iterdir())
    assert kept == ["style-xq.safetensors.2.bak", "style-xq.safetensors.3.bak", "style-xq.safetensors.bak"]


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        (lambda left, right: {"clip_l": left, "clip_g": right}, "fine as it is"),
        (lambda left, right: {"clip_l": left, "clip_g": right * float("nan")}, "nothing in it can be used"),
    ],
)
def test_what_needs_or_can_have_no_repair_is_left_alone(root, tensors, why):
    save(root / "style-xq.safetensors", tensors(*vectors(2)))
    before, judged = contents(root), only(root)
    assert not repairable(judged)
    with pytest.raises(WrongUse, match=why):
        fix(judged, root)
    assert contents(root) == before


def test_another_file_of_the_new_name_is_not_touched(root):
    left, right = vectors(2)
    save(root / "style-xq.pti", {"text_encoders_0": left, "text_encoders_1": right})
    judged = only(root)
    save(root / "style-xq.safetensors", {"clip_l": left, "clip_g": right})
    before = contents(root)
    with pytest.raises(TiFixError, match="exists already"):
        fix(judged, root)
    assert contents(root) == before


@pytest.mark.parametrize("step", ["write_bytes", "_keep"])
def test_a_full_disk_changes_nothing(root, monkeypatch, step):
    left, right = vectors(80)
    save(root / "long-xq.safetensors", {"clip_l": left, "clip_g": right})
    before, original, calls = contents(root), getattr(in_place, step), []

    def full(*args, **kwargs):
        calls.append(1)
        if len(calls) == (2 if step == "write_bytes" else 1):
            raise OSError(28, "No space left on device")
        return original(*args, **kwargs)

    monkeypatch.setattr(in_place, step, full)
    with pytest.raises(TiFixError, match="disk is full"):
        fix(only(root), root)
    assert contents(root) == before


def test_it_works_on_a_disk_without_links(root, monkeypatch):
    def no_links(*args, **kwargs):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    left, right = vectors(2)
    path = save(root / "style-xq.safetensors", {"clip_l": right, "clip_g": left})
    before = path.read_bytes()
    done = fix(only(root), root)
    assert done.kept[0][1].read_bytes() == before
    undo(done)
    assert contents(root) == {"style-xq.safetensors": before}


def test_undo_does_not_throw_newer_work_away(root):
    left, right = vectors(2)
    path = save(root / "style-xq.safetensors", {"clip_l": right, "clip_g": left})
    done = fix(only(root), root)
    path.write_bytes(b"newer")
    before = contents(root)
    with pytest.raises(TiFixError, match="changed or removed after the repair"):
        undo(done)
    assert contents(root) == before


def test_undo_without_its_backup_says_so(root):
    left, right = vectors(2)
    save(root / "style-xq.safetensors", {"clip_l": right, "clip_g": left})
    done = fix(only(root), root)
    done.kept[0][1].unlink()
    before = contents(root)
    with pytest.raises(TiFixError, match="is gone"):
        undo(done)
    assert contents(root) == before


def test_a_link_is_replaced_and_what_it_points_to_stays(root, tmp_path):
    left, right = vectors(2)
    real = save(tmp_path / "elsewhere" / "style.safetensors", {"clip_l": right, "clip_g": left})
    before = real.read_bytes()
    root.mkdir()
    (root / "style-xq.safetensors").symlink_to(real)
    done = fix(only(root), root)
    assert real.read_bytes() == before
    assert not (root / "style-xq.safetensors").is_symlink()
    undo(done)
    assert (root / "style-xq.safetensors").resolve() == real
