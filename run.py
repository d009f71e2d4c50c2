#!/usr/bin/env python3
"""Start ti_fix without a WebUI: make .venv beside this file, install what it needs once, run a command in it.

python3 run.py demo     repair a folder, learn a concept and convert a file, and show what was done
python3 run.py ui       the pages in a browser: on the small model, or on yours with --model PATH (--help: options)
python3 run.py test     check the project: ruff, mypy, pytest; with arguments pytest alone (python3 run.py test -k name)
python3 run.py check-host --webui PATH | --url URL --embeddings FOLDER
                        check a WebUI with ti_fix and print a table (--help: options)
"""

# Everything here must also run on Python 3.7, or a Python that is too old could not say so.
from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
STAMP = VENV / "ti_fix.stamp"
OLDEST_PYTHON = (3, 10)

TORCH = "torch==2.13.0"
"""The release that the project is tested with. Where pip is offered a CPU build of it (2.13.0+cpu), it takes that."""

PAGES_GRADIO = "4.40.0"
"""The release of Gradio that shows the pages alone; it is Forge's."""

OLDER = ("huggingface-hub<1", "transformers<5", "diffusers<0.36")
"""What both releases need older than the rest of the project does; hence environments of their own."""

GRADIO = {
    PAGES_GRADIO: (
        *("gradio==4.40.0", "fastapi<0.113", "starlette<0.39", "pydantic<2.11", "playwright>=1.40"),
        'audioop-lts; python_version >= "3.13"',
    ),
    "3.41.2": ("gradio==3.41.2", "fastapi<0.95", "pydantic<2", "websockets<13", "httpx<0.28", "numpy<2"),
}
"""Release of Gradio -> what it takes beside the packages of `.venv`. Both are tested where there is a Chromium."""

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

LINTERS = (("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",))

SHOWN = ("Collecting ", "Downloading ", "Building ", "Installing collected packages")
"""How the lines of pip begin that are shown while it works."""

ROOM = 100 * 2**20
"""Bytes; with less left on the disk, that is why an installation has failed."""

NO_SPACE = "The disk is full: the packages take 2 GB (7 GB with CUDA). Make room and start again."
NO_NETWORK = "No network: the first start fetches the packages with pip, later ones need none. Connect and start again."
NOT_WRITABLE = f"Cannot write to {ROOT}: move the project to a folder of your own and start again."
UNUSABLE = f"{VENV} is incomplete or made with a Python that is too old: delete that folder and start again."
NO_TORCH = f"There is no {TORCH} for this Python on this computer: use a 64-bit Python 3.10 to 3.13."

REASONS = {
    "No space left on device": NO_SPACE,
    "not enough space on the disk": NO_SPACE,
    "NewConnectionError": NO_NETWORK,
    "ConnectTimeout": NO_NETWORK,
    "ReadTimeout": NO_NETWORK,
    "ProxyError": NO_NETWORK,
    "Permission denied": NOT_WRITABLE,
    "Read-only file system": NOT_WRITABLE,
    "Access is denied": NOT_WRITABLE,
    "No module named pip": UNUSABLE,
    "requires a different Python": UNUSABLE,
    f"No matching distribution found for {TORCH}": NO_TORCH,
}
"""What pip, venv or the system say -> what it means. Without a network pip also finds nothing: hence the order."""


class CannotStart(Exception):
    """Something that the user can put right, in one sentence."""


def main(argv: list[str]) -> int:
    """Carry out a command line; the result is its exit code."""
    if not argv or argv[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if argv else 2
    if argv[0] not in COMMANDS:
        print(f"run.py has no command {argv[0]!r}; it has: {', '.join(COMMANDS)}.", file=sys.stderr)
        return 2
    try:
        prepare()
        return COMMANDS[argv[0]](argv[1:])
    except CannotStart as reason:
        print(f"\n{reason}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"\n{explain(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def demo(arguments: list[str]) -> int:
    """Run ``ti-fix demo``."""
    return _run("ti_fix", "demo", *arguments, folder=Path.cwd())


def ui(arguments: list[str]) -> int:
    """Run ``ti-fix ui`` in the environment with Gradio; embeddings lie in the project unless told."""
    given = ("--embeddings", str(ROOT / "embeddings"), *arguments)  # of two the later one counts
    return _run("ti_fix", "ui", *given, python=prepare_gradio(PAGES_GRADIO), folder=Path.cwd())


def test(arguments: list[str]) -> int:
    """Run the linters and the tests; with arguments for pytest, only the tests."""
    if not arguments:
        prepare_browser_tests()
    failed = []
    for tool in () if arguments else LINTERS:
        print(f"\n{' '.join(tool)}", flush=True)
        if _run(*tool):
            failed.append(" ".join(tool))
    code = _run("pytest", *arguments)
    if failed:
        print(f"\nNot clean (see above): {', '.join(failed)}", flush=True)
    return code or int(bool(failed))


def check_host(arguments: list[str]) -> int:
    """Check a WebUI that is installed, or one that runs."""
    return _run("tests.hosts.check_host", *arguments)


def prepare() -> None:
    """See to it that `.venv` holds what the project needs; at once and offline when it does already.

    Raises:
        CannotStart: with what is missing.
    """
    if python_path().exists() and _read(STAMP) == stamp():
        return
    if not python_path().exists():
        check_python(sys.version_info[:2])
        print(f"Making {VENV} (once)", flush=True)
        _watch([sys.executable, "-m", "venv", "--clear", str(VENV)])
    print("Installing the packages (once; a few minutes)", flush=True)
    options = ["--disable-pip-version-check", "--progress-bar", "off", "--editable"]
    _watch([str(python_path()), "-m", "pip", "install", *options, f"{ROOT}[standalone,test]", TORCH])
    STAMP.write_text(stamp(), encoding="utf-8")
    print("Ready.", flush=True)


def gradio_folder(release: str) -> Path:
    """The environment with a release of Gradio."""
    return ROOT / f".venv-gradio-{release}"


def prepare_gradio(release: str) -> Path:
    """An environment with a release of Gradio on top of `.venv`, whose packages it shares; its Python.

    Raises:
        CannotStart: with what is missing.
    """
    folder, packages = gradio_folder(release), (*GRADIO[release], *OLDER)
    wanted = hashlib.sha256("\0".join((*packages, stamp())).encode()).hexdigest()
    python = python_path(folder)
    if python.exists() and _read(folder / "ti_fix.stamp") == wanted:
        return python
    print(f"Installing Gradio {release} for the pages (once; a few minutes)", flush=True)
    _watch([str(python_path()), "-m", "venv", "--clear", str(folder)])
    where = [str(python_path()), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    shared = subprocess.check_output(where, encoding="utf-8").strip()
    own = subprocess.check_output([str(python), *where[1:]], encoding="utf-8").strip()
    Path(own, "zz_ti_fix.pth").write_text(shared + "\n", encoding="utf-8")  # last, so that its own packages win
    options = ["--disable-pip-version-check", "--progress-bar", "off"]
    _watch([str(python), "-m", "pip", "install", *options, *packages])
    (folder / "ti_fix.stamp").write_text(wanted, encoding="utf-8")
    return python


def prepare_browser_tests() -> None:
    """Both releases of Gradio, where a Chromium is there to look at the pages; without them those tests are skipped."""
    if not os.environ.get("TI_FIX_CHROMIUM") and not any(map(shutil.which, CHROMIUM)):
        return
    for release in GRADIO:
        reason = _reason_against(release)
        if reason:
            print(f"The pages are not tested under Gradio {release}: {reason}", flush=True)


def _reason_against(release: str) -> str:
    try:
        prepare_gradio(release)
    except CannotStart as reason:
        return str(reason)
    return ""


def check_python(version: tuple[int, int]) -> None:
    """Whether this Python can make the environment.

    Raises:
        CannotStart: it is too old, or comes without venv or ensurepip.
    """
    if version < OLDEST_PYTHON:
        raise CannotStart(f"Python {version[0]}.{version[1]} is too old: start run.py with Python 3.10 or newer.")
    if not all(map(importlib.util.find_spec, ("venv", "ensurepip"))):
        hint = f"on Debian or Ubuntu, apt install python{version[0]}.{version[1]}-venv"
        raise CannotStart(f"This Python comes without its venv module: install it ({hint}) and start again.")


def python_path(environment: Path | None = None) -> Path:
    """The Python inside `.venv`, or inside another environment."""
    folder = VENV if environment is None else environment
    return folder / "Scripts" / "python.exe" if os.name == "nt" else folder / "bin" / "python"


def stamp() -> str:
    """What the installed packages depend on, as a hash: the lists in pyproject.toml, torch and the Python."""
    parts = (TORCH, package_lists(_read(ROOT / "pyproject.toml")), _read(VENV / "pyvenv.cfg"))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def package_lists(pyproject: str) -> str:
    """The parts of a pyproject.toml that decide what pip installs, without comments (Python 3.10 reads no TOML)."""
    kept = []
    wanted = False
    for line in map(str.strip, pyproject.splitlines()):
        if line.startswith("["):
            wanted = line in ("[build-system]", "[project]", "[project.optional-dependencies]", "[project.scripts]")
        if wanted and line and not line.startswith("#"):
            kept.append(line)
    return "\n".join(kept)


def explain(output: str) -> str:
    """One sentence for what pip or venv printed before they failed; their last lines when the cause is unknown."""
    for sign, meaning in REASONS.items():
        if sign in output:
            return meaning
    if shutil.disk_usage(ROOT).free < ROOM:  # venv keeps to itself why pip could not be put in
        return NO_SPACE
    last = "\n".join(output.splitlines()[-15:])
    return f"{last}\n\nThe installation failed, with the lines above. Put that right and start again."


def _watch(command: list[str]) -> None:
    """Run an installer, show the lines that tell how far it is, explain it when it fails."""
    lines = []
    with subprocess.Popen(
        command, cwd=str(ROOT), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace"
    ) as process:
        for line in process.stdout or ():
            lines.append(line)
            if line.startswith(SHOWN):
                print(f"  {line.rstrip().partition(' (from')[0][:80]}", flush=True)
    if process.returncode:
        raise CannotStart(explain("".join(lines)))


def _run(module: str, *arguments: str, python: Path | None = None, folder: Path = ROOT) -> int:
    """Run a Python module of the project; no model hub is asked for anything.

    Args:
        module: its name.
        arguments: of the command.
        python: the environment's, unless it is another one.
        folder: what paths on the command line are relative to.
    """
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1"}
    if folder != ROOT:  # a Python finds modules in the folder that it starts in
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [str(python or python_path()), "-m", module, *arguments]
    return subprocess.call(command, cwd=str(folder), env=environment)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


COMMANDS = {"demo": demo, "ui": ui, "test": test, "check-host": check_host}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
