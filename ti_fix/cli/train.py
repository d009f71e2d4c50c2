"""``ti-fix train``: learn an embedding. The arguments are made from the fields of `TrainConfig`."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from ti_fix.cli.training_log import Log
from ti_fix.embedding import Finding
from ti_fix.errors import WrongUse
from ti_fix.options import options
from ti_fix.train import (
    CheckpointEvent,
    DoneEvent,
    Event,
    FindingEvent,
    PrepareEvent,
    PreviewEvent,
    StepEvent,
    TrainConfig,
    TunedEvent,
    ValidationEvent,
    gather,
    train,
    tune,
)
from ti_fix.train.config import from_mapping, read_config
from ti_fix.train.distributed import join

_EXAMPLE = """examples:
  ti-fix train --model sdxl.safetensors --name mycat --folders photos --start-text cat --out embeddings
  ti-fix train --model sdxl.safetensors --config mycat.toml
  ti-fix train --model small:sdxl --name mycat --folders pics --resolution 128 --out out
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
    parser.add_argument(
        "--model", required=True, metavar="PATH", help="a checkpoint, a diffusers folder, or small:sdxl, small:sd15 …"
    )
    parser.add_argument("--config", metavar="FILE", help="settings in a TOML or JSON file")
    parser.add_argument(
        "--precision", choices=("float32", "float16", "bfloat16"), default="float32", help="of the model"
    )
    parser.add_argument(
        "--device", default="auto", help="where the model runs: auto (a GPU if there is one), cpu, cuda"
    )
    parser.add_argument("--json-events", action="store_true", help="one JSON object for each event, on standard output")
    parser.add_argument("--tensorboard", metavar="FOLDER", help="also write curves for TensorBoard there")
    parser.add_argument("--tune", action="store_true", help="first find rate and start by short runs, then train")
    parser.add_argument("--check", action="store_true", help="look at settings and pictures only, do not train")
    add_settings(parser.add_argument_group("settings"))
    parser.set_defaults(run=run)


def add_settings(group: Any) -> None:
    """An argument for each setting; what is not given is absent."""
    types = get_type_hints(TrainConfig)
    for field, about in options(TrainConfig):
        default = " ".join(map(str, field.default)) if isinstance(field.default, tuple) else field.default
        shown = f"{about.help} (default: {default})" if default != "" else about.help
        how: dict[str, Any] = {"default": argparse.SUPPRESS, "help": shown.replace("%", "%%"), "dest": field.name}
        kind = types[field.name]
        if kind is bool:
            how["action"] = argparse.BooleanOptionalAction
        elif get_args(kind):
            how.update(type=get_args(kind)[0], nargs="+", metavar=field.name.upper())
        else:
            how.update(type=kind, choices=about.choices)
            how |= {} if about.choices else {"metavar": field.name.upper()}
        group.add_argument(f"--{field.name.replace('_', '-')}", **how)


def settings(arguments: argparse.Namespace) -> TrainConfig:
    """The settings of the config file, with the arguments in front.

    Raises:
        WrongUse: a file that cannot be read, or a setting that does not exist.
    """
    from_file = read_config(Path(arguments.config)) if arguments.config else {}
    given = {field.name: getattr(arguments, field.name) for field, _ in options(TrainConfig) if field.name in arguments}
    return from_mapping({**from_file, **given}, where=arguments.config or "the arguments")


def run(arguments: argparse.Namespace) -> int:
    """Train and tell."""
    config = settings(arguments)
    data = gather(config)
    group = join()
    host, fit, publish = _host(arguments)
    if arguments.check:
        config = replace(config, steps=1)
    elif arguments.tune:
        config = _tuned(config, host.model(), data)
    events = train(
        config,
        host.model(),
        data,
        stop=_stop_on_signal(),
        generate=host.generate,
        fit=fit,
        publish=publish,
        look=lambda: _wrong_with(host.model()),
    )
    if arguments.check:
        return _check(events)
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


def _tuned(config: TrainConfig, model: Any, data: Any) -> TrainConfig:
    """The settings that short runs find; each trial is told."""
    for event in tune(config, model, data):
        if isinstance(event, TunedEvent):
            found = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in event.changes.items())
            show(f"found: {found}")
            return event.config
        tried = ", ".join(f"{name} {value}" for name, value in event.changes.items())
        said = f"fixed loss {event.loss:.5f}" if event.loss is not None else event.reason
        show(f"trial {event.done}/{event.total}, {tried}: {said}")
    return config


def _device(asked: str) -> str:
    """The device to run on.

    Raises:
        WrongUse: CUDA is asked for and there is none.
    """
    import torch

    has_cuda = torch.cuda.is_available()
    if asked.startswith("cuda") and not has_cuda:
        raise WrongUse("there is no CUDA device that PyTorch can use here; leave --device out to train on the CPU.")
    return ("cuda" if has_cuda else "cpu") if asked == "auto" else asked


def _host(arguments: argparse.Namespace) -> tuple[Any, Any, Any]:
    """The standalone host with the model, and how its embeddings go from files and into them."""
    import torch

    from ti_fix.hosts.standalone import StandaloneHost, StandaloneModel, load_checkpoint, load_folder, parts_of_small

    where: dict[str, Any] = {"device": _device(arguments.device), "dtype": getattr(torch, arguments.precision)}
    path = Path(arguments.model)
    if arguments.model.startswith("small:"):
        from ti_fix.small import load
        from ti_fix.small.expand import fold, unfold

        name = arguments.model.removeprefix("small:")
        try:
            parts = parts_of_small(load(name))
        except KeyError as error:
            raise WrongUse(f"{error.args[0]}.") from None
        return StandaloneHost(StandaloneModel(parts), fit=fold), fold, unfold
    if not path.exists():
        raise WrongUse(f"{path} does not exist; give a checkpoint or a diffusers folder (--model).")
    parts = load_folder(path, **where) if path.is_dir() else load_checkpoint(path, **where)
    return StandaloneHost(StandaloneModel(parts)), _same, _same


def _same(embedding: Any) -> Any:
    return embedding


def _stop_on_signal() -> Any:
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


def _check(events: Iterator[Event]) -> int:
    """Show the findings before the first step."""
    for event in events:
        if isinstance(event, StepEvent):
            break
        if isinstance(event, FindingEvent):
            _tell(event)
    events.close()  # type: ignore[attr-defined]
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
        show(f"step {event.step}: fixed loss {event.loss:.5f} (best {event.best_loss:.5f} at step {event.best_step})")
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


def as_json(event: Event) -> dict[str, Any]:
    """An event as plain values; pictures and vectors stay out."""
    kind = type(event).__name__.removesuffix("Event").lower()
    if isinstance(event, PreviewEvent):
        return {"event": kind, "step": event.step, "prompt": event.prompt}
    if isinstance(event, DoneEvent):
        path = None if event.path is None else str(event.path)
        return {"event": kind, "step": event.step, "reason": event.reason, "best_step": event.best_step, "path": path}
    if isinstance(event, CheckpointEvent):
        return {"event": kind, "step": event.step, "kind": event.kind, "path": str(event.path)}
    return {"event": kind, **asdict(event)}
