"""The source as it runs here, changes included: what the AGPL (section 13) wants offered to users over a network."""

from __future__ import annotations

import io
import zipfile
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ("ti_fix", "scripts", "javascript", "localizations", "style.css", "install.py", "run.py")
ABOUT = ("LICENSE", "README.md", "README.zh-CN.md", "metadata.ini", "pyproject.toml")
LEFT_OUT = frozenset({".pyc", ".safetensors"})
"""Compiled files, and the packs of the small models, which are data of 9 MB."""


@lru_cache(maxsize=1)
def zipped() -> bytes:
    """A zip file with the program beside its licence; what is not installed is left out."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for part in (*PROGRAM, *ABOUT):
            place = ROOT / part
            files = sorted(place.rglob("*")) if place.is_dir() else [place]
            for path in files:
                if path.is_file() and path.suffix not in LEFT_OUT:
                    archive.write(path, f"ti_fix/{path.relative_to(ROOT).as_posix()}")
    return made.getvalue()
