"""Drive an installed WebUI with and without ti_fix and print what happens; nothing in the installation is changed.

python3 run.py check-host /path/to/stable-diffusion-webui
    --python PATH       the WebUI's Python; by default the one in its venv folder
    --models FOLDER     checkpoints (.safetensors); by default its own. One for SDXL is needed, one for SD1.5 is used
    --extension FOLDER  a further extension that this installation needs; may be repeated
    -- FLAGS            further flags for the WebUI, such as --use-cpu all --no-half
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.hosts import sample_files as files
from tests.hosts.checks import Check
from tests.hosts.webui_process import Failed, Installation


def installation(arguments: argparse.Namespace) -> Installation:
    """What the command line says, completed by looking into the installation."""
    path = arguments.webui.resolve()
    own = [path / "venv" / "bin" / "python", path / "venv" / "Scripts" / "python.exe"]
    python = arguments.python or next((p for p in own if p.exists()), Path(sys.executable))
    models = arguments.models or path / "models" / "Stable-diffusion"
    return Installation(path, python, models, tuple(arguments.extension), tuple(arguments.flags))


def checkpoints(folder: Path) -> dict[str, str]:
    """Family -> the smallest checkpoint of it in a folder."""
    found: dict[str, str] = {}
    for path in sorted(folder.glob("*.safetensors"), key=lambda p: p.stat().st_size):
        family = files.family_of(path)
        if family:
            found.setdefault(family, path.name)
    return dict(sorted(found.items(), reverse=True))


def main(argv: list[str]) -> int:
    """Carry out a command line; 0 when all is right, 1 when something is not, 2 when it cannot be checked."""
    cut = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(
        prog="run.py check-host", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("webui", type=Path)
    parser.add_argument("--python", type=Path)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--extension", type=Path, action="append", default=[])
    arguments = parser.parse_args(argv[:cut])
    arguments.flags = argv[cut + 1 :]
    what = installation(arguments)
    models = checkpoints(what.models)
    if not (what.path / "launch.py").exists() or "sdxl" not in models:
        print(f"{what.path} has no launch.py, or {what.models} no SDXL checkpoint (.safetensors).", file=sys.stderr)  # noqa: T201
        return 2
    with tempfile.TemporaryDirectory(prefix="ti_fix_check_") as data:
        check = Check(what, Path(data), models)
        try:
            check.without()
            check.with_ti_fix()
        except Failed as error:
            check.table.add("the WebUI runs", False, str(error))
    wrong = [row for row in check.table.rows if not row[1]]
    print(f"\n{len(check.table.rows) - len(wrong)} of {len(check.table.rows)} checks passed.")  # noqa: T201
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
