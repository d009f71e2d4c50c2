"""Resumable training checkpoints: one file, replaced atomically."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import torch


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write ``state`` next to ``path`` and rename it into place."""
    temporary = path.with_suffix(path.suffix + ".tmp")
    torch.save(state, temporary)
    temporary.replace(path)


def load_checkpoint(path: Path) -> dict[str, Any] | None:
    """The saved state, or None when training starts afresh."""
    return torch.load(path, weights_only=True) if path.exists() else None


class Pacer:
    """Counts CPU seconds and says when to save; SIGTERM asks for a last save and an exit between two steps."""

    def __init__(self, spent: float, save_every: float = 150.0) -> None:
        self.spent, self.save_every = spent, save_every
        self._clock, self._saved, self._stop = time.process_time(), time.monotonic(), False
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, *_: object) -> None:
        self._stop = True

    def tick(self) -> float:
        """CPU seconds spent in all, this step included."""
        now = time.process_time()
        self.spent, self._clock = self.spent + now - self._clock, now
        return self.spent

    def due(self) -> bool:
        """Whether to save now (``save_every`` wall seconds have passed, or the process was asked to stop)."""
        if not self._stop and time.monotonic() - self._saved < self.save_every:
            return False
        self._saved = time.monotonic()
        return True

    def leave_if_asked(self) -> None:
        """Exit after SIGTERM; call it right after saving.

        Raises:
            SystemExit: the process was asked to stop.
        """
        if self._stop:
            raise SystemExit(143)
