"""``ti-fix demo``: the main jobs on files and a model that come with the project, and a page about what they did."""

from __future__ import annotations

import argparse
import shutil
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ti_fix.cli.broken import make_broken_folder
from ti_fix.cli.demo_report import Section, write_report
from ti_fix.cli.inspect import show, summary
from ti_fix.repair import Judged, scan, write_clean


def register(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("demo", help="show the main jobs on example files and the small model")
    parser.add_argument("--out", metavar="FOLDER", help="keep the files here (default: a temporary folder)")
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), default=list(PARTS), help="some of the parts")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Do the parts one after the other and write the page."""
    root = Path(arguments.out) if arguments.out else Path(tempfile.mkdtemp(prefix="ti_fix_demo_"))
    root.mkdir(parents=True, exist_ok=True)
    sections = []
    for number, name in enumerate(arguments.only, 1):
        title, part = PARTS[name]
        show(f"{number}. {title}")
        section = part(root)
        for row in section.table if name != "repair" else ():
            show(f"  {'  '.join(row)}")
        for line in section.lines:
            show(line)
        sections.append(section)
        show("")
    show(f"The page with all pictures: {write_report(root / 'report.html', sections)}")
    if "repair" in arguments.only:
        show(f"The broken files on a page: python3 run.py ui --embeddings {root / 'embeddings'}")
    return 0


def repair(root: Path) -> Section:
    """Make a folder of broken files, repair it, and read the result again."""
    today = make_broken_folder(root / "embeddings")
    judged = scan([root / "embeddings"])
    rows = [("file", "WebUI today", "ti_fix", "what is said or done"), *_rows(judged, today)]
    show("")
    _table(rows)
    show("")
    clean = root / "clean"
    written = sum(len(write_clean(each, clean, split_long=True, extract_bundled=True)) for each in judged)
    lines = [
        summary(judged),
        f"{written} clean files written, parts and extracted ones too; read again: {summary(scan([clean]))}",
        f"The broken files are in {root / 'embeddings'}, the clean ones in {clean}.",
    ]
    return Section(title="Repair: broken embeddings", lines=lines, table=[tuple(row) for row in rows])


def training(root: Path) -> Section:
    """Learn a concept."""
    from ti_fix.cli.demo_training import run_training  # torch models: seconds that the first part need not wait for

    return run_training(root)


def conversion(root: Path) -> Section:
    """Convert an SD1.5 embedding."""
    from ti_fix.cli.demo_conversion import run_conversion

    return run_conversion(root)


PARTS: dict[str, tuple[str, Callable[[Path], Section]]] = {
    "repair": ("Repair: a folder as it comes together from many trainers, with an SDXL model loaded", repair),
    "train": ("Train: a colour that words cannot name, on the small model", training),
    "convert": ("Convert: an SD1.5 embedding for SDXL, on the small model", conversion),
}
"""Name -> what it says first, and what it does in the demo's folder; in this order."""


def _rows(judged: list[Judged], today: dict[str, str]) -> list[tuple[str, str, str, str]]:
    return [
        (
            " + ".join(p.name for p in each.parsed.paths),
            today[each.parsed.paths[0].name],
            each.result.verdict,
            _said(each),
        )
        for each in judged
        if each.result.verdict != "ignore"
    ]


def _said(each: Judged) -> str:
    if each.result.applied:
        return " ".join(each.result.applied)
    worst = [f.message for s in ("error", "warning", "note") for f in each.result.findings if f.severity == s]
    return worst[0].removeprefix(f"{each.parsed.paths[0].name}: ") if worst else ""


def _table(rows: list[tuple[str, str, str, str]]) -> None:
    """Columns beside each other; what is said goes on below itself where the terminal ends."""
    sides = [max(len(row[column]) for row in rows) for column in range(3)]
    margin = sum(sides) + 2 * len(sides) + 2
    room = max(40, shutil.get_terminal_size((160, 24)).columns - margin)
    for row in rows:
        head = "  ".join(cell.ljust(side) for cell, side in zip(row, sides, strict=False))
        first, *more = textwrap.wrap(row[3], room) or [""]
        show(f"  {head}  {first}".rstrip())
        for line in more:
            show(" " * margin + line)
