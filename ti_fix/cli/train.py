"""``ti-fix train``: learn an embedding. The arguments are made from the fields of `TrainConfig`."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import signal
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ti_fix.cli.settings import add_settings, given
from ti_fix.cli.standalone import add_model_arguments, open_host, widths_of
from ti_fix.embedding import Finding
from ti_fix.train import (
    CheckpointEvent,
    DoneEvent,
    Event,
    FindingEvent,
    Log,
    PrepareEvent,
    StepEvent,
    TrainConfig,
    TunedEvent,
    ValidationEvent,
    gather,
    look,
    train,
    tune,
)
from ti_fix.train.config import from_mapping, read_config
from ti_fix.train.distributed import join
from ti_fix.train.events import as_json

_EXAMPLE = """examples:
  ti-fix train --model sdxl.safetensors --name mycat --folders photos --start-text cat --out embeddings
  ti-fix train --model sdxl.safetensors --config mycat.toml
  ti-fix train --model small:sdxl --name mycat --folders pics --out out
  accelerate launch -m ti_fix train --model ...        (several GPUs or machines)

A config file holds settings by their names: name = "mycat". Arguments win over it."""

_WIDTH = 30
"""Characters of the progress bar."""


def register(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "train",
        help="learn an embedding from pictures",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model_arguments(parser)
    parser.add_argument("--config", metavar="FILE", help="settings in a TOML or JSON file")
    parser.add_argument("--json-events", action="store_true", help="one JSON object for each event, on standard output")
    parser.add_argument("--tensorboard", metavar="FOLDER", help="also write curves for TensorBoard there")
    parser.add_argument("--tune", action="store_true", help="first find rate and start by short runs, then train")
    parser.add_argument("--check", action="store_true", help="look at settings and pictures only, do not train")
    add_settings(parser.add_argument_group("settings"), TrainConfig, by_model=("resolution",))
    parser.set_defaults(run=run)


def settings(arguments: argparse.Namespace) -> TrainConfig:
    """The settings of the config file, with the arguments in front.

    Raises:
        WrongUse: a file that cannot be read, or a setting that does not exist.
    """
    from_file = read_config(Path(arguments.config)) if arguments.config else {}
    return from_mapping({**from_file, **given(arguments, TrainConfig)}, where=arguments.config or "the arguments")


def _sized(config: TrainConfig, arguments: argparse.Namespace, size: int) -> TrainConfig:
    """The settings at the model's own size, where nobody asked for another resolution."""
    asked = "resolution" in arguments or (arguments.config and "resolution" in read_config(Path(arguments.config)))
    return config if asked else replace(config, resolution=size)


def run(arguments: argparse.Namespace) -> int:
    """Train and tell."""
    config = settings(arguments)
    data = gather(config)
    group = join()
    show("Loading the model")
    host, widths = open_host(arguments), widths_of(arguments.model)
    config = _sized(config, arguments, host.model().picture_size)

    def judge() -> list[Finding]:
        return _wrong_with(host.model())

    if arguments.check:
        return _check(look(config, host.model(), data, fit=widths.fit, judge=judge))
    if arguments.tune:
        config = _tuned(config, host.model(), data, widths.fit)
    events = train(
        config,
        host.model(),
        data,
        stop=stop_on_signal(),
        generate=host.generate,
        fit=widths.fit,
        publish=widths.publish,
        judge=judge,
    )
    if group.rank != 0:
        for _ in events:
            pass
        return 0
    with Log(config, arguments.tensorboard) as log:
        for event in events:
            log.add(event)
            if arguments.json_events:
                print(json.dumps(as_json(event)), flush=True)
            else:
                _tell(event)
    return 0


def _wrong_with(model: Any) -> list[Finding]:
    """What should be known of the model's text encoders before a run."""
    from ti_fix.align import align

    return [finding for finding in align(model.text_model()).findings if finding.severity != "note"]


def _tuned(config: TrainConfig, model: Any, data: Any, fit: Any) -> TrainConfig:
    """The settings that short runs find; each trial is told."""
    for event in tune(config, model, data, fit=fit):
        if isinstance(event, TunedEvent):
            found = " ".join(
                f"--{name.replace('_', '-')} {shlex.quote(str(value))}" for name, value in event.changes.items()
            )
            show(f"found: {found}")
            return event.config
        tried = ", ".join(f"{name} {value}" for name, value in event.changes.items())
        said = f"validation loss {event.loss:.5f}" if event.loss is not None else event.reason
        show(f"trial {event.done}/{event.total}, {tried}: {said}")
    return config


def stop_on_signal() -> Any:
    """A stop that Ctrl-C presses once; a second one ends the program at once."""
    pressed: list[int] = []

    def press(_number: int, _frame: Any) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(1)
        show("\nStopping after this step; press Ctrl-C again to leave at once.")

    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGINT, press)
    return lambda: bool(pressed)


def show(text: str) -> None:
    """A line for the user; standard output is for ``--json-events``."""
    print(text, file=sys.stderr)


def _check(events: Iterable[Event]) -> int:
    """Show what is found before the first step."""
    for event in events:
        _tell(event)
    show("Ready to train.")
    return 0


def _tell(event: Event) -> None:
    """A line, or the progress bar, on standard error."""
    if isinstance(event, (StepEvent, PrepareEvent)):
        _bar(event)
        return
    if sys.stderr.isatty():
        show("")
    if isinstance(event, FindingEvent):
        hint = " ".join(f"--{name.replace('_', '-')} {value!r}" for name, value in event.remedy.items())
        show(f"{event.finding.severity}: {event.finding.message}{f'  Try: {hint}' if hint else ''}")
    elif isinstance(event, ValidationEvent):
        best = f"best {event.best_loss:.5f} at step {event.best_step}"
        show(f"step {event.step}: validation loss {event.loss:.5f} ({best})")
    elif isinstance(event, CheckpointEvent) and event.kind != "state":
        show(f"step {event.step}: written {event.path}")
    elif isinstance(event, DoneEvent):
        show(f"{event.reason} after {event.step} steps; the vectors are those of step {event.best_step}.")


def _bar(event: StepEvent | PrepareEvent) -> None:
    if not sys.stderr.isatty():
        return
    if isinstance(event, PrepareEvent):
        done, total, text = event.done, event.total, event.what
    else:
        done, total = event.step, event.steps
        text = f"loss {event.smooth_loss:.4f}  {event.seconds:.2f} s a step"
    filled = _WIDTH * done // max(total, 1)
    print(
        f"\r[{'#' * filled}{'.' * (_WIDTH - filled)}] {done}/{total}  {text}    ", end="", file=sys.stderr, flush=True
    )
