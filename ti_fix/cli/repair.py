"""``ti-fix repair``: clean files from whatever a folder holds."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ti_fix.cli.inspect import add_input, existing, print_json, print_table, show
from ti_fix.embedding import FAMILIES, Embedding
from ti_fix.formats import extract
from ti_fix.formats.write import file_name, to_bytes, write_bytes
from ti_fix.repair import Judged, RepairResult, repair, scan, split

_EXAMPLE = """examples:
  ti-fix repair embeddings/ --out clean/
  ti-fix repair long.pt --split --out clean/            (more than 75 vectors: in parts)
  ti-fix repair style_lora.safetensors --extract --out clean/   (embeddings that a LoRA carries)"""

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
    taken: set[str] = set()
    written = [
        write_clean(
            each,
            out,
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
    show(f"{sum(map(len, written))} files written to {out}.")
    return 0


def write_clean(
    each: Judged,
    out: Path,
    *,
    split_long: bool = False,
    extract_bundled: bool = False,
    overwrite: bool = False,
    taken: set[str] | None = None,
) -> list[Path]:
    """Write what is usable of one judged file.

    Args:
        each: the judged file.
        out: folder to write to; made if it is missing.
        split_long: cut more than 75 vectors into parts.
        extract_bundled: take embeddings out of LoRAs and multi-token files.
        overwrite: replace files of the same name with other content.
        taken: names that this run has written, so that two files never share one.

    Returns:
        The files that hold it now; a file that is there already with the same content counts.

    Raises:
        TiFixError: it cannot be written there.
    """
    taken = set() if taken is None else taken
    paths = []
    for embedding in _clean(each, split_long=split_long, extract_bundled=extract_bundled):
        path = out / f"{_free_name(file_name(embedding.name), taken)}.safetensors"
        data = to_bytes(embedding)
        if not (path.is_file() and path.read_bytes() == data):
            write_bytes(path, data, overwrite=overwrite)
        paths.append(path)
    return paths


def _clean(each: Judged, *, split_long: bool, extract_bundled: bool) -> Iterator[Embedding]:
    """What is to be written for one judged file."""
    errors = {f.code for f in each.result.findings if f.severity == "error"}
    if extract_bundled and each.result.before is None and errors & {"lora", "several-embeddings"}:
        for embedding in extract(each.parsed.paths[0]):
            result = repair(embedding, family=each.result.target)
            if result.usable and result.after:
                yield result.after
    elif split_long and each.result.after and errors == {"too-many-vectors"}:
        yield from split(each.result.after)
    elif each.result.usable and each.result.after:
        yield _with_usable_name(each.result)


def _with_usable_name(result: RepairResult) -> Embedding:
    """The embedding under a name that prompts can hold."""
    assert result.after is not None
    unusable = any(f.code in _RENAMED for f in result.findings)
    return replace(result.after, name=result.after.aliases[-1]) if unusable else result.after


def _free_name(name: str, taken: set[str]) -> str:
    """A name that no file of this run has, also where case does not count."""
    candidate, number = name, 2
    while candidate.casefold() in taken:
        candidate, number = f"{name}-{number}", number + 1
    taken.add(candidate.casefold())
    return candidate
