"""What ti_fix relies on inside a WebUI, as statements that are tried: in the stand-ins, and inside a real one.

Each is a function of the `World` that raises AssertionError where the WebUI keeps it no longer. They use no ti_fix and
no pytest, as they run inside the host. docs/hosts.md says what each is needed for.
"""

from __future__ import annotations

import importlib
import inspect
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

Statement = Callable[["World"], None]
STATEMENTS: list[Statement] = []


@dataclass
class World:
    """The host's modules, and one of its databases for each kind."""

    forge: bool

    def module(self, name: str) -> Any:
        """A module of the host."""
        return importlib.import_module(name)

    @property
    def lists(self) -> Any:
        """The loader that A1111 uses for everything, Forge for cards and API."""
        return self.module("modules.textual_inversion.textual_inversion")

    @property
    def loaders(self) -> list[ModuleType]:
        """Every module with an embedding database."""
        prompts = "backend.text_processing.textual_inversion"
        return [self.module(prompts), self.lists] if self.forge else [self.lists]

    @property
    def model(self) -> Any:
        """The loaded model."""
        return self.module("modules.sd_models").model_data.sd_model

    @property
    def databases(self) -> list[Any]:
        """Those that prompts use."""
        if not self.forge:
            return [self.module("modules.sd_hijack").model_hijack.embedding_db]
        return [each.embeddings for each in self.encoders]

    @property
    def encoders(self) -> list[Any]:
        """The text encoders that cut prompts into chunks."""
        if self.forge:
            return [each for each in vars(self.model).values() if hasattr(each, "process_texts")]
        stage = self.model.cond_stage_model
        members = getattr(stage, "embedders", None) or [stage]
        return [each for each in members if hasattr(each, "process_texts")]


def statement(function: Statement) -> Statement:
    """Add one to the list; its docstring is the statement."""
    STATEMENTS.append(function)
    return function


@statement
def is_told_by_what_it_can_do(world: World) -> None:
    """Forge and its kin have backend.text_processing.textual_inversion, others have not."""
    try:
        importlib.import_module("backend.text_processing.textual_inversion")
        found = True
    except ImportError:
        found = False
    assert found == world.forge


@statement
def loaders_have_the_functions(world: World) -> None:
    """The class EmbeddingDatabase has load_from_file(path, filename), load_from_dir(dir), and a load of everything."""
    for module in world.loaders:
        database = module.EmbeddingDatabase
        assert list(inspect.signature(database.load_from_file).parameters) == ["self", "path", "filename"]
        assert len(inspect.signature(database.load_from_dir).parameters) == 2
        assert "load_textual_inversion_embeddings" in vars(database) or hasattr(
            database, "load_textual_inversion_embeddings"
        )


@statement
def forced_loads(world: World) -> None:
    """Outside Forge's prompts, a load of everything takes force_reload."""
    everything = inspect.signature(world.lists.EmbeddingDatabase.load_textual_inversion_embeddings).parameters
    assert "force_reload" in everything
    assert ("sync_with_sd_model" in everything) == world.forge


@statement
def databases_show_what_is_loaded(world: World) -> None:
    """Databases have word_embeddings, skipped_embeddings, ids_lookup, embedding_dirs of objects with a path."""
    for database in world.databases:
        assert isinstance(database.word_embeddings, dict)
        assert isinstance(database.skipped_embeddings, dict)
        assert isinstance(database.ids_lookup, dict)
        assert database.embedding_dirs
        assert all(isinstance(each.path, str) for each in database.embedding_dirs.values())


@statement
def databases_expect_a_width(world: World) -> None:
    """expected_shape is the sum of the widths of the loaded model's CLIP encoders; -1 in Forge's lists."""
    assert {database.expected_shape for database in world.databases} == {2048}
    if world.forge:
        assert world.lists.EmbeddingDatabase().expected_shape == -1


@statement
def both_halves_are_accepted(world: World) -> None:
    """create_embedding_from_data takes a dict with both halves, keeps them in vec, counts shape and vectors."""
    for made in _made(world, {"clip_l": torch.ones(2, 768), "clip_g": torch.ones(3, 1280)}):
        assert isinstance(made.vec, dict)
        assert (made.shape, made.vectors, made.name) == (2048, 3, "x")
        assert made.vec["clip_l"].dtype is torch.float32


@statement
def one_vector_is_one_row(world: World) -> None:
    """A dict with a single 1-D tensor becomes one row."""
    for made in _made(world, {"<x>": torch.ones(768)}):
        assert tuple(made.vec.shape) == (1, 768)


@statement
def two_names_are_refused(world: World) -> None:
    """A dict with two tensors of other names is refused with an exception."""
    for module in world.loaders:
        try:
            module.create_embedding_from_data({"a": torch.ones(1, 768), "b": torch.ones(1, 1280)}, "x")
        except Exception:  # noqa: BLE001 - of whatever kind
            continue
        raise AssertionError(module.__name__)


def _made(world: World, data: dict[str, Any]) -> Iterator[Any]:
    for module in world.loaders:
        yield module.create_embedding_from_data(dict(data), "x", filename="x.safetensors")


@statement
def names_are_registered_and_forgotten(world: World) -> None:
    """register_embedding makes a name callable at its token ids, register_embedding_by_name(None, …) forgets it."""
    data = {"clip_l": torch.ones(2, 768), "clip_g": torch.ones(2, 1280)}
    for database in world.databases:
        made = world.loaders[0].create_embedding_from_data(data, "zqxseam")
        more = [] if world.forge else [world.model]
        database.register_embedding(made, *more)
        assert database.word_embeddings["zqxseam"] is made
        assert any(made is entry for entries in database.ids_lookup.values() for _, entry in entries)
        database.register_embedding_by_name(None, *more, "zqxseam")
        assert "zqxseam" not in database.word_embeddings
        assert not any(made is entry for entries in database.ids_lookup.values() for _, entry in entries)


@statement
def prompts_show_which_embeddings_they_call(world: World) -> None:
    """process_texts gives chunks whose fixes name the embedding objects."""
    data = {"clip_l": torch.ones(2, 768), "clip_g": torch.ones(2, 1280)}
    more = [] if world.forge else [world.model]
    made = world.loaders[0].create_embedding_from_data(data, "zqxseam")
    database = world.databases[0]
    database.register_embedding(made, *more)
    try:
        chunks = world.encoders[0].process_texts(["photo of ZQXSEAM, red"])[0][0]
        assert [fix.embedding for chunk in chunks for fix in chunk.fixes] == [made]
    finally:
        database.register_embedding_by_name(None, *more, "zqxseam")


@statement
def one_database_for_the_process(world: World) -> None:
    """A1111 has one database and model_hijack holds it; Forge has one for each text encoder of SDXL."""
    assert len({id(database) for database in world.databases}) == (2 if world.forge else 1)


@statement
def token_tables_are_found(world: World) -> None:
    """The token tables lie where they did: 49408 rows of 768 and 1280."""
    assert sorted(tuple(rows.shape) for rows in map(_rows, world.encoders)) == [(49408, 768), (49408, 1280)]


def _rows(encoder: Any) -> Any:
    inner = getattr(encoder, "wrapped", None) or encoder.text_encoder
    clip = getattr(inner, "transformer", None)
    text = getattr(clip, "text_model", None)
    table = text.embeddings.token_embedding if text is not None else inner.model.token_embedding
    return getattr(table, "wrapped", table).weight


@statement
def prompt_caches_are_lists_of_two(world: World) -> None:
    """The caches of encoded prompts are class attributes and lists, emptied by writing None into them."""
    processing = world.module("modules.processing")
    for name in ("cached_c", "cached_uc"):
        assert isinstance(getattr(processing.StableDiffusionProcessing, name), list)
    for name in ("cached_hr_c", "cached_hr_uc"):
        assert isinstance(getattr(processing.StableDiffusionProcessingTxt2Img, name), list)


@statement
def callbacks_exist(world: World) -> None:
    """script_callbacks has on_script_unloaded, on_ui_settings, on_ui_tabs, on_app_started."""
    callbacks = world.module("modules.script_callbacks")
    for name in ("on_script_unloaded", "on_ui_settings", "on_ui_tabs", "on_app_started"):
        assert callable(getattr(callbacks, name))


@statement
def shared_has_its_parts(world: World) -> None:
    """shared has cmd_opts.embeddings_dir, opts.add_option, OptionInfo(…).info, state.interrupted, .job, .job_count."""
    shared = world.module("modules.shared")
    assert shared.cmd_opts.embeddings_dir
    assert callable(shared.opts.add_option)
    assert hasattr(shared.OptionInfo(True, "x"), "info")
    assert all(hasattr(shared.state, name) for name in ("interrupted", "job", "job_count"))


@statement
def the_queue_is_a_lock(world: World) -> None:
    """call_queue.queue_lock is a context manager."""
    lock = world.module("modules.call_queue").queue_lock
    assert hasattr(lock, "__enter__")
    assert hasattr(lock, "__exit__")


@statement
def scripts_have_their_base(world: World) -> None:
    """scripts.Script and scripts.AlwaysVisible are there, prompt schedules are a list of [step, text] for each text."""
    scripts = world.module("modules.scripts")
    assert isinstance(scripts.Script, type)
    assert scripts.AlwaysVisible is not None
    schedules = world.module("modules.prompt_parser").get_learned_conditioning_prompt_schedules(["one dog"], 2)
    assert [[list(each) for each in schedule] for schedule in schedules] == [[[2, "one dog"]]]


@statement
def torch_files_are_checked_by_name(world: World) -> None:
    """A1111's modules.safe.check_pt(path, handler) looks at a torch file before it is opened."""
    assert callable(world.module("modules.safe").check_pt) or world.forge


def results(world: World) -> dict[str, str]:
    """Each statement -> empty where it holds, else why not."""
    return {(each.__doc__ or each.__name__).strip(): _result(each, world) for each in STATEMENTS}


def _result(each: Statement, world: World) -> str:
    try:
        each(world)
    except Exception as error:  # noqa: BLE001 - a host may raise anything
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({last.name}, line {last.lineno})"[:300]
    return ""
