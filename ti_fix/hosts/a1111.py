"""AUTOMATIC1111 and its kin: one embedding database for the process, text encoders wrapped by `sd_hijack`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from modules import devices, safe, sd_hijack, sd_models, shared
from modules.textual_inversion import textual_inversion

from ti_fix import tokenizer
from ti_fix.embedding import CLIP_G, CLIP_H, CLIP_L, SD2, SD3, SD15, SDXL, SDXL_REFINER, Family, Vocabulary
from ti_fix.hosts.environment import precisions
from ti_fix.hosts.host_model import LoadedModel
from ti_fix.hosts.kind import Kind, embedding_rows
from ti_fix.hosts.text_models import Surroundings, text_model_of
from ti_fix.text_model import TextModel


class A1111(Kind):
    """What `webui.Kind` asks, in AUTOMATIC1111's words."""

    name = "AUTOMATIC1111"
    loaders = (textual_inversion,)
    reads_by_itself = True
    readers = ((sd_models, "get_checkpoint_state_dict"),)

    def databases(self) -> list[Any]:
        """The one database; it survives model switches and UI reloads."""
        return [sd_hijack.model_hijack.embedding_db]

    def model(self) -> Any | None:
        """The loaded model; `shared.sd_model` would load one."""
        return sd_models.model_data.sd_model

    def family(self) -> Family | None:
        """Read off the text encoders; None before the first load and for kinds without any that takes embeddings."""
        model = self.model()
        if model is None:
            return None
        if getattr(model, "is_sd3", False):
            return SD3
        keys = frozenset(key for key, _ in self._tables(model))
        by_keys = {f.keys: f for f in (SD15, SD2, SDXL, SDXL_REFINER)}
        return by_keys.get(keys)

    def vocabulary(self) -> Vocabulary | None:
        """The token tables of the loaded model."""
        model = self.model()
        if model is None:
            return None
        return Vocabulary(tables=dict(self._tables(model)), tokenize=tokenizer.encode)

    def text_model(self, model: Any) -> TextModel | None:
        """The text side; run in the host's own precision."""
        about = Surroundings(
            clip_skip=int(getattr(shared.opts, "CLIP_stop_at_last_layers", 1)),
            skips_sdxl=bool(getattr(shared.opts, "sdxl_clip_l_skip", False)),
            around=devices.autocast,
            device=devices.device,
        )
        return text_model_of(model, about, SD3 if getattr(model, "is_sd3", False) else None)

    def environment(self) -> list[tuple[str, str]]:
        """Names and values: device, precisions of the loaded model, attention back end."""
        model = self.model()
        return [
            ("device", str(devices.device)),
            *precisions(getattr(model, "cond_stage_model", None), getattr(model, "model", None)),
            ("attention", str(getattr(sd_hijack.model_hijack, "optimization_method", None) or "default")),
        ]

    def encoders(self) -> list[Any]:
        """The objects that cut a prompt into chunks (`process_texts`)."""
        stage = getattr(self.model(), "cond_stage_model", None)
        members = getattr(stage, "embedders", None) or [stage]
        return [each for each in members if hasattr(each, "process_texts")]

    def register(self, database: Any, embedding: Any) -> None:
        """Make an embedding callable by its name."""
        database.register_embedding(embedding, self.model())

    def unregister(self, database: Any, name: str) -> None:
        """Forget a name."""
        database.register_embedding_by_name(None, self.model(), name)

    def is_stale(self, database: Any) -> bool:
        """Whether the database was filled for a model of another width than the one that is loaded now.

        The host does not notice a switch to a model that was still in memory.
        """
        if self.model() is None or database.expected_shape == -1:
            return False
        return bool(database.expected_shape != database.get_expected_shape())

    def reload(self, database: Any) -> None:
        """Read all files again; without a model the host would load one for it, so then nothing is done."""
        if self.model() is not None:
            database.load_textual_inversion_embeddings(force_reload=True)

    def check_opens(self, path: Path) -> None:
        """The unpickler knows a fixed list of records and refuses the files of newer torch releases."""
        check = getattr(safe, "check_pt", None)
        if check is not None:
            check(str(path), None)

    def load_model(self) -> LoadedModel:
        """The selected model for training."""
        from ti_fix.hosts.a1111_model import load

        return load()

    def active_bundles(self) -> list[Path]:
        """None: this host registers the embeddings of a LoRA itself."""
        return []

    def _tables(self, model: Any) -> Iterator[tuple[str, Any]]:
        stage = getattr(model, "cond_stage_model", None)
        for member in getattr(stage, "embedders", None) or [stage]:
            rows = embedding_rows(getattr(member, "wrapped", None))
            if rows is not None:
                key = {e.width: e.key for e in (CLIP_L, CLIP_H, CLIP_G)}.get(rows.shape[1])
                if key:
                    yield key, rows
