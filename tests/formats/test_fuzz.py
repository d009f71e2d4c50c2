"""The short form of `tests.formats.fuzz`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_mutated_files_get_a_verdict_and_nothing_else_happens(tmp_path: Path) -> None:
    """In a process of its own: peak memory is measured, and an audit hook cannot be taken back."""
    command = [sys.executable, "-m", "tests.formats.fuzz", "--inputs", "2000", "--seed", "1", "--keep", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed 1: 2000 inputs" in done.stdout
