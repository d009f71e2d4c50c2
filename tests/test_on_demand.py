"""Names that are imported on demand: the same for a type checker as for a program, and none before it is asked for."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from ti_fix.on_demand import on_demand

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("ti_fix.convert", "ti_fix.evaluate", "ti_fix.heatmap", "ti_fix.hosts.standalone", "ti_fix.train")

STARTED = """
import json, sys
from pathlib import Path
from PIL import Image
import ti_fix.api, ti_fix.align, ti_fix.convert.at_load
from ti_fix.ui import convert_handlers, evaluate_handlers, evaluate_sent, files_handlers, maps, model_handlers
from ti_fix.ui import train_handlers
from tests.ui.folders import StandIn, fill
from ti_fix.ui.convert_desk import convert_desk_of
from ti_fix.ui.desk import desk_of
from ti_fix.ui.files_table import View
from ti_fix.ui.train_shown import Window

def loaded():
    return [name for name in sys.modules if name.startswith("ti_fix.")]

started = loaded()
desk = desk_of(StandIn(fill(Path(sys.argv[1]) / "embeddings")))
Image.new("RGB", (64, 64)).save(Path(sys.argv[1]) / "picture.png")
desk.training.album.take([str(Path(sys.argv[1]) / "picture.png")])
list(convert_handlers.opened(convert_desk_of(desk)))
list(evaluate_handlers.opened(desk))
files_handlers.searched(desk, View(), "")
list(model_handlers.opened(desk))
list(train_handlers.opened(desk, Window()))
print(json.dumps([started, loaded()]))
"""
"""What the WebUI waits for, but for what needs Gradio or the WebUI; then each page comes into sight."""

LATER = {
    "ti_fix.align.strategies",
    "ti_fix.convert.converter",
    "ti_fix.convert.dictionary",
    "ti_fix.evaluate.dataset",
    "ti_fix.evaluate.features",
    "ti_fix.evaluate.run",
    "ti_fix.heatmap.capture",
    "ti_fix.train.engine",
    "ti_fix.train.loop",
    "ti_fix.train.monitor",
    "ti_fix.train.tuning",
}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_program_gets_what_a_type_checker_sees(package):
    module = import_module(package)
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    imported = {
        alias.name: str(node.module)
        for branch in tree.body
        if isinstance(branch, ast.If)
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted(imported) == sorted(module.__all__)
    for name, home in imported.items():
        assert getattr(module, name) is getattr(import_module(home), name)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"'ti_fix\.train' has no attribute 'nothing'"):
        on_demand("ti_fix.train", {"config": "TrainConfig"})("nothing")
    with pytest.raises(ImportError):
        from ti_fix.train import nothing  # noqa: F401


def test_the_start_of_a_webui_imports_nothing_that_only_a_button_needs_and_no_page_waits_for_it(tmp_path):
    command = [sys.executable, "-c", STARTED, str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    started, opened = map(set, json.loads(done.stdout.splitlines()[-1]))
    assert "ti_fix.train.config" in started
    assert not started & LATER
    assert opened == started
    assert all((ROOT / f"{name.replace('.', '/')}.py").is_file() for name in LATER)
