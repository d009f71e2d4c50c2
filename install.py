"""What the WebUI runs before it starts: install what is missing, which in every known host is nothing.

The host gives its extensions one Python. A version that moves here breaks the host or another extension, so a package
that is there is never touched, whatever its version, and a missing one is installed without moving any other.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

NEEDED: Mapping[str, str] = {"numpy": "numpy", "PIL": "pillow", "safetensors": "safetensors"}
"""Module -> the package that brings it: the dependencies of pyproject.toml but torch, without which no host starts."""


def main() -> int:
    """Install the missing packages; always 0, since the host must start without them too."""
    if skipped():
        return 0
    wanted = missing()
    if wanted:
        print(f"ti_fix: installing {', '.join(wanted)}")
        if not install(wanted):
            print(f"ti_fix: could not install {', '.join(wanted)}; it stays off. Install it by hand and start again.")
    return 0


def skipped() -> bool:
    """Whether the host was started with --skip-install."""
    return "--skip-install" in [*sys.argv, *shlex.split(os.environ.get("COMMANDLINE_ARGS", ""))]


def missing() -> list[str]:
    """The needed packages whose module is not there. Nothing is imported."""
    return [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]


def install(packages: list[str]) -> bool:
    """Install packages with every present version held; whether that worked."""
    with tempfile.TemporaryDirectory() as folder:
        held = Path(folder) / "held.txt"
        held.write_text("\n".join(present()), encoding="utf-8")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--constraint", str(held), *packages]
        return subprocess.run(command, check=False).returncode == 0


def present() -> list[str]:
    """Each installed package with its version, as pip's constraints."""
    found = ((each.metadata["Name"], each.version) for each in metadata.distributions())
    return sorted({f"{name}=={version}" for name, version in found if name and version})


if __name__ == "__main__":
    sys.exit(main())
