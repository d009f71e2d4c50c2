"""The public bug reports as files: `cases()` lists them, `folder()` unpacks their files once per run."""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"


@functools.cache
def folder() -> Path:
    """The folder in which the paths of the cases begin."""
    where = Path(tempfile.mkdtemp(prefix="ti_fix_cases_"))
    atexit.register(shutil.rmtree, where, ignore_errors=True)
    with zipfile.ZipFile(DATA / "cases.zip") as packed:
        packed.extractall(where)
    return where


@functools.cache
def cases() -> dict[str, dict[str, Any]]:
    """Case id -> the report: its files and what is expected of them."""
    return {c["id"]: c for c in json.loads((DATA / "cases.json").read_text("utf-8"))["cases"]}
