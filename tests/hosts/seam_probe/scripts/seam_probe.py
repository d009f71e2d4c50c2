"""An extension for tests only: tries, once a model is loaded, what ti_fix relies on and writes down what holds."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

from modules import scripts

OUT = Path(os.environ["TI_FIX_SEAMS"])


def seams() -> Any:
    """The list of statements, from its file."""
    where = Path(os.environ["TI_FIX_SEAMS_FILE"])
    spec = importlib.util.spec_from_file_location("ti_fix_seams", where)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ti_fix_seams"] = module
    spec.loader.exec_module(module)
    return module


class SeamProbe(scripts.Script):
    """Runs at the first picture, when the model and its databases are there."""

    def title(self) -> str:
        return "seam probe"

    def show(self, is_img2img: bool) -> Any:
        return scripts.AlwaysVisible

    def process(self, p: Any, *args: Any) -> None:
        if not OUT.exists():
            module = seams()
            world = module.World(forge=importlib.util.find_spec("backend") is not None)
            OUT.write_text(json.dumps(module.results(world)), encoding="utf-8")
