"""What ti_fix adds to a WebUI's start: install.py, the import of its script, and its callbacks.

Each measurement is a fresh Python in which torch, and Gradio and FastAPI where there are any, are imported already, as
in a WebUI at that moment; the WebUI is the stand-in of the tests. It is processor time, so that a busy machine does
not count, and without the garbage collector's rare passes over all that PyTorch and Gradio have brought, which fall to
whoever comes at that moment. Without Gradio the page is not built, which is said before the figure. With Gradio, the
page is drawn into a `gradio.Blocks` as a WebUI does it, with what its components add to the page's configuration;
beside it: what another, empty `gradio.Blocks` would cost, which most extensions with a tab make. With `--webui PATH` an
installed one is started instead and says itself how long the script's import and its callback for the finished app
took, by the clock (the settings and the page are not in that, the script of the attention maps is). Flags for it come
after `--`.

    .venv/bin/python benchmarks/startup.py [--quick] [--json] [--webui PATH --python PYTHON -- FLAGS]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import Figure, close

ROOT = Path(__file__).resolve().parent.parent
GOAL = 150.0
"""Milliseconds."""

EMPTY = "an empty gradio.Blocks"

CHILD = """
import contextlib, gc, importlib.util, io, json, runpy, sys, time, types
import numpy, PIL.Image, safetensors.torch, torch
parts = {}
for name in ("fastapi", "gradio"):
    with contextlib.suppress(ImportError):
        __import__(name)
has = {name: name in sys.modules for name in ("fastapi", "gradio")}
if not has["gradio"]:
    sys.modules["gradio"] = types.ModuleType("gradio")
sys.path.insert(0, ROOT)
from pathlib import Path
import tempfile
from tests.hosts.standin import StandIn
folder = tempfile.mkdtemp()
webui = StandIn(KIND, Path(folder) / "webui")
sys.modules.update(webui.modules)
for name in [n for n in sys.modules if n == "ti_fix" or n.startswith("ti_fix.")]:
    del sys.modules[name]
sys.path.remove(ROOT)
gc.collect()
gc.freeze()

@contextlib.contextmanager
def part(name):
    start = time.process_time()
    yield
    parts[name] = 1000 * (time.process_time() - start)

with part("install.py"), contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    runpy.run_path(ROOT + "/install.py", run_name="__main__")
with part("script import"):
    sys.path.insert(0, ROOT)
    spec = importlib.util.spec_from_file_location("ti_fix_webui.py", ROOT + "/scripts/ti_fix_webui.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.remove(ROOT)
if has["gradio"]:
    with part(EMPTY), sys.modules["gradio"].Blocks(analytics_enabled=False):
        pass
    with part("settings"):
        for each in webui.callbacks["on_ui_settings"]:
            each()
    with sys.modules["gradio"].Blocks(analytics_enabled=False) as whole:
        with part("page"):
            for each in webui.callbacks["on_ui_tabs"]:
                for tab, _, _ in each():
                    tab.render()
            whole.get_config_file()
if has["fastapi"]:
    app = sys.modules["fastapi"].FastAPI()
    with part("api"):
        for each in webui.callbacks["on_app_started"]:
            each(None, app)
print(json.dumps(parts))
"""


def once(kind: str) -> dict[str, float]:
    """Milliseconds of each part, in a fresh Python."""
    code = f"ROOT, KIND, EMPTY = {str(ROOT)!r}, {kind!r}, {EMPTY!r}\n{CHILD}"
    # WebUIs keep what Python compiles, whatever this shell says
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT, env=kept)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def in_a_webui(flags: argparse.Namespace) -> dict[str, float]:
    """Milliseconds of each part, as an installed WebUI has measured them at its start."""
    sys.path.insert(0, str(ROOT))
    from tests.hosts.webui_process import Installation, Webui

    with tempfile.TemporaryDirectory(prefix="ti_fix_startup_") as name:
        models = Path(name) / "models"
        models.mkdir()
        what = Installation(flags.webui.resolve(), flags.python.absolute(), models, flags=tuple(flags.rest))
        with Webui(what, Path(name) / "data", "none.safetensors", ROOT) as webui:
            records = webui.get("/internal/profile-startup")["records"]
    found = {key: 1000 * seconds for key, seconds in records.items() if "ti_fix_webui" in key}
    if not found:
        raise SystemExit("This WebUI does not say how long its scripts take: no line for ti_fix_webui.py.")
    return found


def arguments() -> argparse.Namespace:
    """The flags; what follows ``--`` is for the WebUI."""
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="under a minute: fewer repetitions")
    parser.add_argument("--json", action="store_true", help="the last line is a JSON object")
    parser.add_argument("--webui", type=Path, help="folder of an installed WebUI")
    parser.add_argument("--python", type=Path, help="its Python")
    flags = parser.parse_args(sys.argv[1:cut])
    flags.rest = sys.argv[cut + 1 :]
    if flags.webui and not flags.python:
        parser.error("--webui needs the WebUI's Python: --python PATH")
    return flags


def main() -> None:
    flags = arguments()
    if flags.webui:
        runs = [in_a_webui(flags)]
    else:
        once("a1111")  # the first run writes what Python keeps of compiled files
        count = 2 if flags.quick else 7
        runs = [once(kind) for _ in range(count) for kind in ("a1111", "forge")]
    for part in runs[0]:
        print(f"{part}: {statistics.median(run[part] for run in runs):.1f} ms")
    if not flags.webui and importlib.util.find_spec("gradio") is None:
        print("without Gradio: the settings and the page were not built")
    total = statistics.median(sum(ms for part, ms in run.items() if part != EMPTY) for run in runs)
    close(Figure(name="startup", figure=total, unit="ms", better="lower", goal=GOAL, n=len(runs)), flags)


if __name__ == "__main__":
    main()
