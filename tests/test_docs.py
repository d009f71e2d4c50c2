"""The documentation names what exists, and nothing else."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pytest

import run
from ti_fix import cli

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("ti_fix/data/*.md")])
READMES = [ROOT / "README.md", ROOT / "README.zh-CN.md"]


def _commands() -> set[str]:
    parser = cli._parser()
    (commands,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    return set(commands.choices)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_to_files(page):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    assert not [link for link in links if "://" not in link and not (page.parent / link).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_command_that_is_named_exists(page):
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"\bti-fix ([a-z-]+)\b", text)) <= _commands()
    assert set(re.findall(r"\brun\.py ([a-z-]+)\b", text)) <= set(run.COMMANDS)


@pytest.mark.parametrize("page", READMES, ids=lambda path: path.name)
def test_the_readme_names_every_command(page):
    text = page.read_text(encoding="utf-8")
    assert all(f"ti-fix {name} " in text or f"run.py {name} " in text for name in _commands())
    assert "python3 run.py demo" in text
    assert "python3 run.py test" in text


def test_the_help_of_run_names_its_commands():
    assert set(re.findall(r"python3 run\.py ([a-z-]+) ", run.__doc__)) == set(run.COMMANDS)


def test_localisations_are_flat_tables_of_text():
    for path in (ROOT / "localizations").glob("*.json"):
        table = json.loads(path.read_text(encoding="utf-8"))
        assert table
        assert all(isinstance(value, str) and value for value in table.values())
