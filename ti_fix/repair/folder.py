"""An embeddings folder that is looked at again and again: read once per change, asked about changes cheaply."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ti_fix.embedding import CLIP_G, CLIP_L, Family
from ti_fix.formats import Parsed, read, read_many
from ti_fix.formats.read import is_candidate
from ti_fix.repair.defects import additions
from ti_fix.repair.names import fold
from ti_fix.repair.on_load import Loading, Policy, on_load

Stamp = tuple[int, int]
"""Time of the last change in nanoseconds, size in bytes."""

RANKS = {"pass": 0, "register": 1, "complete": 2}

REST = 20
"""After a look at the folder that took t seconds the next one is at least REST * t later: at most 5 % of the time."""


class EmbeddingFolder:
    """One folder with its sub-folders.

    Attributes:
        version: grows with each change that was seen.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.version = 0
        self._stamps: dict[str, Stamp] = {}
        self._parsed: dict[Path, tuple[Stamp, Parsed]] = {}
        self._plans: dict[tuple[str | None, Policy], Mapping[str, Loading]] = {}
        self._additions = additions()
        self._next_look = 0.0
        self._lock = threading.RLock()

    def look(self, *, now: bool = False) -> int:
        """The version after a look at names, sizes and times of the files; soon after a look, without one.

        Args:
            now: look in any case.
        """
        with self._lock:
            start = time.monotonic()
            if now or start >= self._next_look:
                stamps, added = _stamps(str(self.path)), additions()
                if (stamps, added) != (self._stamps, self._additions):
                    if added != self._additions:
                        self._parsed.clear()
                    self._stamps, self._additions = stamps, added
                    self._plans.clear()
                    self.version += 1
                self._next_look = time.monotonic() + REST * (time.monotonic() - start)
            return self.version

    def plan(self, family: Family | None, policy: Policy) -> Mapping[str, Loading]:
        """Key of each file (see `key`) -> how to load it; the second file of a pair has an empty ``refuse``.

        Only files that changed are read again.
        """
        with self._lock:
            self.look(now=True)
            asked = (family.name if family else None, policy)
            if asked not in self._plans:
                while len(self._plans) > 3:  # a model or two, with and without cards
                    del self._plans[next(iter(self._plans))]
                self._plans[asked] = self._make_plan(family, policy)
            return self._plans[asked]

    def _make_plan(self, family: Family | None, policy: Policy) -> Mapping[str, Loading]:
        plan: dict[str, Loading] = {}
        self._parsed = {path: kept for path, kept in self._parsed.items() if str(path) in self._stamps}
        for parsed in read_many(map(Path, sorted(self._stamps)), reading=self._read):
            first, *others = parsed.paths
            loading = on_load(parsed, family=family, policy=policy)
            plan[key(first)] = self._without_vectors(parsed, loading)
            plan.update({key(path): Loading(action="refuse") for path in others})
        return _one_per_name(plan)

    def _without_vectors(self, parsed: Parsed, loading: Loading) -> Loading:
        """Whole healthy embeddings are read by the host itself: their vectors are not kept a second time."""
        whole = parsed.embedding is not None and {CLIP_L.key, CLIP_G.key} <= set(parsed.embedding.vectors)
        if loading.action != "pass" or not whole:
            return loading
        for path in parsed.paths:
            self._parsed.pop(path, None)
        return replace(loading, embedding=None)

    def _read(self, path: Path) -> Parsed:
        stamp = self._stamps[str(path)]
        kept = self._parsed.get(path)
        if kept is None or kept[0] != stamp:
            kept = self._parsed[path] = (stamp, read(path))
        return kept[1]


def key(path: Path | str) -> str:
    """One spelling for a path, however it was written."""
    return os.path.normcase(os.path.abspath(path))  # noqa: PTH100 - links stay as they are


def _one_per_name(plan: dict[str, Loading]) -> dict[str, Loading]:
    """Of files that would have the same trigger, one that the host itself loads keeps it, then one that is whole."""
    groups: dict[str, list[str]] = {}
    for where, loading in plan.items():
        if loading.action in RANKS and (loading.action != "pass" or loading.sound):
            groups.setdefault(fold(_name(where, loading)), []).append(where)
    for members in groups.values():
        best = min(members, key=lambda where: (RANKS[plan[where].action], where.count(os.sep), where))
        for where in members:
            if where == best:
                continue
            plan[where] = (
                _same_name(plan[where], where, best) if _is_hosts(plan[where]) else _outdone(plan[where], where, best)
            )
    return plan


def _name(where: str, loading: Loading) -> str:
    if loading.action != "pass" and loading.embedding is not None:
        return loading.embedding.name
    return Path(where).stem


def _is_hosts(loading: Loading) -> bool:
    return loading.action == "pass"


def _same_name(loading: Loading, where: str, best: str) -> Loading:
    """Both are the host's own business, and it lets the one win that it happens to read last."""
    name = _name(where, loading)
    other = "/".join(Path(best).parts[-2:])
    line = (
        f"{Path(where).name}: {other} has the same trigger {name!r}; the WebUI uses the one it reads last. Rename one."
    )
    return replace(loading, line=line)


def _outdone(loading: Loading, where: str, best: str) -> Loading:
    name = _name(where, loading)
    line = f"{Path(where).name}: {Path(best).name} has the same trigger {name!r} and is used instead. Rename one."
    return replace(loading, action="skip", line=line, names=())


def _stamps(folder: str) -> dict[str, Stamp]:
    """Path of each file that could be an embedding -> its stamp; links to folders are followed once each.

    This runs before every picture: one system call for each file, and nothing else that grows with their number.
    """
    found: dict[str, Stamp] = {}
    seen: set[tuple[int, int]] = set()
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        try:
            about = os.stat(here)
            if (about.st_dev, about.st_ino) in seen:
                continue
            seen.add((about.st_dev, about.st_ino))
            with os.scandir(here) as listed:
                waiting += [entry.path for entry in listed if _is_folder(entry, found)]
        except OSError:
            continue
    return found


def _is_folder(entry: os.DirEntry[str], found: dict[str, Stamp]) -> bool:
    """Whether to look into an entry; a file that could be an embedding is noted instead."""
    try:
        if _could_be_ours(entry.name):
            if entry.is_file():
                about = entry.stat()
                found[entry.path] = (about.st_mtime_ns, about.st_size)
                return False
            return entry.is_dir()
        return not entry.name.startswith(".") and entry.is_dir()
    except OSError:  # a link that leads nowhere
        return False


@functools.lru_cache(maxsize=65536)
def _could_be_ours(name: str) -> bool:
    return is_candidate(Path(name))
