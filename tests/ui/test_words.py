from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ti_fix.ui import words

ROOT = Path(__file__).resolve().parent.parent.parent


def test_every_text_of_the_page_is_translated_and_nothing_else():
    translated = json.loads((ROOT / "localizations" / "zh_CN.json").read_text(encoding="utf-8"))
    assert translated.keys() - {"ti_fix"} == words.all_words()
    assert all(re.search("[\u4e00-\u9fff]", text) or text == "/" for text in translated.values())


@pytest.mark.parametrize(
    "name",
    [
        "convert.py",
        "convert_table.py",
        "files.py",
        "files_table.py",
        "files_details.py",
        "form_view.py",
        "model.py",
        "model_report.py",
        "model_tokens.py",
        "progress.py",
        "tab.py",
        "train.py",
        "train_view.py",
    ],
)
def test_no_text_of_a_control_is_written_elsewhere(name):
    source = (ROOT / "ti_fix" / "ui" / name).read_text(encoding="utf-8")
    controls = re.findall(r'(?:Button|Accordion|Tab|Dropdown|Textbox)\(\s*(?:label=|placeholder=)?"([^"]+)"', source)
    assert not set(controls) - {"send", "opened"}  # these two are out of sight
