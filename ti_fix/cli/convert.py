"""``ti-fix convert``: SD1.5 embeddings for SDXL, back, and between checkpoints, with a confidence for each vector."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ti_fix import tokenizer
from ti_fix.align.checkpoint import read_checkpoint
from ti_fix.cli.output import existing, print_json, show
from ti_fix.cli.standalone import open_host
from ti_fix.convert import KEPT, L_ONLY, MATCH, Conversion, ConvertConfig, Converter, Target, convert
from ti_fix.embedding import CLIP_L, FAMILIES, SD15, SDXL, Embedding, Family, Vocabulary, family_name
from ti_fix.errors import TiFixError, WrongUse
from ti_fix.formats.write import file_name, to_bytes, write_bytes
from ti_fix.options import options, validate
from ti_fix.repair import Judged, scan
from ti_fix.repair.clean import provenance
from ti_fix.train.monitor import order_probe

_EXAMPLE = """examples:
  ti-fix convert old/easynegative.pt --to sdxl --model models/sd_xl_base_1.0.safetensors --out embeddings/
  ti-fix convert embeddings/ --to sd15 --out for_sd15/
  ti-fix convert style.safetensors --to sdxl --from-model sd_xl_base.safetensors --model pony.safetensors --out pony/"""


def register(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "convert",
        help="make SD1.5 embeddings work on SDXL, and back",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", nargs="+", metavar="PATH", help="embedding files, and folders of them")
    parser.add_argument(
        "--to",
        type=family_name,
        choices=(SDXL.name, SD15.name),
        required=True,
        help="the kind of model to convert for; SD1.5 and the like are understood too",
    )
    parser.add_argument("--model", metavar="M", help="the checkpoint or diffusers folder to convert for")
    parser.add_argument(
        "--from-model",
        metavar="M",
        help="the checkpoint that the embeddings were made on: between two SDXL checkpoints they are realigned, for "
        "SD1.5 it is told how far both vocabularies are apart",
    )
    for field, about in options(ConvertConfig):
        choices = [c for c in about.choices if c != L_ONLY] if about.choices else None  # one way to load, not to write
        kind = type(field.default)
        parser.add_argument(f"--{field.name}", type=kind, choices=choices, default=field.default, help=about.help)
    parser.add_argument("--precision", choices=("float32", "float16", "bfloat16"), default="float32", help="of models")
    parser.add_argument("--device", default="auto", help="where models run: auto (a GPU if there is one), cpu, cuda")
    parser.add_argument("--out", required=True, metavar="F", help="folder to write to; the originals stay as they are")
    parser.add_argument("--overwrite", action="store_true", help="replace files of the same name in F")
    parser.add_argument("--json", action="store_true", help="print a JSON list, one object per embedding")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Convert, write and report; exit code 1 when nothing could be converted."""
    config = ConvertConfig(**{field.name: getattr(arguments, field.name) for field, _ in options(ConvertConfig)})
    validate(config)
    family = FAMILIES[arguments.to]
    judged = [j for j in scan(existing(arguments.paths), family=family) if j.result.verdict != "ignore"]
    target = _target(arguments, family, judged, config)
    reports = [_one(each, target, config, arguments) for each in judged]
    if arguments.json:
        print_json(reports)
    else:
        _print(reports)
    return 0 if any(report["written"] for report in reports) else 1


def _target(arguments: argparse.Namespace, family: Family, judged: Sequence[Judged], config: ConvertConfig) -> Target:
    model, old = arguments.model, arguments.from_model
    if family is SD15:
        if old is None or model is None:
            return Target(family=family)
        return Target(family=family, made_on=_tables(old)[CLIP_L.key], used_on=_tables(model)[CLIP_L.key])
    waiting = old is not None or any(each.result.verdict == "convert" for each in judged)
    if not waiting:
        return Target(family=family)
    if model is None:
        raise WrongUse("name the SDXL checkpoint to convert for with --model; its own words are the dictionary.")
    if old is not None:
        return Target(family=family, models=(_loaded(old, arguments), _loaded(model, arguments)))
    loaded = _loaded(model, arguments) if config.method == MATCH else None
    words = loaded.vocabulary() if loaded else Vocabulary(tables=_tables(model), tokenize=tokenizer.encode)
    converter = Converter(words, cache=_cache(), model=loaded, probe=order_probe, say=_say)
    return Target(family=family, converter=converter)


def _tables(model: str) -> dict[str, Tensor]:
    (path,) = existing([model])
    tables = {encoder.spec.key: encoder.table.read() for encoder in read_checkpoint(path).encoders}
    if CLIP_L.key not in tables:
        raise WrongUse(f"{path.name} has no CLIP-L text encoder; give an SDXL or SD1.5 checkpoint.")
    return tables


def _loaded(model: str, arguments: argparse.Namespace) -> Any:
    """The whole model, for what its encoders say."""
    asked = argparse.Namespace(model=model, device=arguments.device, precision=arguments.precision)
    return open_host(asked).model()


def _cache() -> Path:
    """Where what was learned of checkpoints is kept between runs, by the custom of the system."""
    base = os.environ.get("LOCALAPPDATA") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ti_fix"


def _one(each: Judged, target: Target, config: ConvertConfig, arguments: argparse.Namespace) -> dict[str, Any]:
    """Convert one embedding; what cannot be converted is reported with its reason."""
    report: dict[str, Any] = {
        "paths": [str(p) for p in each.parsed.paths],
        "trigger": each.trigger,
        "verdict": each.result.verdict,
        "written": [],
        "vectors": [],
        "findings": [],
    }
    try:
        done = _converted(each, target, config)
        path = Path(arguments.out) / f"{file_name(each.trigger)}.safetensors"
        data = to_bytes(done.embedding, family=target.family)
        same = path.is_file() and path.read_bytes() == data
        write_bytes(path, data, overwrite=arguments.overwrite or same)
    except TiFixError as error:
        return {**report, "message": str(error)}
    return {**report, "written": [str(path)], **done.as_dict()}


def _converted(each: Judged, target: Target, config: ConvertConfig) -> Conversion:
    after: Embedding | None = each.result.after
    if each.result.verdict == "reject" or after is None:
        errors = [f.message for f in each.result.findings if f.severity == "error"]
        raise WrongUse(errors[0] if errors else "it holds no embedding.")
    named = replace(after, metadata={**provenance(each), **after.metadata})
    for event in convert(named, target, config, lambda: False):
        if isinstance(event, Conversion):
            _say("")
            return event
        _say(f"\r{each.trigger}: step {event.done} of {event.total}, gap {event.gap:.2f} ", end="")
    raise AssertionError("the last event is the conversion")


def _say(text: str, end: str = "\n") -> None:
    """Progress, for people only."""
    if sys.stderr.isatty() and (text or end == "\n"):
        print(text, end=end, file=sys.stderr, flush=True)


def _print(reports: Sequence[dict[str, Any]]) -> None:
    for report in reports:
        show(f"{report['trigger']}: {report['message']}")
        for number, row in enumerate(report["vectors"], 1):
            if row["method"] == KEPT:
                continue
            told = row["confidence"]
            near = f"  near: {', '.join(row['words'][:3])}" if row["words"] else ""
            show(
                f"    {number:3}  {row['method']:13} likeness {told['expected']:.2f} "
                f"({told['low']:.2f} to {told['high']:.2f}){near}"
            )
        for finding in report["findings"]:
            show(f"    {finding['severity']}: {finding['message']}")
        for path in report["written"]:
            show(f"    written to {path}")
    if not reports:
        show("No embedding files found here.")
        return
    show(f"{sum(bool(r['written']) for r in reports)} of {len(reports)} embeddings converted.")
