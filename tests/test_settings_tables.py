"""Every table of settings in the docs stands as it stands in the code."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"
WRITER = runpy.run_path(str(DOCS / "write_settings.py"))


@pytest.mark.parametrize("name", list(WRITER["TABLES"]))
def test_the_table_of_settings_is_the_codes(name):
    assert (DOCS / name).read_text(encoding="utf-8") == WRITER["page"](name), "run python docs/write_settings.py"
