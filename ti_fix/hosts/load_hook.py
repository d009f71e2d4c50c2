"""The hook in the host's embedding loader: each file is looked at before the host opens it.

A healthy file goes on to the host's own function. What the host would refuse or misread is registered by us, as the
host's own kind of object. Whatever goes wrong here is logged, and the host goes on as without us.

Methods are replaced on the host's class, because Forge makes databases at any time and keeps the class object. No lock
is held while the host's code runs: its model lock may be waited for there.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch

from ti_fix.additions import EmbeddingLoaded, Event, FileJudged
from ti_fix.embedding import Embedding, Family
from ti_fix.formats import Parsed, read
from ti_fix.formats.bundles import parse_data
from ti_fix.formats.read import is_candidate
from ti_fix.hosts.console import Console
from ti_fix.hosts.entries import Entries, entries, host_loads, label_of
from ti_fix.hosts.kind import Kind
from ti_fix.hosts.lazy import Complete
from ti_fix.hosts.patches import Patches
from ti_fix.repair.folder import EmbeddingFolder, key
from ti_fix.repair.on_load import HALVED, Loading, Policy, family_of_width, neutral_half, on_load

__all__ = ["LoadHook", "Policy", "ordinary_tensors", "quietly", "user_policy"]

T = TypeVar("T")
State = tuple[object, ...]

log = logging.getLogger("ti_fix")

TORCH_ENDINGS = (".pt", ".bin")


@dataclass(slots=True, eq=False)
class _Load:
    """One pass of the host over a folder.

    Attributes:
        plan: how each file is to be loaded.
        aliases: (name, entry) pairs to register once all files have their own names.
    """

    plan: Mapping[str, Loading] = field(default_factory=dict)
    aliases: list[tuple[str, Any]] = field(default_factory=list)


class LoadHook:
    """Stands between a host and its embedding files.

    Args:
        kind: the host.
        complete: makes the half that an embedding lacks.
        policy: the user's settings, asked at each load.
        forget_prompts: makes the host encode its prompts anew.
        tell: hears what was decided and loaded; raises nothing.
    """

    def __init__(
        self,
        kind: Kind,
        *,
        complete: Complete,
        policy: Callable[[], Policy],
        forget_prompts: Callable[[], None],
        tell: Callable[[Event], object] = lambda _: None,
    ) -> None:
        self.kind, self.policy, self.forget_prompts, self.tell = kind, policy, forget_prompts, tell
        self.completers: dict[bool, Complete] = {False: complete, True: neutral_half}
        self.console = Console()
        self.patches = Patches()
        self.entries = Entries(kind, self.patches)
        self.after_load: Callable[[Any], None] = lambda _: None
        self._folders: dict[str, EmbeddingFolder] = {}
        self._states: WeakKeyDictionary[Any, State] = WeakKeyDictionary()
        self._thread = threading.local()

    def install(self) -> None:
        """Wrap the host's loader classes; a second call changes nothing."""
        for module in self.kind.loaders:
            database = module.EmbeddingDatabase
            self.patches.wrap(database, "load_from_file", self._load_from_file)
            self.patches.wrap(database, "load_from_dir", self._load_from_dir)
            self.patches.wrap(database, "load_textual_inversion_embeddings", self._load_all)
            self.patches.wrap(module, "create_embedding_from_data", self._create_from_data)

    def uninstall(self) -> None:
        """Give the host its own functions back; where another wrapper lies on top of ours, ours lets all through."""
        self.patches.undo()

    # A whole database

    def _load_all(self, original: Callable[..., Any], database: Any, *args: Any, **kwargs: Any) -> Any:
        may_force = "force_reload" in inspect.signature(original).parameters and not args
        if may_force and not kwargs.get("force_reload") and quietly(lambda: self.is_stale(database), False):
            kwargs["force_reload"] = True
        self._thread.was_read = False
        result = original(database, *args, **kwargs)
        if self._thread.was_read:
            quietly(lambda: self._states.__setitem__(database, self._state(database)), None)
            quietly(lambda: self.after_load(database), None)
            quietly(self.forget_prompts, None)
        return result

    def is_stale(self, database: Any) -> bool:
        """Whether a new load would bring something else: files, settings or the kind of model have changed."""
        if self.kind.is_stale(database):
            return True
        noted = self._states.get(database)
        if noted is None:  # filled before we were there
            return bool(entries(database)) or database.expected_shape > 0
        before = noted[0]
        if not self.policy().enabled and isinstance(before, Policy) and not before.enabled:
            return False
        return self._state(database) != noted

    def _state(self, database: Any) -> State:
        """All that decides what a load of this database brings."""
        versions = (self._folder(path).look() for path in database.embedding_dirs)
        return (self.policy(), self.family_for(database), *versions)

    def refresh(self) -> None:
        """Let the host read all its databases again, those of its lists too."""
        for folder in list(self._folders.values()):
            folder.look(now=True)
        for database in self._known():
            self.kind.reload(database)

    def before_generation(self) -> None:
        """Bring databases up to date that the host itself never reads again."""
        for database in self._known():
            if quietly(lambda each=database: self.is_stale(each), False):  # type: ignore[misc]
                quietly(lambda each=database: self.kind.reload(each), None)  # type: ignore[misc]

    def _known(self) -> list[Any]:
        """The databases of the loaded model, and those without a model (lists) that were seen loading."""
        prompts = self.kind.databases()
        return [*prompts, *(d for d in list(self._states) if d not in prompts and d.expected_shape == -1)]

    def family_for(self, database: Any) -> Family | None:
        """What the host expects; where it expects nothing (lists in Forge), what the loaded model is."""
        width = database.expected_shape
        return family_of_width(width) if width > 0 else self.kind.family()

    # A folder

    def _load_from_dir(self, original: Callable[..., Any], database: Any, directory: Any) -> Any:
        self._thread.was_read = True
        load = _Load(plan=quietly(lambda: self._plan(database, directory.path), {}))
        with self._current(load):
            result = original(database, directory)
        with ordinary_tensors():
            quietly(lambda: self.entries.add_aliases(database, load.aliases), None)
        return result

    @contextmanager
    def _current(self, load: _Load) -> Iterator[None]:
        before = getattr(self._thread, "load", None)
        self._thread.load = load
        try:
            yield
        finally:
            self._thread.load = before

    def _plan(self, database: Any, path: str) -> Mapping[str, Loading]:
        policy, family = self.policy(), self.family_for(database)
        if not policy.enabled:
            return {}
        self.console.level(policy.log)
        plan = self._folder(path).plan(family, policy)
        for where, loading in plan.items():
            self._tell(loading)
            self._judged(Path(where), loading)
        told = (each for each in plan.values() if each.line or each.sound)
        ways = ("halved" if each.label == HALVED else each.action for each in told)
        self.console.summarise(family.title if family else "any model", ways)
        return plan

    def _folder(self, path: str) -> EmbeddingFolder:
        return self._folders.setdefault(key(path), EmbeddingFolder(Path(path)))

    # A file

    def _load_from_file(self, original: Callable[..., Any], database: Any, path: Any, filename: str) -> Any:
        load = getattr(self._thread, "load", None) or _Load()
        loading = quietly(lambda: self._loading(load, database, path), None)
        if loading is None:
            host_loads(original, database, path, filename)
            return None
        with ordinary_tensors():
            if loading.action == "pass":
                return self._pass(original, database, path, filename, load, loading)
            if loading.embedding is None:
                return None
            done = quietly(lambda: self._register(database, Path(path), loading, load), False)
            if done is False:
                host_loads(original, database, path, filename)
            return None

    def _loading(self, load: _Load, database: Any, path: Any) -> Loading | None:
        """What is planned for a file; None: it is the host's own business."""
        planned = load.plan.get(key(path))
        if planned is not None or not self.policy().enabled or not is_candidate(Path(path)):
            return planned
        parsed = read(Path(path))
        loading = on_load(parsed, family=self.family_for(database), policy=self.policy())
        self._tell(loading)
        self._judged(Path(path), loading)
        return loading

    def _pass(
        self, original: Callable[..., Any], database: Any, path: Any, filename: str, load: _Load, loading: Loading
    ) -> Any:
        """Let the host load a file; where it cannot although the content is sound, register that content."""
        may_help = loading.sound and self.policy().opening
        try:
            if may_help and filename.lower().endswith(TORCH_ENDINGS):
                self.kind.check_opens(Path(path))
            added = host_loads(original, database, path, filename)
        except Exception:
            added = quietly(lambda: self._rescue(database, Path(path), load), []) if may_help else []
            if not added and not loading.foreign:
                raise
        if not added and may_help:
            added = quietly(lambda: self._rescue(database, Path(path), load), [])
        for entry in added:
            if database.word_embeddings.get(entry.name) is entry and not label_of(entry):
                self._loaded(entry, Path(path))
        load.aliases += [(name, entry) for entry in added[:1] for name in loading.names]
        return None

    def _rescue(self, database: Any, path: Path, load: _Load) -> list[Any]:
        """Register what the host could not open, under the name that the host would have given it."""
        embedding = read(path).embedding
        if embedding is None:
            return []
        line = f"{path.name}: The WebUI cannot open it, ti_fix can. Trigger: {path.stem!r}"
        loading = Loading(action="register", embedding=replace(embedding, name=path.stem), label="opened", line=line)
        self._tell(loading)
        return [self._register(database, path, loading, load)]

    def _register(self, database: Any, path: Path, loading: Loading, load: _Load) -> Any:
        entry = self.entry(database, loading, path)
        self.entries.add(database, entry, skip=loading.action == "skip")
        if database.word_embeddings.get(entry.name) is entry:
            self._loaded(entry, path)
        load.aliases += [(name, entry) for name in loading.names]
        return entry

    def entry(self, database: Any, loading: Loading, path: Path | None) -> Any:
        """The host's object for a planned embedding, marked with what was done to it."""
        assert loading.embedding is not None
        if loading.action == "complete":
            entry = self.entries.completed(database, loading.embedding, path, self.completers[loading.neutral])
        else:
            entry = self.entries.whole(database, loading.embedding, path)
        entry.ti_fix = loading.label
        return entry

    def add(self, database: Any, embedding: Embedding) -> Any | None:
        """Register an embedding that comes from no file of its own; the host's entry, None where it does not fit."""
        parsed = Parsed(paths=(), trigger=embedding.name, embedding=embedding)
        loading = on_load(parsed, family=self.family_for(database), policy=self.policy(), native=embedding.name)
        if loading.action == "pass":
            loading = Loading(action="register", embedding=embedding)
        if loading.action not in ("register", "complete"):
            return None
        with ordinary_tensors():
            entry = self.entry(database, loading, None)
            self.entries.add(database, entry)
        self._loaded(entry, None)
        return entry

    def _tell(self, loading: Loading) -> None:
        self.console.say(loading.line, problem=loading.action in ("skip", "refuse", "pass"))

    def _judged(self, path: Path, loading: Loading) -> None:
        self.tell(FileJudged(path=path, action=loading.action, label=loading.label, line=loading.line))

    def _loaded(self, entry: Any, path: Path | None) -> None:
        self.tell(EmbeddingLoaded(name=entry.name, path=path, label=label_of(entry), vectors=int(entry.vectors)))

    # Embeddings inside LoRAs

    def _create_from_data(self, original: Callable[..., Any], data: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        """Called by the host's LoRA extension too, then without the path of a file."""
        if args or kwargs.get("filepath") is not None or not isinstance(data, dict):
            return original(data, name, *args, **kwargs)
        entry = quietly(lambda: self._bundled(data, name, str(kwargs.get("filename", ""))), None)
        return original(data, name, *args, **kwargs) if entry is None else entry

    def _bundled(self, data: Mapping[str, Any], name: str, origin: str) -> Any | None:
        """A repaired or completed embedding of a LoRA; None: leave it to the host."""
        databases, policy = self.kind.databases(), self.policy()
        if not databases or not policy.enabled:
            return None
        family = self.family_for(databases[0])
        parsed = parse_data(data, name, Path(origin.removesuffix(f"/{name}") or name))
        loading = on_load(parsed, family=family, policy=policy, native=name)
        if loading.action not in ("register", "complete"):
            return None
        self._tell(loading)
        with ordinary_tensors():
            entry = self.entry(databases[0], loading, None)
        entry.name = name
        return entry


@contextmanager
def ordinary_tensors() -> Iterator[None]:
    """Forge reads embeddings in inference mode, whose tensors could later take no part in training."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def quietly(work: Callable[[], T], otherwise: T) -> T:
    """Do our part; what goes wrong in it is logged and never reaches the host."""
    try:
        return work()
    except Exception:
        log.exception("ti_fix failed here, the WebUI goes on as without it; please report this:")
        return otherwise


def user_policy(setting: Callable[[str, Any], Any]) -> Policy:
    """The settings as a whole.

    Args:
        setting: (key, default) -> the value of one.
    """
    return Policy(**{f.name: setting(f"ti_fix_{f.name}", f.default) for f in fields(Policy)})
