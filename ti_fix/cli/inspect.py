"""``ti-fix inspect``: what each file is, and whether it can be used."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from ti_fix.cli.output import existing, print_json, print_object, show
from ti_fix.embedding import FAMILIES, family_name
from ti_fix.repair import Judged, scan

__all__ = ["existing", "print_json", "print_object", "print_table", "show", "summary"]

_EXAMPLE = """examples:
  ti-fix inspect embeddings/
  ti-fix inspect embeddings/ my.pt --for sd15 --json
  ti-fix inspect embeddings/ --strict      (exit code 1 when a file is rejected)"""


def register(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "inspect",
        help="say what each embedding file is and whether it can be used",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_input(parser)
    parser.add_argument("--strict", action="store_true", help="exit with 1 when any file is rejected")
    parser.set_defaults(run=run)


def add_input(parser: argparse.ArgumentParser) -> None:
    """The arguments that `inspect` and `repair` share."""
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a file, or a folder (searched with its sub-folders)")
    parser.add_argument(
        "--for",
        dest="family",
        type=family_name,
        choices=list(FAMILIES),
        default="sdxl",
        help="kind of model (sdxl); SD1.5 and the like are understood too",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list, one object per embedding")


def run(arguments: argparse.Namespace) -> int:
    """Inspect and print."""
    judged = scan(existing(arguments.paths), family=FAMILIES[arguments.family])
    if arguments.json:
        print_json(each.as_dict() for each in judged)
    else:
        print_table(judged)
    rejected = any(each.result.verdict == "reject" for each in judged)
    return 1 if arguments.strict and rejected else 0


def print_table(judged: Sequence[Judged]) -> None:
    """For people: a line per embedding, its findings below, and a summary."""
    for each in judged:
        if each.result.verdict == "ignore":
            continue
        vectors = ", ".join(f"{k} {v.shape[0]} x {v.shape[1]}" for k, v in _vectors(each).items())
        made_for = f" for {each.made_for.title}" if each.made_for else ""
        head = f"{each.result.verdict:8}{each.trigger}{made_for}{f' ({vectors})' if vectors else ''}"
        show(f"{head}  {' + '.join(str(p) for p in each.parsed.paths)}")
        for finding in each.result.findings:
            show(f"        {finding.severity}: {finding.message}")
    show(summary(judged))
    if judged and all(each.result.verdict == "ignore" for each in judged):
        show("Nothing here looks like an embedding.")
    if any(each.result.verdict == "convert" for each in judged):
        show("Convert: the extension does it while the WebUI loads; for files of their own see ti-fix convert --help.")


def _vectors(each: Judged) -> dict[str, Any]:
    return dict(each.result.after.vectors) if each.result.after else {}


def summary(judged: Sequence[Judged]) -> str:
    """How many of each verdict, in a line."""
    counts: dict[str, int] = {}
    for each in judged:
        counts[each.result.verdict] = counts.get(each.result.verdict, 0) + 1
    order = ("load", "repair", "warn", "convert", "reject", "ignore")
    told = ", ".join(f"{counts[v]} {v}" for v in order if v in counts)
    return f"{len(judged)} looked at: {told}." if judged else "No embedding files found here."
