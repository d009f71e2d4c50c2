"""What other extensions add: used at once, undone on unload, and harmless when it fails."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from tests.hosts import sample_files as files
from ti_fix import api
from ti_fix.embedding import SDXL
from ti_fix.formats import read
from ti_fix.repair import repair
from ti_fix.repair.folder import EmbeddingFolder, key
from ti_fix.repair.on_load import Policy


@pytest.fixture(autouse=True)
def undone():
    """No addition outlives its test."""
    yield
    api.clear()


@pytest.fixture
def odd(tmp_path):
    """A file that nobody but its layout can read: every vector in two rows."""
    path = tmp_path / "folder" / "ckodd.safetensors"
    path.parent.mkdir()
    save_file({"my.left": torch.full((384, 8), 0.01), "my.right": torch.full((640, 8), 0.02)}, path)
    return path


def reading(tensors):
    if "my.left" not in tensors:
        return None
    return {"clip_l": tensors["my.left"].read().view(4, 768), "clip_g": tensors["my.right"].read().view(4, 1280)}


LAYOUT = api.Layout(name="mine", read=reading)


def find_flat(specimen):
    if all(block.std() == 0 for block in specimen.embedding.vectors.values()):
        yield api.Finding(code="flat", severity="note", message="It is flat.", repaired="Doubled it.")


def double(specimen):
    vectors = {key: 2 * block for key, block in specimen.embedding.vectors.items()}
    return specimen.embedding.with_vectors(vectors)


DEFECT = api.Defect(code="flat", find=find_flat, fix=double)


def flat():
    return api.Embedding(name="ckflat", vectors={"clip_l": torch.ones(1, 768), "clip_g": torch.ones(1, 1280)})


def test_the_version_is_a_number_and_all_names_exist():
    assert api.API_VERSION == 1
    assert all(hasattr(api, name) for name in api.__all__)


def test_a_layout_is_read_and_taken_out_again(odd):
    before = repair(read(odd))
    undo = api.register_layout(LAYOUT)
    result = repair(read(odd))
    assert result.verdict == "repair"
    assert {k: tuple(v.shape) for k, v in result.after.vectors.items()} == {"clip_l": (4, 768), "clip_g": (4, 1280)}
    undo()
    undo()
    assert repair(read(odd)).findings == before.findings


@pytest.mark.parametrize(
    "blocks",
    [
        {},
        {"clip_l": torch.ones(1, 5)},
        {"clip_x": torch.ones(1, 768)},
        {"clip_l": torch.ones(768)},
        {"clip_l": torch.ones(1, 768, dtype=torch.int64)},
        {"clip_l": torch.ones(0, 768)},
        {"clip_l": torch.ones(5000, 768)},
        {"clip_l": "text"},
    ],
)
def test_what_is_no_block_is_not_taken(odd, blocks):
    before = read(odd)
    api.register_layout(api.Layout(name="wrong", read=lambda _: blocks))
    assert read(odd).findings == before.findings


def test_a_defect_is_found_and_mended_behind_ours():
    assert repair(flat()).verdict == "load"
    api.register_defect(DEFECT)
    result = repair(flat())
    assert result.applied == ("Doubled it.",)
    assert result.after.vectors["clip_l"].unique().tolist() == [2]


def test_a_defect_that_cannot_be_mended_keeps_it_out():
    said = api.Finding(code="bad", severity="error", message="It is bad.")
    api.register_defect(api.Defect(code="bad", find=lambda _: [said]))
    assert repair(flat()).verdict == "reject"


def test_a_folder_is_judged_again_after_an_addition(odd, monkeypatch):
    monkeypatch.setattr("ti_fix.repair.folder.REST", 0)
    folder = EmbeddingFolder(odd.parent)
    version = folder.look()
    assert folder.plan(SDXL, Policy())[key(odd)].action == "refuse"
    undo = api.register_layout(LAYOUT)
    assert folder.look() > version
    assert folder.plan(SDXL, Policy())[key(odd)].action == "register"
    undo()
    assert folder.plan(SDXL, Policy())[key(odd)].action == "refuse"


def fail(*_):
    raise RuntimeError("theirs")


def test_what_they_raise_is_logged_once_and_reaches_nobody(odd, caplog):
    before = repair(read(odd))
    api.register_layout(api.Layout(name="theirs", read=fail))
    api.register_defect(api.Defect(code="theirs", find=fail))
    api.add_listener(fail)
    for _ in range(3):
        assert repair(read(odd)).findings == before.findings
        assert repair(flat()).verdict == "load"
        api.tell(api.EmbeddingLoaded(name="x", path=None, label="", vectors=1))
    assert len([r for r in caplog.records if "another extension failed" in r.getMessage()]) == 3


def test_a_fix_that_fails_leaves_the_embedding(caplog):
    api.register_defect(api.Defect(code="flat", find=find_flat, fix=fail))
    ill = flat()
    assert repair(ill).after.vectors is ill.vectors
    assert "theirs" in caplog.text


def test_listeners_hear_of_each_file_and_each_embedding(start, kind):
    webui, host = start(kind)
    samples = {s.trigger: s for s in files.samples()}
    files.put(webui.folder, [samples[name] for name in ("ckhealthy", "ckrenamed", "cksd15", "cknan")])
    heard = []
    host.hook.tell = heard.append
    webui.switch("sdxl")
    judged = {e.path.name: (e.action, e.label) for e in heard if type(e).__name__ == "FileJudged"}
    assert judged == {
        "ckhealthy.safetensors": ("pass", ""),
        "ckrenamed.safetensors": ("register", "repaired"),
        "cksd15.safetensors": ("complete", "converted"),
        "cknan.safetensors": ("refuse", ""),
    }
    loaded = {e.name: (e.path.name, e.label, e.vectors) for e in heard if type(e).__name__ == "EmbeddingLoaded"}
    assert loaded == {
        "ckhealthy": ("ckhealthy.safetensors", "", 2),
        "ckrenamed": ("ckrenamed.safetensors", "repaired", 2),
        "cksd15": ("cksd15.safetensors", "converted", 2),
    }
