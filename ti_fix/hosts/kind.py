"""What differs between the kinds of WebUI, as far as embeddings are concerned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Protocol

from torch import Tensor

from ti_fix.embedding import Family, Vocabulary
from ti_fix.hosts.host_model import LoadedModel
from ti_fix.text_model import TextModel


class Kind(Protocol):
    """One kind of WebUI; `a1111.A1111` and `forge.Forge` are the two.

    Attributes:
        name: for people.
        loaders: the host's modules that have `EmbeddingDatabase` and `create_embedding_from_data`; that of the
            databases which prompts use comes first.
        reads_by_itself: whether the host looks for changes before each generation.
        readers: (module, name) of the functions with which it reads checkpoints; each gives key -> tensor.
    """

    name: ClassVar[str]
    loaders: ClassVar[Sequence[ModuleType]]
    reads_by_itself: ClassVar[bool]
    readers: ClassVar[Sequence[tuple[ModuleType, str]]]

    def databases(self) -> list[Any]:
        """The databases that the loaded model's prompts use."""

    def model(self) -> Any | None:
        """The loaded model, None while none is; never loads one."""

    def family(self) -> Family | None:
        """The family of the loaded model; None while none is loaded or for one without Textual Inversion."""

    def vocabulary(self) -> Vocabulary | None:
        """The token tables of the loaded model, on the device where they are."""

    def text_model(self, model: Any) -> TextModel | None:
        """The text side of a model of this host; None where it has none that takes embeddings."""

    def environment(self) -> list[tuple[str, str]]:
        """Names and values: device, precisions of the loaded model, attention back end."""

    def encoders(self) -> list[Any]:
        """The loaded model's objects with `process_texts`, which cuts a prompt into chunks."""

    def register(self, database: Any, embedding: Any) -> None:
        """Make the host's embedding object callable by its name."""

    def unregister(self, database: Any, name: str) -> None:
        """Forget a name."""

    def is_stale(self, database: Any) -> bool:
        """Whether the database was filled for a model of another kind than the loaded one."""

    def reload(self, database: Any) -> None:
        """Let the host read all files into it again."""

    def check_opens(self, path: Path) -> None:
        """Whether the host's own reader accepts a torch file.

        Raises:
            Exception: of whatever kind the host raises; it would refuse the file with noise.
        """

    def load_model(self) -> LoadedModel:
        """The selected model for training, loaded if it is not.

        Raises:
            TiFixError: there is none, or it cannot be trained with; names the flag or the model.
        """

    def active_bundles(self) -> list[Path]:
        """Files of the LoRAs in the current prompt, where the host ignores the embeddings inside them."""


def embedding_rows(encoder: Any) -> Tensor | None:
    """The token table of a text encoder, (tokens, width), below the wrapper that splices embeddings in."""
    inner = getattr(encoder, "transformer", None)
    table = getattr(getattr(getattr(inner, "text_model", None), "embeddings", None), "token_embedding", None)
    if table is None:
        table = getattr(getattr(encoder, "model", None), "token_embedding", None)
    rows = getattr(getattr(table, "wrapped", table), "weight", None)
    return rows if isinstance(rows, Tensor) and rows.ndim == 2 else None
