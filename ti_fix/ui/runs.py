"""Training in one place of the process: one run at a time, followed by pages and by the API alike.

A run's files lie beside the embeddings folder, as hosts would take the embeddings of its steps for triggers; what was
learned is written into the embeddings folder at the end and usable in the next prompt.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ti_fix.errors import TiFixError, WrongUse
from ti_fix.formats.write import file_name, write
from ti_fix.jobs import Job, Progress
from ti_fix.protocols import Host
from ti_fix.train import CheckpointEvent, DoneEvent, Event, PrepareEvent, StepEvent, TrainConfig, gather, train
from ti_fix.train.config import check
from ti_fix.train.state import summary
from ti_fix.ui.host import PageHost

FOLDER = "ti_fix_runs"
"""Beside the embeddings folder."""

STATE = "*.training/latest.state"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run that left its state.

    Attributes:
        name: of the embedding.
        step, steps: how far it came.
        best_step, best_loss: of the fixed loss; -1 and infinity where there was none.
        changed: when it was last saved, seconds since 1970.
        config: its settings.
        result: what was learned, None while there is no file.
    """

    name: str
    step: int
    steps: int
    best_step: int
    best_loss: float
    changed: float
    config: Mapping[str, Any]
    result: Path | None


class Runs:
    """See the module.

    Attributes:
        job: where a run works; its events are those of `ti_fix.train`, with a `Progress` after each step.
    """

    def __init__(self) -> None:
        self.job = Job()

    def start(self, config: TrainConfig, host: PageHost) -> None:
        """Begin a run; returns at once.

        Args:
            config: the settings; `out` is chosen here.
            host: the program that the page lives in.

        Raises:
            Busy: a run is at work.
            TiFixError: a setting that cannot be used, or a host that cannot train.
        """
        config = replace(config, out=str(folder(host)))
        check(config)
        result = place(host, config.name)
        if result.exists() and not (config.overwrite or config.resume):
            raise WrongUse(f"{result.name} exists already; choose another name (name), or allow overwriting.")
        trainer = host.training_host()
        self.job.start(
            f"Training {config.name}",
            lambda stop: _events(replace(config, overwrite=True), host, trainer, stop),
            run=trainer.run,
        )

    def stop(self) -> None:
        """End the run after the step that it is in; what is learned is kept."""
        self.job.stop()


def _events(config: TrainConfig, host: PageHost, trainer: Host, stop: threading.Event) -> Iterator[Event | Progress]:
    """The events of a run; the result is in the embeddings folder, and known to the host, before the last one."""
    yield Progress(done=0, total=config.steps, note="looking at the pictures")
    data = gather(config)
    yield Progress(done=0, total=config.steps, note="preparing the model")

    def stopped() -> bool:
        if trainer.interrupted():
            stop.set()
        return stop.is_set()

    model = trainer.model()
    events = train(config, model, data, stop=stopped, generate=trainer.generate, fit=host.fit, publish=host.publish)
    for event in events:
        if isinstance(event, CheckpointEvent) and event.kind == "final":
            continue  # a copy beside the state; the one for prompts follows
        if isinstance(event, DoneEvent):
            path = place(host, config.name)
            path.parent.mkdir(parents=True, exist_ok=True)
            write(host.publish(event.embedding), path, overwrite=True)
            trainer.refresh_embeddings()
            yield CheckpointEvent(step=event.best_step, kind="final", path=path)
            event = replace(event, path=path)  # noqa: PLW2901 - where the user finds it
        yield event
        if isinstance(event, StepEvent):
            yield Progress(done=event.step, total=event.steps, note=f"loss {event.smooth_loss:.4f}")
        if isinstance(event, PrepareEvent):
            yield Progress(done=0, total=config.steps, note=f"{event.what} {event.done}/{event.total}")


def embeddings_folder(host: PageHost) -> Path:
    """Where results go: the first embeddings folder.

    Raises:
        TiFixError: the host has none.
    """
    folders = host.embedding_folders
    if not folders:
        raise TiFixError("The WebUI has no embeddings folder; set one with --embeddings-dir and restart it.")
    return Path(folders[0])


def place(host: PageHost, name: str) -> Path:
    """The file of what is learned under a name."""
    return embeddings_folder(host) / f"{file_name(name)}.safetensors"


def folder(host: PageHost) -> Path:
    """Where runs keep their states and the embeddings of their steps."""
    return embeddings_folder(host).resolve().parent / FOLDER


def history(host: PageHost) -> list[Run]:
    """The runs that left a state, the newest first; unreadable ones are left out."""
    found = []
    for path in folder(host).glob(STATE):
        try:
            numbers, config = summary(path)
            changed = path.stat().st_mtime
        except (TiFixError, OSError):
            continue
        name = str(config.get("name", path.parent.name.removesuffix(".training")))
        result = place(host, name)
        found.append(
            Run(
                name=name,
                step=numbers.step,
                steps=int(config.get("steps", numbers.step)),
                best_step=numbers.best_step,
                best_loss=numbers.best_loss,
                changed=changed,
                config=config,
                result=result if result.exists() else None,
            )
        )
    return sorted(found, key=lambda run: run.changed, reverse=True)
