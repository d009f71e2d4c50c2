"""The file that the host executes, executed as the host does it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import ti_fix

ROOT = Path(__file__).resolve().parent.parent

HOST = """
import importlib.util, json, logging, sys
root = sys.argv[1]
logging.basicConfig(level="INFO", stream=sys.stderr, format="%(message)s")
sys.path = [root, *sys.path]
spec = importlib.util.spec_from_file_location("ti_fix_webui.py", root + "/scripts/ti_fix_webui.py")
spec.loader.exec_module(importlib.util.module_from_spec(spec))
sys.path = sys.path[1:]
import ti_fix.errors  # a later import works although the folder is off sys.path again
print(json.dumps(sorted(sys.modules)))
"""


def test_it_loads_in_another_folder_and_pulls_nothing_heavy_in(tmp_path):
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", HOST, str(ROOT)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == f"ti_fix {ti_fix.__version__}\n"
    assert not {"torch", "gradio", "transformers"} & set(json.loads(done.stdout))
