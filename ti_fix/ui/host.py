"""What the pages and the API ask of the program that they live in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ti_fix.embedding import Embedding, Family
from ti_fix.text_model import TextModel

T = TypeVar("T")


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

    def text_model(self) -> TextModel | None:
        """The text side of the loaded model, None before the first; never loads one."""

    def extra_rows(self) -> Sequence[Embedding]:
        """The loaded model's rows beyond CLIP's vocabulary."""

    def seen_at_load(self) -> Any | None:
        """What `align.AtLoad` saw when that model was loaded; None where nothing looks at that moment."""

    def environment(self) -> Sequence[tuple[str, str]]:
        """Names and values of what the model runs on; names as in `words.ENVIRONMENT`."""

    def refresh_embeddings(self) -> None:
        """Make new and changed files usable in the next prompt."""

    def used_in_last_image(self) -> frozenset[str]:
        """Triggers of the embeddings that the newest picture used."""

    def run(self, work: Callable[[], T]) -> T:
        """Do work where and when this host wants it (queue lock, main thread)."""

    def interrupted(self) -> bool:
        """Whether the user has pressed the host's own stop button."""

    def exposed(self) -> bool:
        """Whether other computers can reach it without a password."""

    def api_credentials(self) -> Sequence[tuple[str, str]]:
        """Names and passwords that its API asks for; none where it asks for none."""
