from __future__ import annotations

import os

import pytest
import torch

from tests.ui.folders import STATES, StandIn, fill, save, vectors
from ti_fix.embedding import SD15, SDXL
from ti_fix.errors import TiFixError
from ti_fix.repair import scan
from ti_fix.ui import library as library_module
from ti_fix.ui.library import BACKUP_FOLDER, Library


@pytest.fixture
def root(tmp_path):
    return fill(tmp_path / "embeddings")


@pytest.fixture
def reads(monkeypatch):
    """Names of the files that were read."""
    names, read, read_many = [], library_module.read, library_module.read_many

    def counted(path):
        names.append(path.name)
        return read(path)

    def counted_many(paths):
        names.extend(path.name for path in paths)
        return read_many(paths)

    monkeypatch.setattr(library_module, "read", counted)
    monkeypatch.setattr(library_module, "read_many", counted_many)
    return names


def plain(judged, root):
    about = judged.as_dict()
    return {**about, "paths": [os.path.relpath(path, root) for path in about["paths"]]}


def listed(entry):
    about = entry.as_dict()
    return {key: value for key, value in about.items() if key not in ("id", "bytes")}


def test_it_says_what_a_scan_of_the_folder_says(root):
    entries = Library(StandIn(root)).refreshed()
    assert {e.trigger: e.verdict for e in entries} == STATES
    assert [listed(e) for e in entries] == [plain(j, root) for j in scan([root]) if j.result.verdict != "ignore"]


def test_names_that_clash_are_seen_across_folders(root, tmp_path):
    left, right = vectors(1)
    save(tmp_path / "more" / "READY-XQ.safetensors", {"clip_l": left, "clip_g": right})
    entries = Library(StandIn(root, tmp_path / "more")).refreshed()
    twins = [e for e in entries if "case-twins" in {f["code"] for f in e.as_dict()["findings"]}]
    assert {e.trigger for e in twins} == {"ready-xq", "READY-XQ"}
    assert {e.verdict for e in twins} == {"warn"}


def test_nothing_is_read_twice(root, reads):
    library = Library(StandIn(root))
    library.refreshed()
    reads.clear()
    first = library.entries
    assert library.refreshed() == first
    assert reads == []


def test_only_what_changed_is_read(root, reads):
    library = Library(StandIn(root))
    library.refreshed()
    reads.clear()
    left, right = vectors(5, seed=1)
    save(root / "ready-xq.safetensors", {"clip_l": right, "clip_g": left})
    states = {e.trigger: e.verdict for e in library.refreshed()}
    assert reads == ["ready-xq.safetensors"]
    assert states == {**STATES, "ready-xq": "repair"}


def test_half_of_a_pair_that_goes_or_comes(root):
    library = Library(StandIn(root))
    library.refreshed()
    half = root / "learned_embeds_2.safetensors"
    kept = half.read_bytes()
    half.unlink()
    assert {e.trigger: e.verdict for e in library.refreshed()}["my-toy"] == "convert"
    half.write_bytes(kept)
    assert {e.trigger: e.verdict for e in library.refreshed()} == STATES


def test_another_model_means_another_verdict(root):
    host = StandIn(root)
    library = Library(host)
    library.refreshed()
    host.model = SD15
    states = {e.trigger: e.verdict for e in library.refreshed()}
    assert (states["old-xq"], states["ready-xq"]) == ("load", "convert")
    host.model = None
    assert {e.trigger: e.verdict for e in library.refreshed()} == STATES
    assert library.family is SDXL


def test_vectors_are_let_go_and_read_again(root):
    library = Library(StandIn(root))
    entry = next(e for e in library.refreshed() if e.trigger == "swapped-xq")
    assert entry.judged.result.after.num_vectors == 0
    assert entry.about["encoders"] == {"clip_l": [3, 768], "clip_g": [3, 1280]}
    again = library.load(entry)
    assert torch.equal(again.result.after.vectors["clip_l"], vectors(3)[0])


def test_an_id_lasts_as_long_as_the_name(root):
    library = Library(StandIn(root))
    before = {e.trigger: e.id for e in library.refreshed()}
    assert {e.trigger: e.id for e in Library(StandIn(root)).refreshed()} == before
    (root / "ready-xq.safetensors").unlink()
    library.refreshed()
    with pytest.raises(TiFixError, match="moved or deleted"):
        library.find(before["ready-xq"])
    assert library.find(before["old-xq"]).trigger == "old-xq"


def test_a_pair_that_has_lost_a_half_is_not_loaded(root):
    library = Library(StandIn(root))
    entry = next(e for e in library.refreshed() if e.trigger == "my-toy")
    (root / "learned_embeds_2.safetensors").unlink()
    with pytest.raises(TiFixError, match="has changed"):
        library.load(entry)


def test_originals_that_are_kept_are_not_listed(root):
    left, right = vectors(1)
    save(root / BACKUP_FOLDER / "kept-xq.safetensors", {"clip_l": left, "clip_g": right})
    assert "kept-xq" not in {e.trigger for e in Library(StandIn(root)).refreshed()}


def test_links_out_of_the_folders_are_known(root, tmp_path):
    left, right = vectors(1)
    outside = save(tmp_path / "outside" / "far-xq.safetensors", {"clip_l": left, "clip_g": right})
    (root / "linked-xq.safetensors").symlink_to(outside)
    (root / "folder").symlink_to(outside.parent)
    (root / "inside-xq.safetensors").symlink_to(root / "ready-xq.safetensors")
    (tmp_path / "door").symlink_to(root)
    entries = Library(StandIn(tmp_path / "door")).refreshed()
    assert {e.trigger for e in entries if not e.confined} == {"linked-xq", "far-xq"}
    assert "inside-xq" in {e.trigger for e in entries}


def test_missing_and_empty_folders_are_empty(tmp_path):
    (tmp_path / "empty").mkdir()
    assert Library(StandIn(tmp_path / "empty", tmp_path / "missing")).refreshed() == ()


def test_progress_names_the_files(root):
    events = list(Library(StandIn(root)).refresh())
    assert [e.done for e in events] == list(range(9))
    assert {e.total for e in events} == {8}
    assert "ready-xq.safetensors" in {e.note for e in events}
