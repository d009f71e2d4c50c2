"""``ti-fix align``: is the text side of a model what its makers published, and what puts it right?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ti_fix.align import CHECKS, Report, align, extra_embeddings
from ti_fix.align.checkpoint import read_checkpoint
from ti_fix.align.rewrite import write_repaired
from ti_fix.align.selftest import Tried, self_test
from ti_fix.cli.inspect import existing, print_object, show
from ti_fix.errors import WrongUse
from ti_fix.formats.write import write
from ti_fix.text_model import TextModel

_EXAMPLE = """examples:
  ti-fix align models/my_sdxl.safetensors
  ti-fix align models/my_sdxl/ --json                     (a diffusers folder)
  ti-fix align merged.safetensors --out mended.safetensors
  ti-fix align resized.safetensors --embeddings embeddings/   (rows of added tokens become files)
  ti-fix align --self-test"""


def register(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "align",
        help="check the tokenizers and text encoders of a model",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a checkpoint (.safetensors) or a diffusers folder")
    parser.add_argument(
        "--self-test", action="store_true", help="break sound models in every way and see what is named"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.add_argument("--text", action="append", default=[], metavar="PROMPT", help="also judge this prompt or name")
    parser.add_argument("--out", metavar="PATH", help="write a mended copy; the original stays as it is")
    parser.add_argument("--embeddings", metavar="FOLDER", help="write rows beyond CLIP's vocabulary as embeddings")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when the light is not green")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Check and print, or test the checks."""
    if arguments.self_test:
        return _test(arguments)
    if arguments.model is None:
        raise WrongUse("name a model, or --self-test; see ti-fix align --help.")
    (path,) = existing([arguments.model])
    model = _with_texts(read_checkpoint(path), arguments.text)
    report = align(model)
    written = write_repaired(path, report, Path(arguments.out)) if arguments.out else []
    written += _write_extra(model, Path(arguments.embeddings)) if arguments.embeddings else []
    if arguments.json:
        print_object({**report.as_dict(), "written": [str(p) for p in written]})
    else:
        _print(report)
        for each in written:
            show(f"Written: {each}")
        if arguments.out and not written:
            show("Nothing to mend, nothing written.")
    return 1 if arguments.strict and report.light != "green" else 0


def _with_texts(model: TextModel, texts: list[str]) -> TextModel:
    names = [token for encoder in model.encoders for token in encoder.added]
    return TextModel(
        name=model.name,
        family=model.family,
        encoders=model.encoders,
        texts=tuple(dict.fromkeys([*names, *texts])),
        chunks=model.chunks,
    )


def _write_extra(model: TextModel, folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    return [write(each, folder) for each in extra_embeddings(model)]


def _print(report: Report) -> None:
    titles = {e.place: e.spec.title for e in report.before.encoders}
    show(f"{report.before.name}: {report.before.family.title}, {report.light}")
    for each in report.outcomes:
        where = f" ({titles[each.place]})" if each.place else ""
        show(f"  {each.severity or 'ok':8}{each.title}{where}: {each.found}")
        if each.severity:
            show(f"          expected {each.expected}" + (f"; repaired: {each.repaired}" if each.repaired else ""))
            show(f"          {each.message}")
    if any(o.severity in ("warning", "error") and o.repaired for o in report.outcomes):
        show("Write a mended copy with --out PATH.")


def _test(arguments: argparse.Namespace) -> int:
    tried, false_alarms = self_test(CHECKS)
    if arguments.json:
        print_object({"faults": [each.as_dict() for each in tried], "false_alarms": false_alarms})
    else:
        _print_test(tried, false_alarms)
    return 0 if all(each.found for each in tried) and not false_alarms else 1


def _print_test(tried: list[Tried], false_alarms: int) -> None:
    width = max(len(each.fault) for each in tried)
    for each in tried:
        state = f"{'found' if each.found else 'MISSED':8}{'repaired' if each.repaired else 'not repaired':14}"
        show(f"  {each.fault.ljust(width)}  {state}{', '.join(each.by)}")
    found, mended = sum(t.found for t in tried), sum(t.repaired for t in tried)
    show(f"{len(tried)} faults: {found} found, {mended} repaired; {false_alarms} false alarms on sound models.")
