"""``ti-fix convert``: SD1.5 embeddings for SDXL and back, with a confidence for each vector."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ti_fix import tokenizer
from ti_fix.align.checkpoint import read_checkpoint
from ti_fix.cli.inspect import existing, print_json, show
from ti_fix.convert import Conversion, ConvertConfig, Converter, Row, to_sd15
from ti_fix.convert.converter import L_ONLY
from ti_fix.embedding import FAMILIES, SD15, SDXL, Embedding, Family, Vocabulary
from ti_fix.errors import TiFixError, WrongUse
from ti_fix.formats.write import file_name, to_bytes, write_bytes
from ti_fix.options import options, validate
from ti_fix.repair import Judged, scan

_EXAMPLE = """examples:
  ti-fix convert old/easynegative.pt --to sdxl --model models/sd_xl_base_1.0.safetensors --out embeddings/
  ti-fix convert embeddings/ --to sd15 --out for_sd15/"""


def register(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "convert",
        help="make SD1.5 embeddings work on SDXL, and back",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", nargs="+", metavar="PATH", help="embedding files, and folders of them")
    parser.add_argument("--to", choices=("sdxl", "sd15"), required=True, help="the kind of model to convert for")
    parser.add_argument("--model", metavar="M", help="the SDXL checkpoint or diffusers folder to convert for (to sdxl)")
    for field, about in options(ConvertConfig):
        choices = [c for c in about.choices or () if c != L_ONLY]  # a way to load a file, not to write one
        parser.add_argument(f"--{field.name}", choices=choices, default=field.default, help=about.help)
    parser.add_argument("--out", required=True, metavar="F", help="folder to write to; the originals stay as they are")
    parser.add_argument("--overwrite", action="store_true", help="replace files of the same name in F")
    parser.add_argument("--json", action="store_true", help="print a JSON list, one object per embedding")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Convert, write and report; exit code 1 when nothing could be converted."""
    config = ConvertConfig(method=arguments.method)
    validate(config)
    family = FAMILIES[arguments.to]
    judged = [j for j in scan(existing(arguments.paths), family=family) if j.result.verdict != "ignore"]
    converter = _converter(arguments.model) if family is SDXL and _waiting(judged) else None
    reports = [_one(each, family, converter, config, arguments) for each in judged]
    if arguments.json:
        print_json(reports)
    else:
        _print(reports)
    return 0 if any(report["written"] for report in reports) else 1


def _waiting(judged: Sequence[Judged]) -> bool:
    return any(each.result.verdict == "convert" for each in judged)


def _converter(model: str | None) -> Converter:
    if model is None:
        raise WrongUse("name the SDXL checkpoint to convert for with --model; its own words are the dictionary.")
    (path,) = existing([model])
    text = read_checkpoint(path)
    tables = {encoder.spec.key: encoder.table.read() for encoder in text.encoders}
    return Converter(Vocabulary(tables=tables, tokenize=tokenizer.encode), cache=_cache())


def _cache() -> Path:
    """Where fitted maps are kept between runs, by the custom of the system."""
    base = os.environ.get("LOCALAPPDATA") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ti_fix"


def _one(
    each: Judged, family: Family, converter: Converter | None, config: ConvertConfig, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Convert one embedding; what cannot be converted is reported with its reason."""
    report: dict[str, Any] = {
        "paths": [str(p) for p in each.parsed.paths],
        "trigger": each.trigger,
        "verdict": each.result.verdict,
        "written": [],
        "vectors": [],
    }
    try:
        done = _convert(each, family, converter, config)
    except TiFixError as error:
        return {**report, "message": str(error)}
    path = Path(arguments.out) / f"{file_name(each.trigger)}.safetensors"
    write_bytes(
        path, to_bytes(done.embedding, family=family), overwrite=arguments.overwrite or _same(path, done, family)
    )
    return {**report, "written": [str(path)], "message": done.message, "vectors": [_row(row) for row in done.rows]}


def _same(path: Path, done: Conversion, family: Family) -> bool:
    return path.is_file() and path.read_bytes() == to_bytes(done.embedding, family=family)


def _convert(each: Judged, family: Family, converter: Converter | None, config: ConvertConfig) -> Conversion:
    after: Embedding | None = each.result.after
    if each.result.verdict == "reject" or after is None:
        errors = [f.message for f in each.result.findings if f.severity == "error"]
        raise WrongUse(errors[0] if errors else "it holds no embedding.")
    if each.result.verdict != "convert":
        raise WrongUse(f"{each.trigger!r} is for {family.title} already; nothing to convert.")
    if family is SD15:
        return to_sd15(after)
    assert converter is not None
    return converter.to_sdxl(after, config)


def _row(row: Row) -> dict[str, Any]:
    confidence = row.confidence
    return {
        "method": row.method,
        "confidence": {"expected": confidence.expected, "low": confidence.low, "high": confidence.high},
        "words": [tokenizer.decode([word]) for word in row.words],
    }


def _print(reports: Sequence[dict[str, Any]]) -> None:
    for report in reports:
        show(f"{report['trigger']}: {report['message']}")
        for number, row in enumerate(report["vectors"], 1):
            if row["method"] == "kept":
                continue
            told = row["confidence"]
            words = ", ".join(row["words"][:3])
            show(
                f"    {number:3}  {row['method']:13} likeness {told['expected']:.2f} "
                f"({told['low']:.2f} to {told['high']:.2f})  near: {words}"
            )
        for path in report["written"]:
            show(f"    written to {path}")
    show(f"{sum(bool(r['written']) for r in reports)} of {len(reports)} embeddings converted.")
