"""``ti-fix repair``: clean files from whatever a folder holds."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ti_fix.cli.inspect import add_input, existing, print_json, print_table, show
from ti_fix.embedding import FAMILIES, Embedding
from ti_fix.errors import TiFixError
from ti_fix.formats import extract
from ti_fix.formats.write import file_name, to_bytes, write_bytes
from ti_fix.repair import Judged, repair, scan, split

_EXAMPLE = """examples:
  ti-fix repair embeddings/ --out clean/
  ti-fix repair long.pt --split --out clean/            (more than 75 vectors: in parts)
  ti-fix repair style_lora.safetensors --extract --out clean/   (embeddings that a LoRA carries)"""

_SPLITTABLE = frozenset({"too-many-vectors"})
_RENAMED = frozenset({"prompt-syntax", "keyword"})


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
    parser.add_argument("--split", action="store_true", help="cut embeddings of more than 75 vectors into parts")
    parser.add_argument("--extract", action="store_true", help="take embeddings out of LoRAs and multi-token files")
    parser.add_argument("--overwrite", action="store_true", help="replace files of the same name in FOLDER")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Repair, write and report."""
    judged = scan(existing(arguments.paths), family=FAMILIES[arguments.family])
    out = Path(arguments.out)
    if out.exists() and not out.is_dir():
        raise TiFixError(f"{str(out)!r} is a file; give the name of a folder after --out.")
    taken: set[str] = set()
    written = [_write(each, out, arguments, taken) for each in judged]
    if arguments.json:
        print_json({**each.as_dict(), "written": [str(p) for p in paths]} for each, paths in zip(judged, written, strict=True))
        return 0
    print_table(judged)
    show(f"{sum(map(len, written))} files written to {out}.")
    return 0


def _write(each: Judged, out: Path, arguments: argparse.Namespace, taken: set[str]) -> list[Path]:
    paths = []
    for embedding in _clean(each, arguments):
        name = _free_name(file_name(embedding.name), taken)
        path = out / f"{name}.safetensors"
        write_bytes(path, to_bytes(embedding), overwrite=arguments.overwrite)
        paths.append(path)
    return paths


def _clean(each: Judged, arguments: argparse.Namespace) -> Iterator[Embedding]:
    """What is to be written for one judged file."""
    codes = {f.code for f in each.result.findings if f.severity == "error"}
    if arguments.extract and each.result.before is None and codes & {"lora", "several-embeddings"}:
        for embedding in extract(each.parsed.paths[0]):
            result = repair(embedding, family=each.result.target)
            if result.usable and result.after:
                yield result.after
    elif arguments.split and each.result.after and codes and codes <= _SPLITTABLE:
        yield from split(each.result.after)
    elif each.result.usable and each.result.after:
        yield _callable(each)


def _callable(each: Judged) -> Embedding:
    """The embedding under a name that prompts can hold."""
    embedding = each.result.after
    assert embedding is not None
    unusable = any(f.code in _RENAMED for f in each.result.findings)
    return replace(embedding, name=embedding.aliases[-1]) if unusable and embedding.aliases else embedding


def _free_name(name: str, taken: set[str]) -> str:
    """A name that no file of this run has, also where case does not count."""
    candidate, number = name, 2
    while candidate.casefold() in taken:
        candidate, number = f"{name}-{number}", number + 1
    taken.add(candidate.casefold())
    return candidate
