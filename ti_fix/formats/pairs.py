"""Halves in two files: diffusers' SDXL script writes one file per text encoder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from ti_fix.embedding import CLIP_G, CLIP_L, Finding
from ti_fix.formats.read import Parsed, is_generic, read

_HALF_MARK = re.compile(
    r"[_\-. ]?(clip[_\-]?[lg]|te[_\-]?[12]|text[_\-]?encoder([_\-]?[12])?|[_\-][lg12])(?=$|[_\-.])", re.IGNORECASE
)


def read_many(paths: Iterable[Path], *, reading: Callable[[Path], Parsed] = read) -> Iterator[Parsed]:
    """Read files one by one; halves that belong together come out as one embedding.

    Args:
        paths: the files, in the order in which they are to be reported.
        reading: how one file is read; `read`, or something that remembers what it has read.
    """
    waiting: dict[tuple[Path, str], Parsed] = {}
    done: list[Parsed | None] = []
    place: dict[int, int] = {}
    for path in paths:
        parsed = reading(path)
        key = pair_key(parsed)
        if key is None:
            done.append(parsed)
            continue
        other = waiting.get(key)
        if other is not None and _complete(other, parsed):
            done[place[id(other)]] = _joined(other, parsed)
            del waiting[key]
            continue
        waiting.setdefault(key, parsed)
        place[id(parsed)] = len(done)
        done.append(parsed)
    yield from (parsed for parsed in done if parsed is not None)


def pair_key(parsed: Parsed) -> tuple[Path, str] | None:
    """What both halves of a pair share: the folder, and the stem without the mark of the encoder."""
    if parsed.embedding is None or set(parsed.embedding.vectors) not in ({CLIP_L.key}, {CLIP_G.key}):
        return None
    path = parsed.paths[0]
    stem = _HALF_MARK.sub("", path.stem.lower())
    named = parsed.placeholder.lower() if is_generic(path.stem) else ""
    return path.parent, f"{stem}\n{named}"


def _complete(one: Parsed, other: Parsed) -> bool:
    assert one.embedding is not None
    assert other.embedding is not None
    return not set(one.embedding.vectors) & set(other.embedding.vectors)


def _joined(one: Parsed, other: Parsed) -> Parsed:
    first, second = (one, other) if one.embedding and CLIP_L.key in one.embedding.vectors else (other, one)
    assert first.embedding is not None
    assert second.embedding is not None
    names = f"{first.paths[0].name} and {second.paths[0].name}"
    note = Finding(
        code="pair",
        severity="note",
        message=f"The two halves lie in two files, {names}. Joined them.",
        repaired="Joined the halves from two files.",
    )
    both = {**first.embedding.vectors, **second.embedding.vectors}
    metadata = {**second.embedding.metadata, **first.embedding.metadata}
    aliases = tuple(dict.fromkeys((*first.embedding.aliases, second.paths[0].stem)))
    embedding = replace(first.embedding, vectors=both, metadata=metadata, aliases=aliases)
    findings = (note, *(f for f in (*first.findings, *second.findings) if f.code != "unlabelled"))
    return replace(
        first,
        paths=(*first.paths, *second.paths),
        embedding=embedding,
        layout=f"{first.layout} pair",
        findings=findings,
    )
