"""Check a WebUI with ti_fix: does every case load, and does nothing else change? Prints a table.

python3 run.py check-host --webui PATH [-- FLAGS]
    starts an installed WebUI several times in a data folder of its own, with tiny checkpoints that are written for it;
    nothing in the installation is changed
    --python PATH       the WebUI's Python; by default the one in its venv folder
    --models FOLDER     checkpoints (.safetensors) to use instead of the tiny ones: one for SDXL, and one for SD1.5
    --extension FOLDER  a further extension that this installation needs; may be repeated
    --parts PART …      only some of: contract (what ti_fix relies on inside the WebUI, docs/hosts.md), cases (the
                        public reports), align (damaged checkpoints, docs/align.md), changes (files that come, change
                        and go; settings; other models), update (another release of ti_fix on disk, then Reload UI)
    -- FLAGS            further flags for the WebUI, such as --use-cpu all --no-half

python3 run.py check-host --url URL --embeddings FOLDER
    talks to a WebUI that runs with --api and an SDXL checkpoint; the cases lie in a sub-folder of its embeddings folder
    meanwhile. Switching models, LoRAs and Reload UI are checked with --webui only
    --auth NAME:PASSWORD  of its --api-auth

                        and, only when named, training: the loaded model is trained on and given back
                        (with the Python of the project's .venv)
                        train-page: the Train page in a browser, a concept that the small SDXL has no word for learned
                        and measured (the same Python)
                        page: the pages in a browser
                        evaluate: attention maps, and the Evaluate page in a browser, with the small real model
                        A browser needs the package playwright and a Chromium; pictures of each step go to --shots
                        FOLDER (out/page)
    --cases F01,D       only the cases whose ids begin so
    --report FILE       write the table as Markdown
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.hosts import host_cases
from tests.hosts import sample_files as files
from tests.hosts.checks import Check
from tests.hosts.report import Report
from tests.hosts.running_check import FOLDER, check_running
from tests.hosts.table import Table
from tests.hosts.webui_client import Client, Failed
from tests.hosts.webui_process import Installation

PARTS = ("contract", "cases", "align", "changes", "update")
TRAINING = {"training", "train-page"}
ALL_PARTS = (*PARTS, *sorted(TRAINING), "page", "evaluate")


class CannotCheck(Exception):
    """What the user has to put right first."""


def installation(arguments: argparse.Namespace, folder: Path) -> Installation:
    """What the command line says, completed by looking into the installation.

    Args:
        arguments: the command line.
        folder: where tiny checkpoints can be written.

    Raises:
        CannotCheck: there is no WebUI, or no Python or checkpoint for it.
    """
    path = arguments.webui.resolve()
    if not (path / "launch.py").exists():
        raise CannotCheck(f"{path} has no launch.py; name the folder of an installed WebUI.")
    own = [path / "venv" / "bin" / "python", path / "venv" / "Scripts" / "python.exe"]
    python = arguments.python or next((p for p in own if p.exists()), None)
    if python is None:
        raise CannotCheck(f"{path} has no venv folder; name the WebUI's Python with --python.")
    needed = () if arguments.models else _tiny(path, folder, arguments.parts)
    models = arguments.models or folder
    if "sdxl" not in checkpoints(models):
        raise CannotCheck(f"{models} holds no SDXL checkpoint (.safetensors).")
    return Installation(path, python.absolute(), models, (*needed, *arguments.extension), tuple(arguments.flags))


def _tiny(path: Path, folder: Path, parts: Sequence[str]) -> tuple[Path, ...]:
    """Write small checkpoints; the extensions that the WebUI needs to load them."""
    from tests.hosts import tiny_checkpoints  # diffusers: seconds that a command line with a mistake need not wait for

    if list(parts) == ["evaluate"]:
        return tiny_checkpoints.write_small(path, folder)
    return tiny_checkpoints.write(path, folder, trained=bool(TRAINING & {*parts}))


def checkpoints(folder: Path) -> dict[str, str]:
    """Family -> the smallest checkpoint of it in a folder."""
    found: dict[str, str] = {}
    for path in sorted(folder.glob("*.safetensors"), key=lambda p: p.stat().st_size):
        family = files.family_of(path)
        if family:
            found.setdefault(family, path.name)
    return dict(sorted(found.items(), reverse=True))


def check_installed(arguments: argparse.Namespace) -> Report:
    """With ``--webui``."""
    cases = None
    with tempfile.TemporaryDirectory(prefix="ti_fix_check_") as name:
        folder = Path(name)
        (folder / "models").mkdir()
        what = installation(arguments, folder / "models")
        check = Check(what, folder / "data", checkpoints(what.models))
        try:
            if "contract" in arguments.parts:
                check.contract()
            if "cases" in arguments.parts:
                cases = check.cases(host_cases.names(arguments.cases))
            if "align" in arguments.parts:
                check.align()
            if TRAINING & {*arguments.parts}:
                check.versions = _training(what, folder / "training", check.table, arguments)
            if "page" in arguments.parts:
                check.page(arguments.shots)
            if "evaluate" in arguments.parts:
                check.evaluate(arguments.shots)
            if "changes" in arguments.parts:
                check.without()
                check.with_ti_fix()
            if "update" in arguments.parts:
                check.update()
        except Failed as error:
            check.table.add("the WebUI runs", False, str(error))
    return Report(
        check.table.rows, cases.rows if cases else [], check.versions, tuple(cases.identical if cases else ())
    )


def _training(what: Installation, data: Path, table: Table, arguments: argparse.Namespace) -> dict[str, str]:
    """The parts that compare with the standalone host; what the WebUI says of itself."""
    try:
        from tests.hosts.check_training import CheckTraining
    except ModuleNotFoundError as missing:
        raise CannotCheck(f"{missing.name} is missing; run it with: .venv/bin/python run.py check-host …") from None
    check = CheckTraining(what, data, checkpoints(what.models), table)
    check.run(arguments.parts, arguments.shots)
    return check.versions


def check_url(arguments: argparse.Namespace) -> Report:
    """With ``--url``."""
    webui, table = Client(arguments.url, arguments.auth), Table()
    if not arguments.embeddings or not arguments.embeddings.is_dir():
        raise CannotCheck("Name the running WebUI's embeddings folder with --embeddings.")
    if (arguments.embeddings / FOLDER).exists():
        raise CannotCheck(f"{arguments.embeddings / FOLDER} is left from an earlier run; delete it.")
    try:
        if not webui.has_ti_fix():
            raise CannotCheck(f"ti_fix is not installed in the WebUI at {arguments.url}.")
        cases = check_running(webui, arguments.embeddings, host_cases.names(arguments.cases), table)
    except Failed as error:
        raise CannotCheck(f"{arguments.url} does not answer as a WebUI with --api does: {error}") from None
    return Report(table.rows, cases.rows, webui.versions(), tuple(cases.identical))


def parser() -> argparse.ArgumentParser:
    """The command line, without what follows ``--``."""
    made = argparse.ArgumentParser(
        prog="run.py check-host", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    which = made.add_mutually_exclusive_group(required=True)
    which.add_argument("--webui", type=Path)
    which.add_argument("--url")
    made.add_argument("--python", type=Path)
    made.add_argument("--models", type=Path)
    made.add_argument("--extension", type=Path, action="append", default=[])
    made.add_argument("--embeddings", type=Path)
    made.add_argument("--auth", default="")
    made.add_argument("--parts", nargs="+", choices=ALL_PARTS, default=PARTS)
    made.add_argument("--cases", default="")
    made.add_argument("--shots", type=Path, default=Path("out/page"))
    made.add_argument("--report", type=Path)
    return made


def parsed(argv: list[str]) -> argparse.Namespace:
    """A command line, with what follows ``--`` as `flags`."""
    cut = argv.index("--") if "--" in argv else len(argv)
    arguments = parser().parse_args(argv[:cut])
    arguments.flags = argv[cut + 1 :]
    return arguments


def main(argv: list[str]) -> int:
    """Carry out a command line; 0 when all is right, 1 when something is not, 2 when it cannot be checked."""
    arguments = parsed(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the WebUI is stopped and its folder removed
    try:
        report = check_installed(arguments) if arguments.webui else check_url(arguments)
    except CannotCheck as reason:
        print(reason, file=sys.stderr)  # noqa: T201
        return 2
    print(f"\n{report.markdown()}")  # noqa: T201
    if arguments.report:
        arguments.report.write_text(report.markdown(), encoding="utf-8")
    return int(bool(report.wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
