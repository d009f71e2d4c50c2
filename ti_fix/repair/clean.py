"""What is worth writing of a judged file: the mended embedding, its parts, or the embeddings that it carries."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ti_fix.embedding import Embedding
from ti_fix.formats import extract
from ti_fix.formats.export import export
from ti_fix.formats.write import file_name, to_bytes, write_bytes
from ti_fix.repair.result import RepairResult, repair
from ti_fix.repair.scan import Judged
from ti_fix.repair.split import split

_RENAMED = frozenset({"prompt-syntax", "keyword"})

CARRIERS = frozenset({"lora-with-embeddings", "several-embeddings"})
"""Findings of files that hold embeddings without being one."""


def errors(judged: Judged) -> frozenset[str]:
    """Codes of the findings that make it unusable."""
    return frozenset(f.code for f in judged.result.findings if f.severity == "error")


def carries(judged: Judged) -> bool:
    """Whether embeddings can be taken out of it."""
    return judged.result.before is None and bool(errors(judged) & CARRIERS)


def too_long(judged: Judged) -> bool:
    """Whether it only has to be cut into parts to be usable."""
    return judged.result.after is not None and errors(judged) == {"too-many-vectors"}


def clean(judged: Judged, *, split_long: bool = False, extract_bundled: bool = False) -> Iterator[Embedding]:
    """The embeddings to write for one judged file; nothing for one that cannot be used.

    Args:
        judged: the file.
        split_long: cut more than 75 vectors into parts.
        extract_bundled: take embeddings out of LoRAs and multi-token files.

    Raises:
        UnreadableFile, OSError: a file that carries embeddings cannot be read any more.
    """
    if extract_bundled and carries(judged):
        for embedding in extract(judged.parsed.paths[0]):
            result = repair(embedding, family=judged.result.target)
            if result.usable and result.after:
                yield _with_usable_name(result)
    elif split_long and too_long(judged):
        assert judged.result.after is not None
        yield from split(judged.result.after)
    elif judged.result.usable and judged.result.after:
        yield _with_usable_name(judged.result)


def _with_usable_name(result: RepairResult) -> Embedding:
    """The embedding under a name that prompts can hold."""
    assert result.after is not None
    unusable = any(f.code in _RENAMED for f in result.findings)
    return replace(result.after, name=result.after.aliases[-1]) if unusable else result.after


def write_clean(
    each: Judged,
    out: Path,
    *,
    form: str = "",
    split_long: bool = False,
    extract_bundled: bool = False,
    overwrite: bool = False,
    taken: set[str] | None = None,
) -> list[Path]:
    """Write what is usable of one judged file.

    Args:
        each: the judged file.
        out: folder to write to; made if it is missing.
        form: a key of `formats.export.FORMS` for another program, empty for the plain safetensors form.
        split_long: cut more than 75 vectors into parts.
        extract_bundled: take embeddings out of LoRAs and multi-token files.
        overwrite: replace files of the same name with other content.
        taken: names that this run has written, so that two files never share one.

    Returns:
        The files that hold it now; a file that is there already with the same content counts.

    Raises:
        TiFixError: it cannot be written there, or the form does not exist for this kind of embedding.
    """
    taken = set() if taken is None else taken
    paths: list[Path] = []
    for found in clean(each, split_long=split_long, extract_bundled=extract_bundled):
        embedding = replace(
            found, name=_free_name(file_name(found.name), taken), metadata={**provenance(each), **found.metadata}
        )
        if form:
            paths += export(embedding, out, form, overwrite=overwrite)
            continue
        path, data = out / f"{embedding.name}.safetensors", to_bytes(embedding)
        if not (path.is_file() and path.read_bytes() == data):
            write_bytes(path, data, overwrite=overwrite)
        paths.append(path)
    return paths


def provenance(each: Judged) -> dict[str, str]:
    """Metadata that says where an embedding came from."""
    digest = hashlib.sha256()
    for path in each.parsed.paths:
        digest.update(path.read_bytes())
    return {"ti_fix.source_layout": each.parsed.layout, "ti_fix.source_sha256": digest.hexdigest()}


def _free_name(name: str, taken: set[str]) -> str:
    """A name that no file of this run has, also where case does not count."""
    candidate, number = name, 2
    while candidate.casefold() in taken:
        candidate, number = f"{name}-{number}", number + 1
    taken.add(candidate.casefold())
    return candidate
