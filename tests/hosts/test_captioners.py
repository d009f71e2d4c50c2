"""The WebUI's interrogators as the Train page uses them, on stand-ins of theirs."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
from PIL import Image

from ti_fix.errors import TiFixError

GREY = Image.new("RGB", (16, 16))


class DeepBooru:
    """Tags, with ranks unless told otherwise; its model is on the device between start and stop."""

    def __init__(self):
        self.on = False

    def start(self):
        self.on = True

    def stop(self):
        self.on = False

    def tag_multi(self, image, force_disable_ranks=False):
        assert self.on and image.mode == "RGB"
        return "red, tower" if force_disable_ranks else "(red:0.9)"


@pytest.fixture
def interrogators(begin, tmp_path, monkeypatch):
    webui, host = begin("a1111")
    shared = webui.modules["modules.shared"]
    said = {"sentence": "a red tower on a hill, artstation, by nobody"}
    shared.interrogator = SimpleNamespace(
        content_dir=str(tmp_path / "interrogate"), interrogate=lambda image: said["sentence"]
    )
    shared.cmd_opts.clip_models_path = str(tmp_path / "clip")
    for name, content in (
        ("modules.paths", {"models_path": str(tmp_path / "models")}),
        ("modules.deepbooru", {"model": DeepBooru()}),
    ):
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
        setattr(sys.modules["modules"], name.rpartition(".")[2], module)
    monkeypatch.delitem(sys.modules, "ti_fix.hosts.captioners", raising=False)
    return host._webui.captioners, said


def test_what_is_missing_is_told_with_size_and_licence(interrogators, tmp_path):
    (sentences, tags), _ = interrogators
    assert [told.partition("(")[2].split(", ")[:2] for told in sentences.needed()] == [
        ["0.9 GB", "BSD-3-Clause"],
        ["0.9 GB", "MIT"],
        ["a few MB", "MIT"],
    ]
    assert [told.partition("(")[2].split(", ")[:2] for told in tags.needed()] == [["0.6 GB", "MIT"]]
    for place in ("models/BLIP/x.pth", "clip/ViT-L-14.pt", "interrogate/x.txt", "models/torch_deepdanbooru/x.pt"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).touch()
    assert list(sentences.needed()) == list(tags.needed()) == []


def test_captions_are_sentences_without_styles_and_tags_without_ranks(interrogators):
    (sentences, tags), said = interrogators
    assert sentences.caption(GREY) == "a red tower on a hill"
    assert tags.caption(GREY) == "red, tower"
    said["sentence"] = "<error>"
    with pytest.raises(TiFixError, match="console"):
        sentences.caption(GREY)


def test_a_webui_without_interrogators_has_none(begin):
    _, host = begin("forge")
    assert host._webui.captioners == []
