"""``ti-fix repair``: clean files from whatever a folder holds."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ti_fix.cli.inspect import add_input, existing, print_json, print_table, show
from ti_fix.embedding import FAMILIES
from ti_fix.errors import WrongUse
from ti_fix.formats.export import FORMS
from ti_fix.repair import scan, write_clean

_EXAMPLE = """examples:
  ti-fix repair embeddings/ --out clean/
  ti-fix repair style.pt --form a1111 --out for_an_older_webui/
  ti-fix repair long.pt --split --out clean/            (more than 75 vectors: in parts)
  ti-fix repair style_lora.safetensors --extract --out clean/   (embeddings that a LoRA carries)"""


def register(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "repair",
        help="write clean files",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_input(parser)
    parser.add_argument("--out", required=True, metavar="FOLDER", help="where to write; the originals stay as they are")
    parser.add_argument(
        "--form", choices=list(FORMS), default="", help="write what another program reads (default: plain safetensors)"
    )
    parser.add_argument("--split", action="store_true", help="cut embeddings of more than 75 vectors into parts")
    parser.add_argument("--extract", action="store_true", help="take embeddings out of LoRAs and multi-token files")
    parser.add_argument("--overwrite", action="store_true", help="replace files of the same name in FOLDER")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Repair, write and report."""
    judged = scan(existing(arguments.paths), family=FAMILIES[arguments.family])
    out = Path(arguments.out)
    if any(Path(p).is_dir() and out.resolve() == Path(p).resolve() for p in arguments.paths):
        raise WrongUse("--out is the folder that is read; name another, so that the originals stay by themselves.")
    taken: set[str] = set()
    written = [
        write_clean(
            each,
            out,
            form=arguments.form,
            split_long=arguments.split,
            extract_bundled=arguments.extract,
            overwrite=arguments.overwrite,
            taken=taken,
        )
        for each in judged
    ]
    if arguments.json:
        reports = zip(judged, written, strict=True)
        print_json({**each.as_dict(), "written": [str(p) for p in paths]} for each, paths in reports)
        return 0
    print_table(judged)
    for each, paths in zip(judged, written, strict=True):
        for path in paths:
            if path.stem != each.trigger:
                show(f"{each.trigger} is now called {path.stem}")
    show(f"{sum(map(len, written))} files written to {out}.")
    return 0
