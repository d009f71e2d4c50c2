"""What the pages and the API ask of the program that they live in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from ti_fix.embedding import Family

T = TypeVar("T")


class PageHost(Protocol):
    """A WebUI, or the standalone program, as the Files page sees it."""

    @property
    def name(self) -> str: ...
    @property
    def embedding_folders(self) -> Sequence[Path]: ...
    @property
    def lora_folders(self) -> Sequence[Path]: ...

    def family(self) -> Family | None:
        """The kind of model that is loaded, None before the first."""

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
