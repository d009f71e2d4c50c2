"""Forge and its kin: one embedding database per text encoder, made anew with each model; others for cards and API."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from backend import attention, loader, memory_management
from backend.text_processing import textual_inversion as prompts
from modules import sd_models
from modules.textual_inversion import textual_inversion as lists

from ti_fix import tokenizer
from ti_fix.embedding import FAMILIES, FLUX, SD3, Family, Vocabulary
from ti_fix.hosts.environment import precisions
from ti_fix.hosts.host_model import LoadedModel
from ti_fix.hosts.kind import Kind, embedding_rows
from ti_fix.hosts.text_models import Surroundings, text_model_of
from ti_fix.text_model import TextModel


class Forge(Kind):
    """What `webui.Kind` asks, in Forge's words."""

    name = "Forge"
    loaders = (prompts, lists)
    reads_by_itself = False
    readers = ((loader, "load_torch_file"),)

    def databases(self) -> list[Any]:
        """Those of the loaded model's text encoders; only these count for prompts."""
        return [engine.embeddings for engine in self._engines()]

    def model(self) -> Any | None:
        """The loaded model; before the first generation there is a stand-in without text encoders."""
        model = sd_models.model_data.sd_model
        return model if model is not None and list(self._engines()) else None

    def family(self) -> Family | None:
        """By the encoders that take embeddings; Flux and SD3 share their encoders with others and are told by flags."""
        return self._family_of(self.model())

    def _family_of(self, model: Any) -> Family | None:
        if model is None:
            return None
        name = type(model).__name__.lower()
        if "flux" in name or "chroma" in name:
            return FLUX
        if "diffusion3" in name or getattr(model, "is_sd3", False):
            return SD3
        keys = frozenset(engine.embedding_key for engine in _engines_of(model))
        return {f.keys: f for f in FAMILIES.values()}.get(keys)

    def vocabulary(self) -> Vocabulary | None:
        """The token tables of the loaded model."""
        tables = {}
        for engine in self._engines():
            rows = embedding_rows(engine.text_encoder)
            if rows is not None:
                tables[engine.embedding_key] = rows
        return Vocabulary(tables=tables, tokenize=tokenizer.encode) if tables else None

    def text_model(self, model: Any) -> TextModel | None:
        """The text side; the encoders are brought to their device before they run."""

        @contextmanager
        def around() -> Iterator[None]:
            with torch.inference_mode():  # its weights, moved or cast in another mode, would break all later pictures
                memory_management.load_model_gpu(model.forge_objects.clip.patcher)
                yield

        return text_model_of(model, Surroundings(around=around), self._family_of(model))

    def environment(self) -> list[tuple[str, str]]:
        """Names and values: device, precisions of the loaded model, attention back end."""
        objects = getattr(self.model(), "forge_objects", None)
        encoders = getattr(getattr(objects, "clip", None), "cond_stage_model", None)
        return [
            ("device", str(memory_management.get_torch_device())),
            *precisions(encoders, getattr(getattr(objects, "unet", None), "model", None)),
            ("attention", str(getattr(attention.attention_function, "__name__", "unknown"))),
        ]

    def encoders(self) -> list[Any]:
        """The objects that cut a prompt into chunks (`process_texts`)."""
        return list(self._engines())

    def register(self, database: Any, embedding: Any) -> None:
        """Make an embedding callable by its name."""
        if isinstance(database, prompts.EmbeddingDatabase):
            database.register_embedding(embedding)
        else:
            database.register_embedding(embedding, None)

    def unregister(self, database: Any, name: str) -> None:
        """Forget a name."""
        if isinstance(database, prompts.EmbeddingDatabase):
            database.register_embedding_by_name(None, name)
        else:
            database.register_embedding_by_name(None, None, name)

    def is_stale(self, database: Any) -> bool:  # noqa: ARG002 - other kinds look at it
        """Never by its width: a database lives no longer than its model."""
        return False

    def reload(self, database: Any) -> None:
        """Read all files again."""
        if isinstance(database, prompts.EmbeddingDatabase):
            database.load_textual_inversion_embeddings()
        else:
            database.load_textual_inversion_embeddings(force_reload=True, sync_with_sd_model=False)

    def check_opens(self, path: Path) -> None:
        """Left to the host: handed a `Path`, its reader fails without noise and without renaming the file."""

    def load_model(self) -> LoadedModel:
        """The selected model for training."""
        from ti_fix.hosts.forge_model import load

        return load()

    def active_bundles(self) -> list[Path]:
        """Files of the LoRAs that the current prompt calls; the host itself leaves the embeddings in them alone."""
        networks = sys.modules.get("networks")
        active = getattr(networks, "loaded_networks", None) or []
        return [Path(each.network_on_disk.filename) for each in active if hasattr(each, "network_on_disk")]

    def _engines(self) -> Iterator[Any]:
        yield from _engines_of(sd_models.model_data.sd_model)


def _engines_of(model: Any) -> Iterator[Any]:
    for each in list(vars(model).values()) if model is not None else []:
        if hasattr(each, "process_texts") and isinstance(getattr(each, "embeddings", None), prompts.EmbeddingDatabase):
            yield each
