"""What the pages and the API ask of the program that they live in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ti_fix.embedding import Embedding, Family, Vocabulary
from ti_fix.protocols import Host
from ti_fix.text_model import TextModel

if TYPE_CHECKING:  # the WebUI waits for this module at its start
    from ti_fix.evaluate import Backbone

T = TypeVar("T")


class Captioner(Protocol):
    """An interrogator of the host's.

    Attributes:
        key: short name for commands.
        name: as the host calls it.
        kind: what it writes, for a button.
    """

    @property
    def key(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...

    def needed(self) -> Sequence[str]:
        """What it would download first, each with name, size, licence and source; empty where all is there."""

    def caption(self, image: Any) -> str:
        """What it sees in a PIL image; called inside the host's `run`.

        Raises:
            TiFixError: it failed.
        """


class PageHost(Protocol):
    """A WebUI, or the standalone program, as the pages see it."""

    @property
    def name(self) -> str: ...
    @property
    def embedding_folders(self) -> Sequence[Path]: ...
    @property
    def lora_folders(self) -> Sequence[Path]: ...

    def family(self) -> Family | None:
        """The kind of model that is loaded, None before the first."""

    def loading(self) -> bool:
        """Whether the first model is being loaded at this moment, without anybody having to do anything."""

    def text_model(self) -> TextModel | None:
        """The text side of the loaded model, None before the first; never loads one."""

    def extra_rows(self) -> Sequence[Embedding]:
        """The loaded model's rows beyond CLIP's vocabulary."""

    def seen_at_load(self) -> Any | None:
        """What `align.AtLoad` saw when that model was loaded; None where nothing looks at that moment."""

    def environment(self) -> Sequence[tuple[str, str]]:
        """Names and values of what the model runs on; names as in `model_words.ENVIRONMENT`."""

    def vocabulary(self) -> Vocabulary | None:
        """The token tables of the model that is loaded, None while there is none."""

    def picture_size(self) -> int:
        """Pixels along the side of the squares that the loaded model is made for."""

    def refresh_embeddings(self) -> None:
        """Make new and changed files usable in the next prompt."""

    def used_in_last_image(self) -> frozenset[str]:
        """Triggers of the embeddings that the newest picture used."""

    def run(self, work: Callable[[], T]) -> T:
        """Do work where and when this host wants it (queue lock, main thread)."""

    def interrupted(self) -> bool:
        """Whether the user has pressed the host's own stop button."""

    def exposed(self) -> bool:
        """Whether other computers can reach it and it knows no password that the API could ask for."""

    def page_exposed(self) -> bool:
        """Whether other computers can reach its page without a password."""

    def api_credentials(self) -> Sequence[tuple[str, str]]:
        """Names and passwords that its API asks for; none where it asks for none."""

    def training_host(self) -> Host:
        """The same program as training, evaluation and conversion ask for it; loads a model where none is.

        Raises:
            TiFixError: that cannot be done here; says why and what to do.
        """

    def fit(self, embedding: Embedding) -> Embedding:
        """Bring an embedding to the loaded model's widths; models of the usual widths change nothing."""

    @property
    def captioners(self) -> Sequence[Captioner]:
        """The host's interrogators; none where it has none."""

    @property
    def clip_folders(self) -> Sequence[Path]:
        """Where its interrogator keeps the CLIP that it has fetched, beside that package's own cache."""

    def judge(self) -> Backbone | None:
        """A judge that belongs to the loaded model, None for models of the usual kind."""

    def publish(self, embedding: Embedding) -> Embedding:
        """The way back: to the widths that files have."""
