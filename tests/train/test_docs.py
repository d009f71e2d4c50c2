"""The page on training lists every setting as it stands in the code."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_table_of_settings_is_the_codes():
    page = runpy.run_path(str(DOCS / "write_settings.py"))["page"]
    assert (DOCS / "train.md").read_text(encoding="utf-8") == page(), "run python docs/write_settings.py"
