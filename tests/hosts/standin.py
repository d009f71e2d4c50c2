"""Small programs that behave like the two WebUIs where ti_fix touches them.

Our own code; it keeps the contract of docs/hosts.md.
`StandIn` puts modules of the WebUI's names into `sys.modules`; pictures are the tensors that a model would be told.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import safetensors.torch
import torch

from tests.hosts.standin_databases import (
    FAMILIES,
    WIDTHS,
    A1111Database,
    Database,
    Embedding,
    ForgeListDatabase,
    ForgePromptDatabase,
    create_embedding_from_data,
)
from ti_fix import tokenizer

VOCABULARY = 49408


def table(key: str, seed: int) -> torch.Tensor:
    """A token table that takes next to no memory: row i is a window, beginning at i, into one long random line."""
    line = torch.randn(VOCABULARY + WIDTHS[key], generator=torch.Generator().manual_seed(seed)) * 0.02
    return line.as_strided((VOCABULARY, WIDTHS[key]), (1, 1))


class Encoder:
    """A text encoder with its wrapper: cuts prompts into chunks, splices vectors in."""

    def __init__(self, key: str, seed: int, database: Any) -> None:
        self.embedding_key, self._database = key, database
        rows = SimpleNamespace(weight=table(key, seed))
        model = SimpleNamespace(
            text_model=SimpleNamespace(embeddings=SimpleNamespace(token_embedding=SimpleNamespace(wrapped=rows)))
        )
        self.wrapped = self.text_encoder = SimpleNamespace(transformer=model, layer="hidden", layer_idx=-2)
        if not callable(database):  # Forge
            sdxl = database.expected_shape == sum(WIDTHS[k] for k in FAMILIES["sdxl"])
            self.clip_skip, self.minimal_clip_skip, self.final_layer_norm = 1, 1 + sdxl, not sdxl
        self.rows = rows.weight
        self.chunk_length, self.id_start, self.id_end, self.id_pad = 75, 49406, 49407, {"clip_g": 0}.get(key, 49407)

    @property
    def embeddings(self) -> Any:
        return self._database() if callable(self._database) else self._database

    def tokenize(self, texts: list[str]) -> list[list[int]]:
        return [tokenizer.encode(text) for text in texts]

    def process_texts(self, texts: list[str]) -> tuple[list[Any], int]:
        return [[self._chunk(text)] for text in texts], 0

    def _chunk(self, text: str) -> Any:
        ids = [token for token, _ in self._parts(text)][: self.chunk_length]
        tokens = [self.id_start, *ids, *[self.id_end] * (self.chunk_length + 1 - len(ids))]
        return SimpleNamespace(fixes=list(self._fixes(text)), tokens=tokens)

    def _fixes(self, text: str) -> Iterator[Any]:
        yield from (SimpleNamespace(embedding=e) for _, e in self._parts(text) if e is not None)

    def _parts(self, text: str) -> Iterator[tuple[int, Embedding | None]]:
        ids = tokenizer.encode(text)
        at = 0
        while at < len(ids):
            for known, embedding in self.embeddings.ids_lookup.get(ids[at], []):
                if ids[at : at + len(known)] == known:
                    yield 0, embedding
                    at += len(known)
                    break
            else:
                yield ids[at], None
                at += 1

    def encode(self, text: str) -> torch.Tensor:
        """As many zero ids as `vectors` says are put in for an embedding, then overwritten by its rows."""
        rows: list[torch.Tensor] = []
        for token, embedding in self._parts(text):
            if embedding is None:
                rows.append(self.rows[token : token + 1])
                continue
            vec = embedding.vec[self.embedding_key] if isinstance(embedding.vec, dict) else embedding.vec
            free = self.rows[:1].expand(max(0, int(embedding.vectors) - vec.shape[0]), -1)
            rows += [torch.cat([self.rows[:0], vec, free])]
        return torch.cat(rows) if rows else self.rows[:0]


class Model:
    """What a host keeps as its loaded model: an ordinary object."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class StandIn:
    """A WebUI.

    Args:
        kind: ``a1111`` or ``forge``.
        data: its data folder.

    Attributes:
        weights: checkpoint -> key -> tensor, for `read_weights`.
        console: what it has printed.
        callbacks: name -> functions that scripts have registered.
        lists: Forge's databases of cards and API.
    """

    def __init__(self, kind: str, data: Path) -> None:
        self.kind, self.data = kind, data
        self.folder = data / "embeddings"
        self.folder.mkdir(parents=True)
        self.console: list[str] = []
        names = (
            "on_script_unloaded",
            "on_before_ui",
            "on_ui_settings",
            "on_ui_tabs",
            "on_app_started",
            "on_model_loaded",
        )
        self.callbacks: dict[str, list[Any]] = {name: [] for name in names}
        self.model: Any = None
        self.weights: dict[str, dict[str, torch.Tensor]] = {}
        self.scripts: list[Any] = []
        self.active_loras: list[Path] = []
        self.lists: list[Any] = []
        self.modules = self._make_modules()
        if kind == "a1111":
            self.database: Any = self.modules["modules.textual_inversion.textual_inversion"].EmbeddingDatabase()
            self.database.add_embedding_dir(str(self.folder))
            self.modules["modules.sd_hijack"].model_hijack = SimpleNamespace(embedding_db=self.database)

    # What the host reads files with

    def torch_load(self, path: Any) -> Any:
        """A1111's unpickler refuses records that it does not know; Forge's renames what it cannot read."""
        if self.kind == "a1111":
            try:
                self.check_pt(str(path), None)
            except ValueError:
                self.console.append("*** may be malicious")
                return None
        return self._reading(path, lambda: torch.load(Path(path), weights_only=True))

    def load_file(self, path: Any) -> Any:
        """The safetensors reader."""
        return self._reading(path, lambda: safetensors.torch.load_file(Path(path)))

    def _reading(self, path: Any, read: Any) -> Any:
        try:
            return read()
        except Exception as error:  # noqa: BLE001 - as the host does
            if self.kind == "forge" and isinstance(path, str):
                Path(path).rename(f"{path}.corrupted")
            raise ValueError(str(error)) from None

    def check_pt(self, path: str, handler: Any) -> None:
        """Newer torch releases add a record that the list of the host lacks."""
        if b".format_version" in Path(path).read_bytes():
            raise ValueError("bad file inside the zip")

    def read_weights(self, where: Any, *_: Any) -> dict[str, torch.Tensor]:
        """The reader of checkpoints; A1111 names one by its record, Forge by its path."""
        return dict(self.weights[getattr(where, "filename", where)])

    # The modules that scripts import

    def _make_modules(self) -> dict[str, ModuleType]:
        names = [
            "call_queue",
            "devices",
            "processing",
            "prompt_parser",
            "safe",
            "script_callbacks",
            "scripts",
            "sd_hijack",
        ]
        names += ["sd_models", "shared", "textual_inversion", "textual_inversion.textual_inversion"]
        made = {"modules": ModuleType("modules"), **{f"modules.{n}": ModuleType(f"modules.{n}") for n in names}}
        if self.kind == "forge":
            inner = ["backend", "backend.attention", "backend.loader", "backend.memory_management"]
            inner += ["backend.text_processing", "backend.text_processing.textual_inversion"]
            made |= {n: ModuleType(n) for n in inner}
            made["networks"] = ModuleType("networks")
        for name, module in made.items():
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(made[parent], child, module)
            module.__path__ = []  # type: ignore[attr-defined]
            module.__spec__ = SimpleNamespace(name=name, submodule_search_locations=[])  # type: ignore[assignment]
        self._fill(made)
        return made

    def _fill(self, made: dict[str, ModuleType]) -> None:
        def of(name: str, **values: Any) -> None:
            vars(made[name]).update(values)

        options = Options()
        commands = SimpleNamespace(embeddings_dir=str(self.folder), api_auth=None, gradio_auth=None)
        state = SimpleNamespace(interrupted=False, stopping_generation=False, job="", job_count=0)
        info = lambda *a, **k: SimpleNamespace(arguments=a, more=k, info=lambda text: text)  # noqa: E731
        of("modules.shared", cmd_opts=commands, opts=options, state=state, OptionInfo=info)
        of("modules.call_queue", queue_lock=threading.Lock())
        txt2img = type("Txt2Img", (), {"cached_hr_c": [None, None], "cached_hr_uc": [None, None]})
        base = type("Processing", (), {"cached_c": [None, None], "cached_uc": [None, None]})
        of("modules.processing", StableDiffusionProcessing=base, StableDiffusionProcessingTxt2Img=txt2img)
        of(
            "modules.prompt_parser",
            get_learned_conditioning_prompt_schedules=lambda ps, steps: [[[steps, p]] for p in ps],
        )
        of("modules.safe", check_pt=self.check_pt)
        of("modules.script_callbacks", **{name: each.append for name, each in self.callbacks.items()})
        of("modules.scripts", Script=object, AlwaysVisible=object(), scripts_data=[])
        of("modules.sd_models", model_data=SimpleNamespace(sd_model=None), get_checkpoint_state_dict=self.read_weights)
        of("modules.devices", device=torch.device("cpu"), autocast=nullcontext)
        lists = ForgeListDatabase if self.kind == "forge" else A1111Database
        loaders = {"modules.textual_inversion.textual_inversion": lists}
        if self.kind == "forge":
            loaders["backend.text_processing.textual_inversion"] = ForgePromptDatabase
            of("networks", loaded_networks=[])
            of("backend.loader", load_torch_file=self.read_weights)
            of("backend.attention", attention_function=torch.nn.functional.scaled_dot_product_attention)
            of("backend.memory_management", get_torch_device=lambda: torch.device("cpu"), load_model_gpu=lambda _: None)
        for name, base_class in loaders.items():
            database = type("EmbeddingDatabase", (base_class,), {"__module__": name, "module": made[name]})
            for method in ("load_from_file", "load_from_dir"):
                setattr(database, method, vars(Database)[method])
            of(name, EmbeddingDatabase=database, create_embedding_from_data=create_embedding_from_data)
            of(name, host=self, console=self.console)

    # What the host does

    def switch(self, family: str, *, checkpoint: str = "", cached: bool = False, in_place: bool = False) -> None:
        """Load a model.

        Args:
            family: ``sdxl`` or ``sd15``.
            checkpoint: its file; decides the weights.
            cached: it was still in memory: A1111 then reads no embeddings.
            in_place: other weights in the same object: A1111 reads no embeddings either.
        """
        checkpoint = checkpoint or family
        if self.kind == "forge":
            with torch.inference_mode():
                self.model = self._forge_model(family, checkpoint)
        elif in_place:
            fresh = self._a1111_model(family, checkpoint)
            vars(self.model).update(vars(fresh))
        else:
            self.model = self._a1111_model(family, checkpoint)
        self.modules["modules.sd_models"].model_data.sd_model = self.model
        if self.kind == "a1111" and not cached and not in_place:
            self.database.load_textual_inversion_embeddings(force_reload=True)
        for loaded in [] if cached else self.callbacks["on_model_loaded"]:
            loaded(self.model)

    def _a1111_model(self, family: str, checkpoint: str) -> Any:
        seed = sum(checkpoint.encode())
        encoders = [Encoder(key, seed, lambda: self.database) for key in FAMILIES[family]]
        stage = (
            encoders[0] if len(encoders) == 1 else SimpleNamespace(embedders=encoders, tokenize=encoders[0].tokenize)
        )
        info = SimpleNamespace(filename=checkpoint)
        return Model(cond_stage_model=stage, kind=family, all=encoders, sd_checkpoint_info=info)

    def _forge_model(self, family: str, checkpoint: str) -> Any:
        self.modules["modules.sd_models"].model_data.sd_model = None
        width = sum(WIDTHS[key] for key in FAMILIES[family])
        engines = []
        for key in FAMILIES[family]:
            database = self.modules["backend.text_processing.textual_inversion"].EmbeddingDatabase(width)
            database.add_embedding_dir(str(self.folder))
            database.load_textual_inversion_embeddings()
            engines.append(Encoder(key, sum(checkpoint.encode()), database))
        info = SimpleNamespace(filename=checkpoint)
        named = {f"text_processing_engine_{e.embedding_key[-1]}": e for e in engines}
        return Model(kind=family, all=engines, sd_checkpoint_info=info, **named)

    def open_lists(self) -> Any:
        """Forge makes one at start and another one for the API."""
        database = self.modules["modules.textual_inversion.textual_inversion"].EmbeddingDatabase()
        database.add_embedding_dir(str(self.folder))
        database.load_textual_inversion_embeddings(force_reload=True, sync_with_sd_model=False)
        self.lists.append(database)
        return database

    def generate(self, prompt: str) -> tuple[tuple[float, ...], dict[str, str]]:
        """One picture: numbers that stand for it, and its infotext."""
        processing = self.modules["modules.processing"].StableDiffusionProcessing
        p = SimpleNamespace(prompts=[prompt], negative_prompts=[""], steps=2, extra_generation_params={})
        if self.kind == "a1111":
            self.database.load_textual_inversion_embeddings()
        for script in self.scripts:
            script.process(p)
        if self.kind == "forge":
            loras = [SimpleNamespace(network_on_disk=SimpleNamespace(filename=str(x))) for x in self.active_loras]
            self.modules["networks"].loaded_networks[:] = loras
        with torch.inference_mode(self.kind == "forge"):
            for script in self.scripts:
                script.process_batch(p)
            key = (prompt, self.model.sd_checkpoint_info.filename, tuple(self.active_loras))
            if processing.cached_c[0] != key:
                processing.cached_c[:] = [key, torch.cat([e.encode(prompt).sum(1) for e in self.model.all])]
            return tuple(processing.cached_c[1].tolist()), p.extra_generation_params


class Options:
    """`shared.opts`: values that the user set, else defaults of what scripts have added."""

    def __init__(self) -> None:
        self.data: dict[str, Any] = {}
        self.added: dict[str, Any] = {}

    def add_option(self, key: str, info: Any) -> None:
        """Put one on the page."""
        self.added[key] = info

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__.get("data", {}):
            return self.data[name]
        raise AttributeError(name)


def install(standin: StandIn, monkeypatch: Any) -> Any:
    """Put the stand-in into `sys.modules`, import ti_fix's adapter anew, hook it in; returns the adapter's module."""
    for name in [n for n in sys.modules if n.startswith("ti_fix.hosts")]:
        monkeypatch.delitem(sys.modules, name)
    for name, module in standin.modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    from ti_fix.hosts import webui

    standin.scripts = [webui.TiFixScript()]
    return webui
