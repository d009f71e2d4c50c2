"""The embeddings of a host's folders, judged once and remembered for as long as their files stay as they are.

Only what the page and the API show is kept, not the vectors: two thousand files take a few megabytes. Nobody hands in
a path: an embedding is asked for by the id that the list gave it, so no request can leave the folders.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ti_fix.embedding import SDXL, Embedding, Family
from ti_fix.errors import TiFixError
from ti_fix.formats import Parsed, files_in, pair_key, read, read_many
from ti_fix.jobs import Progress
from ti_fix.repair import Judged, additions, name_clashes, repair
from ti_fix.ui.host import PageHost

BACKUP_FOLDER = "ti_fix_backup"
"""Folder inside an embeddings folder that keeps the originals of what was repaired there."""

Stamp = tuple[int, int, int]
"""Change time in ns, size in bytes and file number: another stamp, another content."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entry:
    """One embedding of the list.

    Attributes:
        id: names it in requests; stays the same while its files keep their names.
        root: the embeddings folder that it lies in.
        judged: how it stands; its vectors have been let go, only their widths are left.
        about: `Judged.as_dict` from before that, paths relative to `root`.
        size: bytes of its files.
        confined: whether the files really lie inside the embeddings folders, all links followed.
        searched: what a search looks at, case folded.
    """

    id: str
    root: Path
    judged: Judged
    about: Mapping[str, Any]
    size: int
    confined: bool
    searched: str

    @property
    def paths(self) -> tuple[Path, ...]:
        return self.judged.parsed.paths

    @property
    def trigger(self) -> str:
        return self.judged.trigger

    @property
    def verdict(self) -> str:
        return self.judged.result.verdict

    @property
    def where(self) -> tuple[str, ...]:
        """The files, relative to their embeddings folder."""
        return tuple(self.about["paths"])

    def as_dict(self) -> dict[str, Any]:
        """The stable form that scripts read; what the other names in the list say about it included."""
        findings = [{"code": f.code, "severity": f.severity, "message": f.message} for f in self.judged.result.findings]
        return {"id": self.id, **self.about, "verdict": self.verdict, "findings": findings, "bytes": self.size}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Read:
    """What is remembered of one file: read alone, and what it shares with its other half."""

    stamp: Stamp
    entry: Entry
    pair: tuple[Path, str] | None


@dataclass(slots=True, kw_only=True, eq=False)
class _Memory:
    """Everything remembered for one family; replaced as a whole, so that readers never see half of it."""

    family: Family = SDXL
    additions: int = 0
    files: dict[Path, _Read] = field(default_factory=dict)
    pairs: dict[tuple[tuple[Path, Stamp], ...], tuple[Entry, ...]] = field(default_factory=dict)
    entries: tuple[Entry, ...] = ()
    by_id: dict[str, Entry] = field(default_factory=dict)

    def serves(self, other: _Memory) -> bool:
        """Whether what it holds of unchanged files is right for another one too."""
        return self.family is other.family and self.additions == other.additions


class Library:
    """The list of a host's embeddings.

    Args:
        host: has the folders and the family of the loaded model.
    """

    def __init__(self, host: PageHost) -> None:
        self.host = host
        self._memory = _Memory()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """As of the last refresh, in the order of the folders."""
        return self._memory.entries

    @property
    def family(self) -> Family:
        """What the verdicts are for; SDXL while no model is loaded."""
        return self.host.family() or SDXL

    def refresh(self) -> Iterator[Progress]:
        """Look at the folders again; only new and changed files are read."""
        family, old = self.family, self._memory
        memory = _Memory(family=family, additions=additions())
        found = list(_stamped(self.host.embedding_folders))
        known = old.files if old.serves(memory) else {}
        inside = _Inside(self.host.embedding_folders)
        for done, (root, path, stamp) in enumerate(found):
            remembered = known.get(path)
            if remembered is None or remembered.stamp != stamp:
                yield Progress(done=done, total=len(found), note=path.name)
                remembered = _read_one(root, path, stamp, family, inside)
            memory.files[path] = remembered
        self._fill(memory, old, inside)
        self._memory = memory
        yield Progress(done=len(found), total=len(found))

    def refreshed(self) -> tuple[Entry, ...]:
        """The list after a refresh."""
        for _ in self.refresh():
            pass
        return self.entries

    def find(self, id_: str) -> Entry:
        """The embedding with that id.

        Raises:
            TiFixError: the list has none.
        """
        entry = self._memory.by_id.get(id_)
        if entry is None:
            raise TiFixError(
                "This embedding is not in the list (any more): its file was moved or deleted. Refresh the list."
            )
        return entry

    def load(self, entry: Entry) -> Judged:
        """Read its files again, vectors included.

        Raises:
            TiFixError: the files are not what they were when the list was made.
        """
        for parsed in read_many(entry.paths):
            if parsed.paths == entry.paths:
                return Judged(parsed=parsed, result=repair(parsed, family=self.family))
        raise TiFixError(f"{entry.where[0]} has changed since the list was made; refresh the list and try again.")

    def _fill(self, memory: _Memory, old: _Memory, inside: _Inside) -> None:
        """Join the pairs, drop what is no embedding, and look at all names together."""
        entries: list[Entry] = []
        for group in _groups(memory.files):
            if len(group) == 1:
                entries.append(memory.files[group[0]].entry)
                continue
            key = tuple((path, memory.files[path].stamp) for path in group)
            same = old.pairs.get(key) if old.serves(memory) else None
            joined = same or tuple(_joined(group, memory, inside))
            memory.pairs[key] = joined
            entries += joined
        entries = [e for e in entries if e.verdict != "ignore"]
        judged = name_clashes([e.judged for e in entries])
        memory.entries = tuple(
            e if j is e.judged else replace(e, judged=j) for e, j in zip(entries, judged, strict=True)
        )
        memory.by_id = {e.id: e for e in memory.entries}


class _Inside:
    """Whether files lie inside some folders once all links are followed."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._roots = [os.path.realpath(folder) for folder in folders]
        self._parents: dict[Path, bool] = {}

    def holds(self, paths: Iterable[Path]) -> bool:
        return all(self._holds(path) for path in paths)

    def _holds(self, path: Path) -> bool:
        if path.is_symlink():
            return self._real(path)
        if path.parent not in self._parents:
            self._parents[path.parent] = self._real(path.parent)
        return self._parents[path.parent]

    def _real(self, path: Path) -> bool:
        real = os.path.realpath(path)
        return any(_below(real, root) for root in self._roots)


def _below(path: str, root: str) -> bool:
    try:
        return os.path.commonpath([path, root]) == root
    except ValueError:  # two drives of Windows
        return False


def _stamped(folders: Sequence[Path]) -> Iterator[tuple[Path, Path, Stamp]]:
    seen = set()
    for root in folders:
        for path in files_in(root):
            if path in seen or BACKUP_FOLDER in path.parts[len(root.parts) : -1]:
                continue
            seen.add(path)
            try:
                about = os.stat(path)
            except OSError:
                yield root, path, (0, 0, 0)
            else:
                yield root, path, (about.st_mtime_ns, about.st_size, about.st_ino)


def _read_one(root: Path, path: Path, stamp: Stamp, family: Family, inside: _Inside) -> _Read:
    parsed = read(path)
    return _Read(stamp=stamp, entry=_entry(root, parsed, family, stamp[1], inside), pair=pair_key(parsed))


def _groups(files: Mapping[Path, _Read]) -> list[list[Path]]:
    """Files that may belong together, each group where its first file stands."""
    groups: dict[object, list[Path]] = {}
    for path, each in files.items():
        groups.setdefault(each.pair or path, []).append(path)
    return list(groups.values())


def _joined(group: list[Path], memory: _Memory, inside: _Inside) -> Iterator[Entry]:
    """A group read as a whole; what does not join comes out as it was alone."""
    root = memory.files[group[0]].entry.root
    for parsed in read_many(group):
        if len(parsed.paths) == 1 and parsed.paths[0] in memory.files:
            yield memory.files[parsed.paths[0]].entry
        else:
            size = sum(memory.files[path].stamp[1] for path in parsed.paths)
            yield _entry(root, parsed, memory.family, size, inside)


def _entry(root: Path, parsed: Parsed, family: Family, size: int, inside: _Inside) -> Entry:
    judged = Judged(parsed=parsed, result=repair(parsed, family=family))
    where = [path.relative_to(root).as_posix() for path in parsed.paths]
    about = {**judged.as_dict(), "paths": where}
    made_for = judged.made_for.title if judged.made_for else ""
    return Entry(
        id=hashlib.sha256("\n".join(map(str, parsed.paths)).encode("utf-8", "surrogatepass")).hexdigest()[:16],
        root=root,
        judged=_light(judged),
        about=about,
        size=size,
        confined=inside.holds(parsed.paths),
        searched="\n".join([judged.trigger, *judged.aliases, *where, parsed.layout, made_for]).casefold(),
    )


def _light(judged: Judged) -> Judged:
    """The same without its vectors; empty blocks keep the family and with it the verdict."""
    result = judged.result
    before, after = _emptied(result.before), _emptied(result.after)
    parsed = replace(judged.parsed, embedding=before)
    return Judged(parsed=parsed, result=replace(result, before=before, after=after))


def _emptied(embedding: Embedding | None) -> Embedding | None:
    if embedding is None:
        return None
    empty = {key: _no_rows(block.shape[1]) for key, block in embedding.vectors.items()}
    return replace(embedding, vectors=empty, metadata={})


@functools.cache
def _no_rows(width: int) -> torch.Tensor:
    return torch.empty((0, width))
