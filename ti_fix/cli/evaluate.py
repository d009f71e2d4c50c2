"""``ti-fix evaluate``: does an embedding work, and where; also for finished pictures and for training pictures."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ti_fix.cli.evaluated import write_report
from ti_fix.cli.judging import (
    add_judge,
    caption_of,
    dino_of,
    judge_of,
    mask_beside,
    opened,
    pictures_in,
    texts_in,
)
from ti_fix.cli.output import print_object, show
from ti_fix.cli.settings import add_settings, given
from ti_fix.cli.sides import Sides, sides_of
from ti_fix.cli.standalone import add_model_arguments
from ti_fix.cli.train import stop_on_signal
from ti_fix.errors import WrongUse
from ti_fix.evaluate import (
    DEFAULT_PROMPTS,
    EvalConfig,
    Event,
    Material,
    PictureEvent,
    Report,
    ReportEvent,
    evaluate,
    same_judge,
    score_pictures,
)
from ti_fix.evaluate.dataset import DatasetEvent, DatasetReport, look
from ti_fix.options import validate

_EXAMPLE = """examples:
  ti-fix evaluate mycat.safetensors --model sdxl.safetensors --references photos --class-word cat --out report
  ti-fix evaluate broken.safetensors --as-stored --model sdxl.safetensors --out report
  ti-fix evaluate mycat.safetensors --against other.safetensors --prompts "a [name] in Paris" --model … --out report
  ti-fix evaluate mycat.safetensors --run out/mycat.training --model … --references photos --out report
  ti-fix evaluate --pictures with=a without=b --references photos --prompts prompts.txt --out report
  ti-fix evaluate --dataset photos --out report          (captions in NAME.txt beside the pictures)
"""


def register(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "evaluate",
        help="does an embedding work? scores, comparisons, a report",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("path", nargs="?", metavar="FILE", help="the embedding in question")
    add_model_arguments(parser, default="")
    parser.add_argument("--references", metavar="F", help="folder with pictures of what it should show")
    parser.add_argument(
        "--prompts", nargs="+", default=[], metavar="P", help="prompts with [name], or .txt files with one a line"
    )
    parser.add_argument("--against", nargs="+", default=[], metavar="FILE", help="other embeddings to compare with")
    parser.add_argument("--as-stored", action="store_true", help="compare with the file as it is, not repaired")
    parser.add_argument("--original", metavar="FILE", help="the embedding that it was converted from …")
    parser.add_argument("--original-model", metavar="PATH", help="… and the model that this one is for")
    parser.add_argument("--run", dest="run_folder", metavar="F", help="compare the steps that a training run has kept")
    parser.add_argument("--pictures", nargs="+", default=[], metavar="[LABEL=]F", help="score finished pictures")
    parser.add_argument("--dataset", metavar="F", help="look through training pictures and their captions")
    parser.add_argument("--earlier", metavar="FILE", help="report.json of an earlier run, to set beside this one")
    add_judge(parser)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--out", metavar="F", help="folder for report.html, report.md, report.json and the pictures")
    add_settings(parser.add_argument_group("settings"), EvalConfig, by_model=("width", "height"))
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Evaluate and tell."""
    config = EvalConfig(**given(arguments, EvalConfig))
    validate(config)
    if arguments.dataset:
        return _dataset(arguments)
    figures: dict[str, bytes] = {}
    if arguments.pictures:
        events = _finished(config, arguments)
    else:
        sides = sides_of(arguments, config)
        width = config.width if "width" in arguments else sides.size
        height = config.height if "height" in arguments else sides.size
        config = replace(config, width=width, height=height)
        events, figures = _painted(config, arguments, sides), sides.figures
    report = None
    for event in events:
        _tell(event)
        if isinstance(event, ReportEvent):
            report = event.report
    assert report is not None
    if arguments.out:
        write_report(report, Path(arguments.out), figures)
    lines = _beside(Path(arguments.earlier), report) if arguments.earlier else []
    if arguments.json:
        print_object(report.as_dict())
        return 0
    for line in (*lines, *_said(report)):
        show(line)
    if arguments.out:
        show(f"Report: {Path(arguments.out) / 'report.html'}")
    return 0


def _said(report: Report) -> list[str]:
    """What a report comes to, for the terminal: sentences, or plain means where there is nothing to compare."""
    best = [f"Best step: {report.best}."] if report.best else []
    means = [] if report.sentences else [f"{m}: {report.sides[0].scores[m].mean:.3f}" for m in report.metrics]
    return [*report.sentences, *best, *means, *report.notes]


def _beside(path: Path, report: Report) -> list[str]:
    """An earlier report's scores beside this one's; only of the same judge.

    Raises:
        WrongUse: another judge scored, or the file is no report.
    """
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))
        before = {side["label"]: side["scores"] for side in earlier["sides"]}
        same_judge([earlier, report.as_dict()])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise WrongUse(f"{path} is no report.json of this command ({error}).") from None
    return [
        f"{side.label}, {name}: {before[side.label][name]['mean']:.3f} earlier, {each.mean:.3f} now"
        for side in report.sides
        if side.label in before
        for name, each in side.scores.items()
        if name in before[side.label]
    ]


def _painted(config: EvalConfig, arguments: argparse.Namespace, sides: Sides) -> Iterator[Event]:
    paths = pictures_in(Path(arguments.references)) if arguments.references else []
    masks = [mask_beside(path) for path in paths]
    known = bool(masks) and None not in masks
    material = Material(
        references=[opened(path) for path in paths],
        reference_masks=masks if known else (),
        dino=dino_of(arguments),
        encode=sides.encode,
        mask=sides.finder.mask if known else None,
    )
    prompts = texts_in(arguments.prompts) or list(DEFAULT_PROMPTS)
    stop: Callable[[], bool] = stop_on_signal()
    generate = sides.finder.generate if known else sides.generate
    judge = judge_of(arguments)
    return evaluate(config, sides.candidates, prompts, judge, generate=generate, material=material, stop=stop)


def _finished(config: EvalConfig, arguments: argparse.Namespace) -> Iterator[Event]:
    """Folders of pictures: what each should show stands beside it (NAME.txt), or in --prompts for all in order."""
    prompts = texts_in(arguments.prompts)
    sets, texts = {}, {}
    for each in arguments.pictures:
        label, sign, folder = each.partition("=")
        paths = pictures_in(Path(folder if sign else label))
        label = label if sign else Path(label).name
        sets[label] = [opened(path) for path in paths]
        texts[label] = _texts(paths, prompts, config.class_word)
    references = pictures_in(Path(arguments.references)) if arguments.references else []
    material = Material(references=[opened(path) for path in references], dino=dino_of(arguments))
    return score_pictures(config, sets, texts, judge_of(arguments), material)


def _texts(paths: Sequence[Path], prompts: Sequence[str], class_word: str) -> list[str]:
    if not prompts:
        return [caption_of(path) for path in paths]
    if len(paths) % len(prompts):
        raise WrongUse(
            f"{paths[0].parent} holds {len(paths)} pictures for {len(prompts)} prompts; give one prompt, one a "
            "picture, or as many as divide the pictures evenly."
        )
    each = len(paths) // len(prompts)
    return [prompt.replace("[name]", class_word) for prompt in prompts for _ in range(each)]


def _dataset(arguments: argparse.Namespace) -> int:
    paths = pictures_in(Path(arguments.dataset))
    names, captions = [path.name for path in paths], [caption_of(path) for path in paths]
    judge = judge_of(arguments)
    report: DatasetReport | None = None
    for event in look(names, map(opened, paths), captions, judge):
        if isinstance(event, DatasetEvent):
            report = event.report
    assert report is not None
    if arguments.out:
        from ti_fix.cli.evaluated import write_dataset

        write_dataset(report, Path(arguments.out))
    if arguments.json:
        print_object(report.as_dict())
        return 0
    for item in report.items:
        for flag in item.flags:
            show(f"{item.name}: {flag}.")
    for group in report.duplicates:
        show(f"one picture: {', '.join(group)}.")
    for name, before in report.before.items():
        after = report.after[name]
        told = [f"{each.mean:.3f}" if each else "-" for each in (before, after)]
        show(f"{name}: {told[0]} before, {told[1]} without the flagged ones.")
    show(f"{len(report.kept)} of {len(report.items)} pictures have nothing against them.")
    return 0


def _tell(event: Event) -> None:
    """Progress, on standard error."""
    if isinstance(event, PictureEvent) and (event.done % 10 == 0 or event.done == event.total):
        print(f"{event.done} of {event.total} pictures", file=sys.stderr)
