"""A sister host's own loader file with the hook in it: every public report through the host's own code.

Name one or more `textual_inversion.py` of A1111, reForge or Forge Classic in TI_FIX_LOADER (separated like PATH). Each
is executed in place of the stand-in's loader, from where it lies; what it imports of its host are empty stand-ins.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.hosts import host_cases, standin
from tests.hosts.conftest import first_rows
from tests.hosts.standin_databases import WIDTHS
from ti_fix.repair import folder

LOADERS = [Path(name) for name in os.environ.get("TI_FIX_LOADER", "").split(os.pathsep) if name]
NAME = "modules.textual_inversion.textual_inversion"

pytestmark = [
    pytest.mark.real_host,
    pytest.mark.skipif(not LOADERS, reason="no loader file of a host in TI_FIX_LOADER"),
]


class Empty(ModuleType):
    """A module of the host that the loader imports: whatever is asked of it does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


class WithLoader(standin.StandIn):
    """A stand-in for A1111 whose embedding loader is a real one."""

    def __init__(self, data: Path, loader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loader, self.patch = loader, monkeypatch
        super().__init__("a1111", data)

    def _fill(self, made: dict[str, ModuleType]) -> None:
        super()._fill(made)
        for name in imported(self.loader):
            made.setdefault(name, Empty(name))
            made[name].__path__ = []  # type: ignore[attr-defined]
        made["modules.devices"].device = torch.device("cpu")  # type: ignore[attr-defined]
        made["modules.devices"].torch_npu_set_device = lambda: None  # type: ignore[attr-defined]
        made["modules.hashes"].sha256 = lambda path, title: Path(path).name.ljust(12)  # type: ignore[attr-defined]
        made["modules.errors"].report = lambda text, **_: self.console.append(text)  # type: ignore[attr-defined]
        made["modules.shared"].sd_model = None  # type: ignore[attr-defined]
        for name, module in made.items():
            self.patch.setitem(sys.modules, name, module)
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(made[parent], child, module)
        options = made["modules.shared"].opts.data
        options.update(textual_inversion_print_at_load=False, textual_inversion_image_embedding_data_cache=False)
        self.patch.setattr(torch, "load", torch.load)  # the file may wrap it
        fresh = ModuleType(NAME)
        made[NAME].__dict__.clear()
        made[NAME].__dict__.update(fresh.__dict__)
        source = self.loader.read_text(encoding="utf-8")
        exec(compile(source, str(self.loader), "exec"), made[NAME].__dict__)

    def _a1111_model(self, family: str, checkpoint: str) -> Any:
        model = super()._a1111_model(family, checkpoint)
        width = sum(WIDTHS[encoder.embedding_key] for encoder in model.all)
        model.cond_stage_model.encode_embedding_init_text = lambda text, count: torch.zeros(count, width)
        self.modules["modules.shared"].sd_model = model  # type: ignore[attr-defined]
        return model


def imported(path: Path) -> Iterator[str]:
    """The host's modules that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("modules"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("modules"):
            yield str(node.module)
            yield from (f"modules.{alias.name}" for alias in node.names if node.module == "modules")


@pytest.fixture(params=LOADERS, ids=str)
def webui(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WithLoader:
    """The stand-in with the real loader, its model not loaded yet."""
    monkeypatch.setattr(folder, "REST", 0)
    return WithLoader(tmp_path / "webui", request.param, monkeypatch)


def test_every_case_through_the_hosts_own_loader(webui: WithLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = standin.install(webui, monkeypatch)
    adapter.install(first_rows)
    webui.switch("sdxl")
    names = host_cases.names()
    without = {name: webui.generate(name.prompt)[0] for name in names}
    host_cases.put(webui.folder)
    wrong = [name for name in names if (webui.generate(name.prompt)[0] != without[name]) != name.usable]
    assert [(name.case, name.text) for name in wrong] == []
    listed = webui.database.word_embeddings
    assert [n.text for n in names if (n.text in listed) != n.usable] == []
    for prompt in host_cases.CONTROLS:
        on = webui.generate(prompt)
        webui.modules["modules.shared"].opts.data["ti_fix_enabled"] = False
        assert webui.generate(prompt) == on
        webui.modules["modules.shared"].opts.data["ti_fix_enabled"] = True
    assert not list(webui.folder.rglob("*.corrupted"))


def test_a_switch_of_the_model_brings_the_right_widths(webui: WithLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = standin.install(webui, monkeypatch)
    adapter.install(first_rows)
    host_cases.put(webui.folder)
    webui.switch("sdxl")
    webui.switch("sd15", cached=True)
    names = [name for name in host_cases.names() if name.sd15]
    listed = webui.database.word_embeddings
    webui.generate("photo of one dog")
    assert [n.text for n in names if n.text not in listed] == []
    assert all(not isinstance(listed[n.text].vec, dict) or "clip_l" in listed[n.text].vec for n in names)


def test_everything_is_given_back(webui: WithLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("load_from_file", "load_from_dir", "load_textual_inversion_embeddings")
    module: Any = webui.modules[NAME]
    functions = lambda: [*(vars(module.EmbeddingDatabase)[n] for n in names), module.create_embedding_from_data]  # noqa: E731
    before = functions()
    host = standin.install(webui, monkeypatch).install(first_rows)
    assert not set(functions()) & set(before)
    host.hook.uninstall()
    assert functions() == before


def test_the_pieces_that_the_hook_needs_are_there(webui: WithLoader) -> None:
    module: Any = webui.modules[NAME]
    made = module.create_embedding_from_data({"clip_l": torch.ones(2, 768), "clip_g": torch.ones(2, 1280)}, "x")
    assert (made.shape, made.vectors, made.name, set(made.vec)) == (2048, 2, "x", {"clip_l", "clip_g"})
    database = module.EmbeddingDatabase()
    assert database.expected_shape == -1
    assert isinstance(database.word_embeddings, dict)
    assert isinstance(database.skipped_embeddings, dict)
    database.add_embedding_dir("x")
    assert database.embedding_dirs["x"].path == "x"
