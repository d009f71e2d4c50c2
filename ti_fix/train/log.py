"""What a training run leaves beside its results: a CSV of every step, previews as pictures, curves for TensorBoard."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, TextIO

from ti_fix.errors import WrongUse
from ti_fix.train.checkpoint import Files
from ti_fix.train.config import TrainConfig, as_mapping
from ti_fix.train.events import Event, PreviewEvent, StepEvent, ValidationEvent

_COLUMNS = ("step", "loss", "smooth_loss", "fixed_loss", "seconds")


class Log:
    """Writes as events come; a context manager.

    Args:
        config: of the run; without an output folder only TensorBoard is written.
        tensorboard: folder of its event files, None without.
    """

    def __init__(self, config: TrainConfig, tensorboard: str | None = None) -> None:
        self._config = config
        self._folder = Files(config).folder if config.out else None
        self._file: TextIO | None = None
        self._rows: Any = None
        self._curves = _curves(tensorboard) if tensorboard else None

    def __enter__(self) -> Log:  # noqa: PYI034 - Self is newer than Python 3.10
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps(as_mapping(self._config), indent=1)
            (self._folder / "settings.json").write_text(text, encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
        if self._curves is not None:
            self._curves.close()

    def add(self, event: Event) -> None:
        """Note one event."""
        if isinstance(event, StepEvent):
            numbers = {"loss": event.loss, "smooth_loss": event.smooth_loss, "seconds": event.seconds}
            for name in ("rates", "gradients", "lengths"):
                numbers |= {f"{name}.{key}": value for key, value in getattr(event, name).items()}
            self._add(event.step, numbers)
        elif isinstance(event, ValidationEvent):
            self._add(event.step, {"fixed_loss": event.loss})
        elif isinstance(event, PreviewEvent) and self._folder is not None:
            event.image.save(self._folder / f"preview-{event.step:06d}.png")

    def _add(self, step: int, numbers: dict[str, float]) -> None:
        if self._curves is not None:
            for name, value in numbers.items():
                self._curves.add_scalar(name.replace(".", "/"), value, step)
        if self._folder is None:
            return
        if self._rows is None:
            self._open()
        self._rows.writerow({"step": step, **{k: v for k, v in numbers.items() if k in self._rows.fieldnames}})
        if self._file is not None:
            self._file.flush()

    def _open(self) -> None:
        """A resumed run goes on in the same file."""
        assert self._folder is not None
        path = self._folder / "log.csv"
        new = not (self._config.resume and path.exists())
        keys = [f"{name}.{key}" for name in ("rates", "gradients", "lengths") for key in ("clip_l", "clip_g")]
        self._file = path.open("w" if new else "a", newline="", encoding="utf-8")
        self._rows = csv.DictWriter(self._file, [*_COLUMNS, *keys], restval="")
        if new:
            self._rows.writeheader()


def _curves(folder: str) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise WrongUse("TensorBoard is not installed; install the package tensorboard, or read log.csv.") from None
    return SummaryWriter(Path(folder))
