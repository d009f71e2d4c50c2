"""The standalone program as the pages see it: the model is loaded when it is first needed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ti_fix.embedding import Embedding, Family, Vocabulary
from ti_fix.hosts.environment import machine
from ti_fix.text_model import TextModel

if TYPE_CHECKING:  # diffusers: the pages are shown before
    from ti_fix.hosts.standalone.host import StandaloneHost

T = TypeVar("T")
Convert = Callable[[Embedding], Embedding]


class StandalonePage:
    """What `ti_fix.ui.PageHost` asks, without a WebUI.

    Args:
        load: loads the model; called once, in whichever thread needs it first.
        embedding_folders: folders whose embeddings prompts may call.
        fit: brings an embedding to the model's widths.
        publish: the way back.
        lora_folders: folders with LoRAs.
        judge: makes the judge that belongs to the model; None for models of the usual kind.
        size: pixels along the side of the model's squares, as long as it is not loaded.
    """

    name = "ti_fix"
    clip_folders: Sequence[Path] = ()
    captioners: Sequence[Any] = ()

    def __init__(
        self,
        load: Callable[[], StandaloneHost],
        *,
        embedding_folders: Sequence[Path],
        fit: Convert,
        publish: Convert,
        lora_folders: Sequence[Path] = (),
        judge: Callable[[], Any] = lambda: None,
        size: int = 1024,
    ) -> None:
        self._load = load
        self.embedding_folders = tuple(embedding_folders)
        self.lora_folders = tuple(lora_folders)
        self._fit, self._publish, self._judge = fit, publish, judge
        self._size = size
        self._loading = threading.Lock()
        self._host: StandaloneHost | None = None

    def training_host(self) -> StandaloneHost:
        """The program around the model; loads it the first time.

        Raises:
            TiFixError: the model cannot be loaded.
        """
        with self._loading:
            if self._host is None:
                self._host = self._load()
            return self._host

    def loading(self) -> bool:
        """Whether the model is being loaded."""
        return self._loading.locked()

    def family(self) -> Family | None:
        """The kind of model that is loaded, None before."""
        return self._host.model().family if self._host is not None else None

    def text_model(self) -> TextModel | None:
        """The text side of the model that is loaded, None before."""
        return self._host.model().text_model() if self._host is not None else None

    def extra_rows(self) -> Sequence[Embedding]:
        """None: rows beyond the vocabulary are taken out by ``ti-fix align``."""
        return ()

    def seen_at_load(self) -> None:
        """Nothing: no one looks at that moment here."""

    def environment(self) -> Sequence[tuple[str, str]]:
        """Names and values of what the model runs on."""
        return [*machine(), *(self._host.model().environment() if self._host is not None else ())]

    def vocabulary(self) -> Vocabulary | None:
        """The token tables of the model that is loaded, None before."""
        return self._host.model().vocabulary() if self._host is not None else None

    def picture_size(self) -> int:
        """Pixels along the side of the squares that the model is made for."""
        return self._size if self._host is None else int(self._host.model().picture_size)

    def fit(self, embedding: Embedding) -> Embedding:
        """Bring an embedding to the model's widths."""
        return self._fit(embedding)

    def publish(self, embedding: Embedding) -> Embedding:
        """Bring an embedding of the model's widths to those of files."""
        return self._publish(embedding)

    def judge(self) -> Any:
        """The judge that belongs to the model, None for models of the usual kind."""
        return self._judge()

    def refresh_embeddings(self) -> None:
        """Read the folders again, if the model is there."""
        if self._host is not None:
            self._host.refresh_embeddings()

    def used_in_last_image(self) -> frozenset[str]:
        """None: there is no picture tab here."""
        return frozenset()

    def run(self, work: Callable[[], T]) -> T:
        """Do model work now, one piece at a time."""
        return self.training_host().run(work)

    def interrupted(self) -> bool:
        """Never: there is no stop button here but the pages' own."""
        return False

    def exposed(self) -> bool:
        """Never: it listens on this computer only."""
        return False

    page_exposed = exposed

    def api_credentials(self) -> Sequence[tuple[str, str]]:
        """None: it listens on this computer only."""
        return ()
