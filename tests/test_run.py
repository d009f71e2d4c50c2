"""What run.py decides, without installing anything."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

import run

ROOT = Path(__file__).resolve().parent.parent

PYPROJECT = """
[build-system]
requires = ["setuptools"]

[project]
# a comment
dependencies = [
    "numpy",  # why
]

[project.optional-dependencies]
test = ["pytest"]

[tool.ruff]
line-length = 120
"""


class Commands:
    """Stands for the programs that run.py starts: notes them, answers with exit codes by module."""

    def __init__(self, codes: dict[str, int]) -> None:
        self.codes = codes
        self.calls: list[str] = []

    def __call__(self, module: str, *arguments: str, folder: Path | None = None) -> int:
        self.calls.append(" ".join([module, *arguments]))
        return self.codes.get(self.calls[-1], 0)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A project folder of its own with a pyproject.toml and no environment yet."""
    (tmp_path / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(run, "STAMP", tmp_path / ".venv" / "ti_fix.stamp")
    return tmp_path


@pytest.fixture
def installed(place, monkeypatch):
    """The installers that were started; venv leaves a Python behind as the real one does."""
    started = []

    def watch(command):
        started.append(command[2])
        if command[2] == "venv":
            python = run.python_path(Path(command[-1]))
            python.parent.mkdir(parents=True, exist_ok=True)
            python.touch()
            (run.VENV / "pyvenv.cfg").write_text("version = 3.11.7", encoding="utf-8")

    monkeypatch.setattr(run, "_watch", watch)
    return started


@pytest.fixture
def commands(monkeypatch):
    commands = Commands({})
    monkeypatch.setattr(run, "_run", commands)
    monkeypatch.setattr(run, "prepare", lambda: None)
    monkeypatch.setattr(run, "prepare_browser_tests", lambda: None)
    return commands


def test_a_fresh_folder_gets_an_environment_once(installed):
    run.prepare()
    run.prepare()
    assert installed == ["venv", "pip"]


def test_new_lists_are_installed_into_the_same_environment(installed, place):
    run.prepare()
    (place / "pyproject.toml").write_text(PYPROJECT.replace('"pytest"', '"pytest", "ruff"'), encoding="utf-8")
    run.prepare()
    assert installed == ["venv", "pip", "pip"]


def test_other_changes_install_nothing(installed, place):
    run.prepare()
    changed = PYPROJECT.replace("120", "100").replace("# a comment", "# another")
    (place / "pyproject.toml").write_text(changed, encoding="utf-8")
    run.prepare()
    assert installed == ["venv", "pip"]


def test_another_python_in_the_environment_installs_again(installed):
    run.prepare()
    (run.VENV / "pyvenv.cfg").write_text("version = 3.12.1", encoding="utf-8")
    run.prepare()
    assert installed == ["venv", "pip", "pip"]


def test_an_installation_that_was_broken_off_is_repeated(installed, monkeypatch):
    watch = run._watch

    def fail(command):
        watch(command)
        if command[2] == "pip":
            raise run.CannotStart("No network")

    monkeypatch.setattr(run, "_watch", fail)
    with pytest.raises(run.CannotStart):
        run.prepare()
    monkeypatch.setattr(run, "_watch", watch)
    run.prepare()
    assert installed == ["venv", "pip", "pip"]


def test_too_old_a_python_is_told(installed, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 9, 18))
    with pytest.raises(run.CannotStart, match=r"^Python 3\.9 is too old: .* 3\.10 or newer\.$"):
        run.prepare()
    assert not installed


@pytest.mark.parametrize("module", ["venv", "ensurepip"])
def test_a_python_without_venv_is_told(monkeypatch, module):
    monkeypatch.setattr(run.importlib.util, "find_spec", lambda name: None if name == module else object())
    with pytest.raises(run.CannotStart, match=r"apt install python3\.12-venv"):
        run.check_python((3, 12))


@pytest.mark.parametrize("version", [(3, 10), (3, 13)])
def test_newer_pythons_are_taken(version):
    run.check_python(version)


@pytest.mark.parametrize(
    ("output", "begin"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "The disk is full"),
        ("[WinError 112] There is not enough space on the disk", "The disk is full"),
        ("Retrying after 'NewConnectionError(...)'\nNo matching distribution found for torch==2.13.0", "No network"),
        ("ERROR: No matching distribution found for torch==2.13.0", "There is no torch==2.13.0 for this Python"),
        ("Error: [Errno 13] Permission denied: '/opt/ti_fix/.venv'", "Cannot write to"),
        ("[Errno 30] Read-only file system: '/opt/ti_fix/.venv'", "Cannot write to"),
        ("/x/.venv/bin/python: No module named pip", str(run.VENV)),
    ],
)
def test_failures_become_one_sentence(output, begin):
    sentence = run.explain(output)
    assert sentence.startswith(begin)
    assert "\n" not in sentence


def test_a_silent_failure_on_a_full_disk_is_explained(monkeypatch):
    monkeypatch.setattr(run.shutil, "disk_usage", lambda path: SimpleNamespace(free=2**20))
    assert run.explain("Error: Command ensurepip returned non-zero exit status 1.").startswith("The disk is full")


def test_an_unknown_failure_shows_what_was_printed():
    assert run.explain("first\nERROR: the wheel is bent").startswith("first\nERROR: the wheel is bent\n")


def test_a_failing_installer_is_explained(capsys):
    program = "print('Collecting x (from y)'); print('noise'); raise SystemExit('[Errno 28] No space left on device')"
    with pytest.raises(run.CannotStart, match="disk is full"):
        run._watch([sys.executable, "-c", program])
    assert capsys.readouterr().out == "  Collecting x\n"


def test_the_check_runs_linters_then_tests(commands):
    assert run.main(["test"]) == 0
    assert commands.calls == ["ruff check .", "ruff format --check .", "mypy", "pytest"]


def test_arguments_go_to_pytest_alone(commands):
    assert run.main(["test", "-k", "name"]) == 0
    assert commands.calls == ["pytest -k name"]


@pytest.mark.parametrize(
    ("codes", "code"),
    [({"pytest": 1}, 1), ({"mypy": 2}, 1), ({"pytest": 5, "mypy": 2}, 5), ({"ruff format --check .": 1}, 1)],
)
def test_any_fault_fails_the_check(commands, capsys, codes, code):
    commands.codes = codes
    assert run.main(["test"]) == code
    assert commands.calls[-1] == "pytest"
    named = [each for each in codes if each != "pytest"]
    assert all(each in capsys.readouterr().out.splitlines()[-1] for each in named)


def test_the_demo_passes_its_arguments_on(commands):
    commands.codes = {"ti_fix demo --out x": 3}
    assert run.main(["demo", "--out", "x"]) == 3


def test_the_check_of_a_webui_passes_its_arguments_on(commands):
    commands.codes = {"tests.hosts.check_host --webui /webui -- --lowvram": 7}
    assert run.main(["check-host", "--webui", "/webui", "--", "--lowvram"]) == 7


@pytest.mark.parametrize("argv", [["tset"], ["--version"]])
def test_an_unknown_command_is_answered_with_the_known_ones(commands, capsys, argv):
    assert run.main(argv) == 2
    assert "demo, ui, test" in capsys.readouterr().err
    assert not commands.calls


@pytest.mark.parametrize(("argv", "code"), [([], 2), (["--help"], 0), (["-h"], 0)])
def test_help(commands, capsys, argv, code):
    assert run.main(argv) == code
    assert "python3 run.py test" in capsys.readouterr().out
    assert not commands.calls


def test_reasons_are_said_without_a_traceback(monkeypatch, capsys):
    def refuse():
        raise run.CannotStart("The disk is full.")

    monkeypatch.setattr(run, "prepare", refuse)
    assert run.main(["demo"]) == 1
    assert capsys.readouterr().err == "\nThe disk is full.\n"


def test_a_folder_that_cannot_be_written_is_told(monkeypatch, capsys):
    def refuse():
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(run, "prepare", refuse)
    assert run.main(["demo"]) == 1
    assert capsys.readouterr().err.startswith("\nCannot write to ")


@pytest.mark.parametrize(("system", "path"), [("posix", "bin/python"), ("nt", "Scripts/python.exe")])
def test_where_the_python_is(place, monkeypatch, system, path):
    venv = run.VENV  # made before the name of the system changes: pathlib looks at it too
    monkeypatch.setattr(run.os, "name", system)
    assert run.python_path() == venv / path


def test_old_pythons_can_read_the_file():
    ast.parse((ROOT / "run.py").read_text(encoding="utf-8"), feature_version=(3, 7))


def test_the_torch_release_stands_in_one_place():
    version = run.TORCH.partition("==")[2]
    others = [ROOT / "pyproject.toml", *(ROOT / ".ci").iterdir(), *(ROOT / "ti_fix").rglob("*.py")]
    assert not [path.name for path in others if version in path.read_text(encoding="utf-8")]


@pytest.mark.slow
def test_the_wheel_holds_the_data(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(ROOT / "ti_fix", source / "ti_fix")
    for name in ("LICENSE", "README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-index", "--no-build-isolation", str(source)]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path, timeout=200)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {"ti_fix/py.typed", "ti_fix/data/bpe_simple_vocab_16e6.txt.gz"} <= set(names)
    assert all(name.startswith(("ti_fix/", "ti_fix-")) for name in names)


@pytest.fixture
def layered(installed, monkeypatch, tmp_path):
    """The installers started after `.venv` was there; the folders of packages are `main` and `gradio`."""

    def packages(command, **_):
        return str(tmp_path / ("main" if command[0] == str(run.python_path()) else "gradio")) + "\n"

    monkeypatch.setattr(run.subprocess, "check_output", packages)
    run.prepare()
    (tmp_path / "gradio").mkdir()
    installed.clear()
    return installed


def test_gradio_gets_an_environment_of_its_own_that_shares_the_packages(layered, place, tmp_path):
    assert run.prepare_gradio("3.41.2") == run.python_path(place / ".venv-gradio-3.41.2")
    assert layered == ["venv", "pip"]
    assert (tmp_path / "gradio" / "zz_ti_fix.pth").read_text(encoding="utf-8") == f"{tmp_path / 'main'}\n"


def test_gradio_is_installed_once_and_again_when_its_list_changes(layered, monkeypatch):
    run.prepare_gradio("3.41.2")
    run.prepare_gradio("3.41.2")
    assert layered == ["venv", "pip"]
    monkeypatch.setitem(run.GRADIO, "3.41.2", ("gradio==3.41.3",))
    run.prepare_gradio("3.41.2")
    assert layered == ["venv", "pip", "venv", "pip"]


def test_without_a_chromium_no_environment_is_made_for_the_browser_tests(monkeypatch):
    monkeypatch.setattr(run.shutil, "which", lambda _: None)
    monkeypatch.delenv("TI_FIX_CHROMIUM", raising=False)
    monkeypatch.setattr(run, "prepare_gradio", lambda _: pytest.fail("it would install packages"))
    run.prepare_browser_tests()


def test_a_gradio_that_cannot_be_installed_is_told_and_the_tests_go_on(monkeypatch, capsys):
    def refuse(_):
        raise run.CannotStart("No network")

    monkeypatch.setenv("TI_FIX_CHROMIUM", "/usr/bin/chromium")
    monkeypatch.setattr(run, "prepare_gradio", refuse)
    run.prepare_browser_tests()
    assert capsys.readouterr().out.count("No network") == len(run.GRADIO)


def test_ui_runs_in_the_environment_with_gradio(commands, monkeypatch):
    pythons = []
    monkeypatch.setattr(run, "prepare_gradio", Path)
    monkeypatch.setattr(run, "_run", lambda *words, python, folder: pythons.append((words, python)) or 0)
    assert run.main(["ui", "--port", "1"]) == 0
    default = ("--embeddings", str(run.ROOT / "embeddings"))
    assert pythons == [(("ti_fix", "ui", *default, "--port", "1"), Path(run.PAGES_GRADIO))]


def test_paths_are_meant_from_where_the_user_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "prepare", lambda: None)
    monkeypatch.setattr(run, "python_path", lambda: Path(sys.executable))
    assert run.main(["demo", "--only", "repair", "--out", "mine"]) == 0
    assert (tmp_path / "mine" / "report.html").is_file()
