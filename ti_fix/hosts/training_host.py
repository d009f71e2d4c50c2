"""The WebUI that runs us, as training and evaluation ask for it (`ti_fix.protocols.Host`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from modules import shared

from ti_fix.hosts.host_model import HostModel
from ti_fix.hosts.pictures import generate
from ti_fix.protocols import ImageRequest

if TYPE_CHECKING:
    from ti_fix.hosts.webui import WebuiHost

T = TypeVar("T")

JOB = "ti_fix"
"""What the host's progress calls work of ours."""


class TrainingHost:
    """See the module.

    Args:
        webui: the same program as the pages see it.
        forget_prompts: empties its prompt caches.
    """

    def __init__(self, webui: WebuiHost, forget_prompts: Callable[[], None]) -> None:
        self._webui, self._forget_prompts = webui, forget_prompts
        self._working = threading.local()
        self._model: HostModel | None = None

    @property
    def name(self) -> str:
        return self._webui.name

    @property
    def embedding_folders(self) -> Sequence[Path]:
        return self._webui.embedding_folders

    def model(self) -> HostModel:
        """The selected model; loads it where it is not loaded.

        Raises:
            TiFixError: there is none, or it cannot be trained with; names the flag or the model.
        """
        self._model = HostModel(self.run(self._webui.load_model))
        return self._model

    def generate(self, request: ImageRequest) -> Any:
        """One picture by the model of the last `model()`, as a PIL image; works inside its `trainable()` too.

        Raises:
            TiFixError: the user has interrupted it, there is no model, or another one was loaded meanwhile.
        """
        model = self._model or self.model()
        return self.run(lambda: generate(model, request, self._forget_prompts))

    def run(self, work: Callable[[], T]) -> T:
        """Do work under the host's queue lock, as a job that its progress shows and its Interrupt ends."""
        if getattr(self._working, "yes", False):
            return work()
        return self._webui.run(lambda: self._as_job(work))

    def _as_job(self, work: Callable[[], T]) -> T:
        state: Any = shared.state
        if state.job:  # within a job of the host's own
            return work()
        self._working.yes = True
        state.begin(job=JOB)
        try:
            return work()
        finally:
            state.end()
            self._working.yes = False

    def interrupted(self) -> bool:
        """Whether the user has pressed Interrupt or Stop."""
        return self._webui.interrupted()

    def refresh_embeddings(self) -> None:
        """Make new and changed files usable in the next prompt."""
        self._webui.refresh_embeddings()
