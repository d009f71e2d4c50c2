"""The half that an embedding lacks, made when a prompt first asks for it, from the tables of the model then loaded."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, ItemsView, Iterator, ValuesView
from typing import Any

import torch
from torch import Tensor

from ti_fix.embedding import ENCODERS, Embedding, Vocabulary
from ti_fix.errors import TiFixError

Complete = Callable[[Embedding, Vocabulary], Embedding]
"""Fills the half that an embedding lacks from the two token tables of a model."""

log = logging.getLogger("ti_fix")


class CompletedAtUse(dict[str, Tensor]):
    """`Embedding.vec` of a host, with both halves; the missing one is computed when it is read.

    It is computed anew when another model, or other weights in the same model, are loaded. A host must find a `dict`
    (it asks with ``isinstance``), and Python copies a plain one without asking it for its values: with an iterator of
    its own it is read value by value, by ``dict(…)``, ``{**…}``, ``copy``, ``pickle`` and `torch.save` too.

    Args:
        embedding: with one half.
        missing: key of the other.
        complete: fills it.
        model: what identifies the loaded weights, and their tables; None while no model is loaded.
    """

    def __init__(
        self,
        embedding: Embedding,
        missing: str,
        complete: Complete,
        model: Callable[[], tuple[object, Vocabulary | None]],
    ) -> None:
        rows = embedding.num_vectors
        super().__init__(embedding.vectors)
        self[missing] = torch.zeros(rows, ENCODERS[missing].width)
        self._embedding, self._missing = embedding, missing
        self._complete, self._model = complete, model
        self._made_from: object = None
        self._lock = threading.Lock()

    def __getitem__(self, key: str) -> Tensor:
        if key == self._missing:
            self._make()
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[str]:
        return super().__iter__()

    def __or__(self, other: dict[str, Tensor]) -> dict[str, Tensor]:  # type: ignore[override]
        return {**self, **other}

    def __ror__(self, other: dict[str, Tensor]) -> dict[str, Tensor]:  # type: ignore[override]
        return {**other, **self}

    def __reduce_ex__(self, protocol: object) -> tuple[type, tuple[dict[str, Tensor]]]:
        return OrderedDict, (dict(self),)  # unlike `dict`, a name that `torch.load` allows in any file

    def copy(self) -> dict[str, Tensor]:
        """A plain dict with both halves, the missing one made."""
        return dict(self)

    def known(self) -> dict[str, Tensor]:
        """Both halves as they are now, without making the missing one."""
        return {key: super(CompletedAtUse, self).__getitem__(key) for key in self}

    def get(self, key: str, default: Any = None) -> Any:
        """As for any dict."""
        if key == self._missing:
            self._make()
        return super().get(key, default)

    def items(self) -> ItemsView[str, Tensor]:  # type: ignore[override]
        """As for any dict."""
        return dict(self).items()

    def values(self) -> ValuesView[Tensor]:  # type: ignore[override]
        """As for any dict."""
        return dict(self).values()

    def _make(self) -> None:
        with self._lock, torch.inference_mode(False), torch.no_grad():
            identity, vocabulary = self._model()
            if identity == self._made_from or vocabulary is None:
                return
            known = next(iter(self._embedding.vectors))
            self[self._missing] = self._made(vocabulary).to(super().__getitem__(known).device)
            self._made_from = identity

    def _made(self, vocabulary: Vocabulary) -> Tensor:
        """The missing half; zeros, with a line, where it cannot be made."""
        try:
            made = self._complete(self._embedding, vocabulary).vectors[self._missing]
        except (KeyError, RuntimeError, ValueError, TiFixError) as error:
            log.warning("%s: its %s half could not be made (%r).", self._embedding.name, self._missing, error)
            return torch.zeros(self._embedding.num_vectors, ENCODERS[self._missing].width)
        return made.detach().float().clone()
