"""Looks at each model that the host loads, and lets it load checkpoints with an extended vocabulary.

The judge is handed in: what is right and wrong about a model is `align`'s matter. A sound checkpoint passes as the same
object; nothing on disk changes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from torch import Tensor

from ti_fix.embedding import BY_WIDTH, VOCABULARY_SIZE, Embedding
from ti_fix.hosts.load_hook import LoadHook, ordinary_tensors, quietly
from ti_fix.hosts.patches import Patches
from ti_fix.text_model import TextModel

TABLE = "token_embedding.weight"
"""How the keys of token tables end, in every layout of checkpoints and text encoders."""

Name = Callable[[Mapping[str, Tensor], TextModel], list[Embedding]]
"""Makes embeddings of rows beyond the vocabulary; see `ti_fix.align.named_rows`."""

Cut = dict[str, Tensor]
"""Encoder key -> the rows that were cut off, (rows, width)."""


class Looked(Protocol):
    """What a judge says of a model; see `ti_fix.align.at_load.Looked`."""

    @property
    def milliseconds(self) -> float: ...
    @property
    def lines(self) -> Sequence[str]: ...


class Judge(Protocol):
    """See `ti_fix.align.at_load.AtLoad`."""

    def loaded(self, model: TextModel, owner: Any, stamp: Hashable = None) -> Looked:
        """Look at a model and repair what is safe to repair."""

    def looked(self, owner: Any) -> Looked | None:
        """What was seen at that model's load."""

    def give_back(self) -> None:
        """Undo all repairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What `align` has to give.

    Attributes:
        judge: looks at models as they are loaded.
        name: makes embeddings of a model's rows beyond the vocabulary.
    """

    judge: Judge
    name: Name


class ModelHook:
    """See the module.

    Args:
        hook: knows the host, the settings and how embeddings are registered.
        watch: who looks at models and who names extra rows; None: nobody, and nothing is hooked.
    """

    def __init__(self, hook: LoadHook, watch: Watch | None) -> None:
        self._hook, self._kind, self._watch = hook, hook.kind, watch
        self._patches = Patches()
        self._files: dict[str, tuple[Hashable, Cut]] = {}
        self._read_since: list[str] = []
        self._cut: WeakKeyDictionary[Any, Cut] = WeakKeyDictionary()
        self._registered: list[tuple[Any, Any]] = []
        hook.after_load = self._register

    def install(self) -> None:
        """Wrap the host's readers of checkpoints; a second call changes nothing."""
        for owner, name in self._kind.readers if self._watch else ():
            self._patches.wrap(owner, name, self._read)

    def uninstall(self) -> None:
        """Give the host its functions back, and models what was changed in them."""
        self._patches.undo()
        if self._watch:
            self._watch.judge.give_back()

    # A checkpoint is read

    def _read(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        weights = original(*args, **kwargs)
        if isinstance(weights, dict) and quietly(self._wanted, False):
            quietly(lambda: self._trim(weights, _path_of(*args, **kwargs)), None)
        return weights

    def _wanted(self) -> bool:
        policy = self._hook.policy()
        return policy.enabled and policy.model

    def _trim(self, weights: dict[str, Any], path: str) -> None:
        """Cut tables with added tokens to CLIP's vocabulary, which is all that the host has room for."""
        cut: Cut = {}
        for name in [name for name in weights if name.endswith(TABLE)]:
            table = weights[name]
            spec = BY_WIDTH.get(table.shape[-1]) if isinstance(table, Tensor) and table.ndim == 2 else None
            if spec is not None and table.shape[0] > VOCABULARY_SIZE:
                cut[spec.key] = table[VOCABULARY_SIZE:].detach().float().cpu().clone()
                weights[name] = table[:VOCABULARY_SIZE]
        stamp = _stamp(path)
        if cut or path not in self._files or self._files[path][0] != stamp:  # the host may hand out what was cut before
            self._files[path] = (stamp, cut)
        self._read_since.append(path)

    # A model is loaded

    def loaded(self, model: Any) -> None:
        """The host has loaded a model."""
        paths, self._read_since = self._read_since, []
        if self._watch is None or not self._wanted():
            return
        with ordinary_tensors():
            if paths:  # none: called again for a model that has been there
                self._cut[model] = {key: rows for path in paths for key, rows in self._files[path][1].items()}
            text = self.text_model(model)
            if text is None:
                return
            looked = self._watch.judge.loaded(text, model, _stamp(_file_of(model)))
            for line in looked.lines:
                self._hook.console.say(line, problem=True)
            self._forget()
            for database in self._kind.databases():
                self._register(database, model)

    def seen_at_load(self) -> Looked | None:
        """What the judge saw when the loaded model was loaded."""
        return self._watch.judge.looked(self._kind.model()) if self._watch else None

    def text_model(self, model: Any = None) -> TextModel | None:
        """The text side of a model, the loaded one by default, with what its file had beyond the vocabulary."""
        model = model if model is not None else self._kind.model()
        text = self._kind.text_model(model) if model is not None else None
        cut = self._cut.get(model, {}) if model is not None else {}
        if text is None or not cut:
            return text
        encoders = (replace(e, cut=len(cut[e.spec.key])) if e.spec.key in cut else e for e in text.encoders)
        return replace(text, encoders=tuple(encoders))

    def rows(self, model: Any = None) -> list[Embedding]:
        """A model's rows beyond the vocabulary, as embeddings; the loaded one's by default."""
        model = model if model is not None else self._kind.model()
        cut = self._cut.get(model) if model is not None else None
        text = self.text_model(model) if cut else None
        return self._watch.name(cut, text) if cut and text and self._watch else []

    def _register(self, database: Any, model: Any = None) -> None:
        """Make a model's extra rows callable; a file with the same name goes before them."""
        for embedding in self.rows(model):
            entry = None if embedding.name in database.word_embeddings else self._hook.add(database, embedding)
            if entry is not None:
                self._registered.append((database, entry))

    def _forget(self) -> None:
        """Take the rows of the model before out of the databases that were not read anew since."""
        registered, self._registered = self._registered, []
        for database, entry in registered:
            if database.word_embeddings.get(entry.name) is entry:
                self._kind.unregister(database, entry.name)


def _path_of(*args: Any, **kwargs: Any) -> str:
    """The file that a reader was asked for: by its path, or by the host's record of it."""
    (first, *_) = [*args, *kwargs.values()]
    return str(getattr(first, "filename", first))


def _file_of(model: Any) -> str:
    return str(getattr(getattr(model, "sd_checkpoint_info", None), "filename", ""))


def _stamp(path: str) -> Hashable:
    """The version of a file; None where there is none."""
    try:
        about = os.stat(path)
    except OSError:
        return None
    return path, about.st_mtime_ns, about.st_size
