"""install.py against each host's pins, with stand-ins for the host's packages and for pip."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import install

ROOT = Path(__file__).resolve().parent.parent
CASES = ROOT / "tests" / "data" / "cases.zip"
MODULES = {"Pillow": "PIL", "pillow": "PIL", "open-clip-torch": "open_clip", "protobuf": "google"}

PIP = """
import os, sys
held = sys.argv[sys.argv.index("--constraint") + 1]
with open(os.environ["STAND_IN_LOG"], "w", encoding="utf-8") as log:
    log.write("\\n".join([" ".join(sys.argv[1:]), open(held, encoding="utf-8").read()]))
sys.exit(int(os.environ.get("STAND_IN_EXIT", "0")))
"""


def _pins() -> dict[str, dict[str, str]]:
    with zipfile.ZipFile(CASES) as cases:
        pins = json.loads(cases.read("handover/INST/host_pins.json"))
    return {host: versions for host, versions in pins.items() if isinstance(versions, dict)}


PINS = _pins()


class HostPython:
    """A Python with nothing but the standard library and stand-ins of a host's packages."""

    def __init__(self, folder: Path, pins: dict[str, str]) -> None:
        self.site = folder / "site"
        self.log = folder / "pip.log"
        self.installer = Path(shutil.copy(ROOT / "install.py", folder))
        for name, version in pins.items():
            self.add(name, version)
        (self.site / "pip").mkdir()
        (self.site / "pip" / "__init__.py").touch()
        (self.site / "pip" / "__main__.py").write_text(PIP, encoding="utf-8")

    def add(self, name: str, version: str) -> None:
        info = self.site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
        module = self.site / MODULES.get(name, name)
        module.mkdir()
        (module / "__init__.py").write_text("raise AssertionError('imported')", encoding="utf-8")

    def run_install(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run install.py as the host does: by path, in another folder, without site-packages of our own."""
        paths = [str(self.site), *map(sysconfig.get_path, ("stdlib", "platstdlib"))]
        kept = {k: v for k, v in os.environ.items() if k not in ("COMMANDLINE_ARGS", "PYTHONPATH")}
        return subprocess.run(
            [sys.executable, "-S", str(self.installer), *arguments],
            cwd=self.site.parent,
            env=kept | {"PYTHONPATH": os.pathsep.join(paths), "STAND_IN_LOG": str(self.log)} | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )


@pytest.fixture(params=PINS)
def pins(request):
    return PINS[request.param]


def test_four_hosts_are_known():
    assert len(PINS) == 4


def test_nothing_happens_in_a_host(tmp_path, pins):
    host = HostPython(tmp_path, pins)
    done = host.run_install()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not host.log.exists()


def test_a_missing_package_is_installed_and_every_pin_held(tmp_path, pins):
    host = HostPython(tmp_path, {name: version for name, version in pins.items() if name != "safetensors"})
    done = host.run_install()
    command, *held = host.log.read_text(encoding="utf-8").splitlines()
    assert done.returncode == 0
    assert command.startswith("install ")
    assert command.endswith(" safetensors")
    assert set(held) == {f"{name}=={version}" for name, version in pins.items() if name != "safetensors"}


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_skip_install_is_honoured(tmp_path, how):
    host = HostPython(tmp_path, {"gradio": "3.41.2"})
    arguments = ["--skip-install"] if how == "argument" else []
    environment = {"COMMANDLINE_ARGS": "--api --skip-install"} if how == "environment" else {}
    done = host.run_install(*arguments, **environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not host.log.exists()


def test_without_a_network_the_host_still_starts(tmp_path):
    done = HostPython(tmp_path, {"gradio": "3.41.2"}).run_install(STAND_IN_EXIT="1")
    assert done.returncode == 0
    assert "could not install numpy, pillow, safetensors" in done.stdout
    assert done.stderr == ""


def test_the_list_is_that_of_the_package():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    dependencies = ast.literal_eval(re.search(r"^dependencies = (\[.*\])$", text, re.MULTILINE).group(1))
    assert {re.match(r"[\w-]+", each).group() for each in dependencies} == {*install.NEEDED.values(), "torch"}


def test_nothing_heavy_is_imported():
    tree = ast.parse((ROOT / "install.py").read_text(encoding="utf-8"))
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= set(sys.stdlib_module_names)
