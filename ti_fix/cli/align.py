"""``ti-fix align``: is the text side of a model what its makers published, and what puts it right?"""

from __future__ import annotations

import argparse
import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ti_fix.cli.output import existing, print_object, show
from ti_fix.errors import WrongUse

if TYPE_CHECKING:  # PyTorch takes seconds to import, and --help needs none of it
    from ti_fix.align import Report
    from ti_fix.align.selftest import Tried
    from ti_fix.align.strategies import Measured
    from ti_fix.text_model import TextModel

_EXAMPLE = """examples:
  ti-fix align models/my_sdxl.safetensors
  ti-fix align models/my_sdxl/ --json                     (a diffusers folder)
  ti-fix align merged.safetensors --out mended.safetensors
  ti-fix align resized.safetensors --embeddings embeddings/   (rows of added tokens become files)
  ti-fix align my_sdxl.safetensors --strategies   (ways to put an embedding in, measured)
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
    parser.add_argument("--small", action="store_true", help="with --self-test: on the small trained models too")
    parser.add_argument(
        "--strategies", action="store_true", help="load the text encoders and measure the ways to put an embedding in"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.add_argument("--text", action="append", default=[], metavar="PROMPT", help="also judge this prompt or name")
    parser.add_argument("--out", metavar="PATH", help="write a mended copy; the original stays as it is")
    parser.add_argument("--embeddings", metavar="FOLDER", help="write rows beyond CLIP's vocabulary as embeddings")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when the light is not green")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Check and print, or test the checks."""
    from ti_fix.align import align
    from ti_fix.align.checkpoint import read_checkpoint
    from ti_fix.align.rewrite import write_repaired

    if arguments.self_test:
        return _test(arguments)
    if arguments.model is None:
        raise WrongUse("name a model, or --self-test; see ti-fix align --help.")
    (path,) = existing([arguments.model])
    if arguments.strategies:
        return _measure(arguments, path)
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


def _measure(arguments: argparse.Namespace, path: Path) -> int:
    from ti_fix.align.checkpoint import read_checkpoint
    from ti_fix.align.strategies import measure
    from ti_fix.hosts.standalone import running

    model = running(read_checkpoint(path), path)
    measured = measure(model)
    keys = {e.place: e.spec.key for e in model.encoders}
    if arguments.json:
        tables = {keys[place]: [m.as_dict() for m in found] for place, found in measured.items()}
        print_object({"model": model.name, "strategies": tables})
        return 0
    for place, found in measured.items():
        show(f"{model.encoder(place).spec.title}")
        _print_measured(found)
    return 0


def _print_measured(found: list[Measured]) -> None:
    show(f"  {'strategy':11}{'prepare':>12}{'per prompt':>12}{'fidelity':>10}{'pooled':>8}  reversible")
    for m in found:
        pooled = "" if m.pooled is None else f"{m.pooled:.4f}"
        once = "once a file" if m.once else "while loaded"
        show(
            f"  {m.strategy:11}{m.prepare_ms:9.2f} ms{m.prompt_ms:9.2f} ms{m.fidelity:10.4f}{pooled:>8}  "
            f"{'yes' if m.reversible else 'NO'}, {once}"
        )


def _with_texts(model: TextModel, texts: list[str]) -> TextModel:
    from ti_fix.text_model import TextModel

    names = [token for encoder in model.encoders for token in encoder.added]
    return TextModel(
        name=model.name,
        family=model.family,
        encoders=model.encoders,
        texts=tuple(dict.fromkeys([*names, *texts])),
        chunks=model.chunks,
    )


def _write_extra(model: TextModel, folder: Path) -> list[Path]:
    from ti_fix.align import extra_embeddings
    from ti_fix.formats.write import write

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
    from ti_fix.align import CHECKS
    from ti_fix.align.selftest import self_test

    tables = {"made": self_test(CHECKS)}
    if arguments.small:
        tables |= {model.name: self_test(CHECKS, [model]) for model in _small_models()}
    tried = [each for found, _ in tables.values() for each in found]
    false_alarms = sum(alarms for _, alarms in tables.values())
    if arguments.json:
        by_model = {
            name: {"faults": [t.as_dict() for t in found], "false_alarms": n} for name, (found, n) in tables.items()
        }
        print_object({**by_model["made"], "false_alarms": false_alarms, "models": by_model})
    else:
        for name, (found, alarms) in tables.items():
            show(f"{name}:")
            _print_test(found, alarms)
    return 0 if all(each.found for each in tried) and not false_alarms else 1


def _small_models() -> list[TextModel]:
    """The small models that are part of this installation and have both encoders of SDXL."""
    from ti_fix import small
    from ti_fix.hosts.standalone import text_model_of_small

    found = []
    for name in ("sdxl", "sdxl-v", "sdxl-twin"):
        with contextlib.suppress(FileNotFoundError):  # not every model is there before it is trained
            model = text_model_of_small(small.load(name))
            found.append(replace(model, encoders=tuple(replace(e, write={}) for e in model.encoders)))  # as from a file
    return found


def _print_test(tried: list[Tried], false_alarms: int) -> None:
    width = max(len(each.fault) for each in tried)
    for each in tried:
        state = f"{'found' if each.found else 'MISSED':8}{'repaired' if each.repaired else 'not repaired':14}"
        show(f"  {each.fault.ljust(width)}  {state}{', '.join(each.by)}")
    found, mended = sum(t.found for t in tried), sum(t.repaired for t in tried)
    show(f"{len(tried)} faults: {found} found, {mended} repaired; {false_alarms} false alarms on sound models.")
