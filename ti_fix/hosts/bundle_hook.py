"""Embeddings inside LoRAs, for hosts that leave them alone: callable while their LoRA is in the prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from ti_fix.formats import Parsed
from ti_fix.formats.bundles import read_bundled
from ti_fix.hosts.load_hook import LoadHook, ordinary_tensors
from ti_fix.repair.on_load import Loading, on_load

Stamp = tuple[int, int]


class BundleHook:
    """Registers what the LoRAs of a prompt carry, and forgets it with the next prompt.

    Args:
        hook: knows the host, the settings and how entries are made.
    """

    def __init__(self, hook: LoadHook) -> None:
        self._hook = hook
        self._read: dict[Path, tuple[Stamp, list[Parsed]]] = {}
        self._registered: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()

    def activate(self) -> None:
        """Bring the databases of the loaded model in line with the LoRAs of the prompt."""
        paths = self._hook.kind.active_bundles() if self._hook.policy().enabled else []
        parsed = [each for path in paths for each in self._bundled(path)]
        with ordinary_tensors():
            for database in self._hook.kind.databases():
                self._forget(database)
                for each in parsed:
                    self._register(database, each)

    def _forget(self, database: Any) -> None:
        for entry in self._registered.pop(database, []):
            if database.word_embeddings.get(entry.name) is entry:
                self._hook.kind.unregister(database, entry.name)

    def _register(self, database: Any, parsed: Parsed) -> None:
        """One embedding; a file in the embeddings folder with the same name goes before it, as in AUTOMATIC1111."""
        if parsed.trigger in database.word_embeddings:
            return
        family = self._hook.family_for(database)
        loading = on_load(parsed, family=family, policy=self._hook.policy(), native=parsed.trigger)
        if loading.action == "pass" and parsed.embedding is not None:
            loading = Loading(action="register", embedding=parsed.embedding)
        if loading.action not in ("register", "complete"):
            return
        self._hook.console.say(loading.line)
        entry = self._hook.entry(database, loading, None)
        entry.name = parsed.trigger
        self._hook.entries.add(database, entry)
        self._registered.setdefault(database, []).append(entry)

    def _bundled(self, path: Path) -> list[Parsed]:
        """Read once per change: most LoRAs carry nothing, and their headers are long."""
        try:
            about = path.stat()
        except OSError:
            return []
        stamp = (about.st_mtime_ns, about.st_size)
        kept = self._read.get(path)
        if kept is None or kept[0] != stamp:
            kept = self._read[path] = (stamp, read_bundled(path))
        return kept[1]
