"""One file -> `Parsed`. No exception leaves `read` for anything that a file can contain."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ti_fix.embedding import Embedding, Finding
from ti_fix.errors import OTHER_KIND, UnreadableFile, printable, quoted
from ti_fix.formats import safetensors_file
from ti_fix.formats.container import open_container
from ti_fix.formats.layouts import Reading, interpret, interpret_all
from ti_fix.formats.pictures import MAX_FILE, is_picture, read_picture
from ti_fix.formats.source import Source
from ti_fix.formats.stored import Container
from ti_fix.formats.torch_file import is_zip, looks_like_pickle

TENSOR_ENDINGS = frozenset(".pt .pth .bin .pti .safetensors .ckpt .pkl .emb".split())
PICTURE_ENDINGS = frozenset(".png .webp .jxl .avif".split())
ARCHIVE_ENDINGS = frozenset(".zip .7z .rar".split())
UNFINISHED_ENDINGS = frozenset(".crdownload .part .partial .download .tmp .aria2".split())

_OPENED = TENSOR_ENDINGS | PICTURE_ENDINGS | ARCHIVE_ENDINGS | UNFINISHED_ENDINGS
_NO_TENSORS = frozenset({"empty", "plain-text", "json-error", "web-page", "damaged", "not-an-embedding"})
"""Findings that make a file with a foreign ending (.txt, .json) one that nobody takes for an embedding."""
_PREVIEW = re.compile(r"\.preview(\.\w+)?$", re.IGNORECASE)
_GENERIC_STEM = re.compile(
    r"^(learned_embeds?|embeddings?|textual_inversion|pytorch_model|model|emb)(_\d)?(-steps-\d+)?$"
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parsed:
    """What one file (or a pair of files) holds.

    Attributes:
        paths: the files.
        trigger: the word by which a prompt calls it.
        embedding: the vectors as they were read, None where there are none.
        layout: how they were stored, empty where nothing was recognised.
        findings: what was noticed and mended on the way.
        ignored: no embedding, and nobody would take it for one; not worth a line.
        placeholder: the token that the file itself names.
    """

    paths: tuple[Path, ...]
    trigger: str
    embedding: Embedding | None = None
    layout: str = ""
    findings: tuple[Finding, ...] = ()
    ignored: bool = False
    placeholder: str = ""


def is_candidate(path: Path) -> bool:
    """Whether a file in an embeddings folder is opened at all; litter and previews are not."""
    return _opened(path.name)


def _opened(name: str) -> bool:
    return not name.startswith(".") and _ending(name) in _OPENED and not _PREVIEW.search(os.path.splitext(name)[0])


def _ending(name: str) -> str:
    return os.path.splitext(name.lower().removesuffix(".corrupted"))[1]


def files_in(folder: Path) -> Iterator[Path]:
    """The files of a folder that could be embeddings, sub-folders included, in a stable order.

    Links to folders are followed once each, so that a link to a parent does not loop.
    """
    seen: set[tuple[int, int]] = set()
    waiting = [folder]
    while waiting:
        here = waiting.pop(0)
        try:
            about = here.stat()
            if (about.st_dev, about.st_ino) in seen:
                continue
            with os.scandir(here) as entries:
                ordered = sorted((entry.name, _is_folder(entry)) for entry in entries)
        except OSError:
            continue
        seen.add((about.st_dev, about.st_ino))
        yield from (here / name for name, is_dir in ordered if not is_dir and _opened(name))
        waiting += [here / name for name, is_dir in ordered if is_dir and not name.startswith(".")]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads in a circle, or to where we may not look
        return False


def read(path: Path | str) -> Parsed:
    """Read one embedding file of any layout.

    Args:
        path: the file.

    Returns:
        The embedding, or the findings that say why there is none. Damage of any kind is a finding, not an exception.
    """
    path = Path(path)
    try:
        source = _open(path)
        container = _container(source, path)
        if container is None:
            return _without_data(path)
        return _parsed(path, container, interpret(container))
    except UnreadableFile as error:
        return _failed(path, error.code, str(error))
    except (MemoryError, RecursionError):
        return _failed(path, "too-large", f"it takes more memory than there is; {OTHER_KIND}")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        return _failed(path, "unreadable", f"it cannot be opened ({reason}); check the file and its permissions.")


def extract(path: Path | str) -> list[Embedding]:
    """Each embedding of a file that holds several (a LoRA's bundled ones, or several placeholders).

    Raises:
        UnreadableFile: the file is damaged.
        OSError: it cannot be opened.
    """
    path = Path(path)
    container = _container(_open(path), path)
    readings = interpret_all(container) if container else []
    return [
        Embedding(name=r.placeholder or trigger_of(path), vectors=r.vectors, metadata=dict(r.metadata))
        for r in readings
        if r.vectors
    ]


def _open(path: Path) -> Source:
    try:
        return Source(path)
    except ValueError:
        raise UnreadableFile(
            "unreadable", "there can be no file of that name (it holds a zero character); check the name."
        ) from None
    except OSError:
        if path.is_dir():
            raise UnreadableFile("unreadable", "it is a folder, not a file; remove it or name a file.") from None
        raise


def _container(source: Source, path: Path) -> Container | None:
    head = source.head
    ending = _ending(path.name)
    if ending in UNFINISHED_ENDINGS:
        raise UnreadableFile("unfinished", "it is an unfinished download; let the browser finish or download it again.")
    if is_picture(head) and not safetensors_file.looks_like(head):
        return read_picture(source.whole()) if source.size <= MAX_FILE else None
    if ending in PICTURE_ENDINGS and not _may_hold_tensors(head):
        return None
    return open_container(source, path.name)


def _may_hold_tensors(head: bytes) -> bool:
    return is_zip(head) or looks_like_pickle(head) or safetensors_file.looks_like(head)


def _without_data(path: Path) -> Parsed:
    return Parsed(paths=(path,), trigger=trigger_of(path), ignored=True)


def _failed(path: Path, code: str, message: str) -> Parsed:
    if not _opened(path.name) and code in _NO_TENSORS:
        return _without_data(path)
    sentence = message[:1].upper() + message[1:]
    if path.name.lower().endswith(".corrupted"):
        sentence = (
            "Forge renamed it to .corrupted because it could not open it; rename it back to try again. " + sentence
        )
    finding = Finding(code=code, severity="error", message=f"{printable(path.name, 100)}: {sentence}")
    return Parsed(paths=(path,), trigger=trigger_of(path), findings=(finding,))


def trigger_of(path: Path) -> str:
    """The file's stem as the hosts use it, with composed accents."""
    name = path.name[: -len(".corrupted")] if path.name.lower().endswith(".corrupted") else path.name
    return unicodedata.normalize("NFC", os.path.splitext(name)[0])


def _parsed(path: Path, container: Container, reading: Reading) -> Parsed:
    trigger, aliases = _names(path, container, reading)
    noticed = (*container.findings, *reading.findings, *_file_findings(path, container, reading))
    embedding = None
    if reading.vectors:
        embedding = Embedding(name=trigger, vectors=reading.vectors, metadata=dict(reading.metadata), aliases=aliases)
    return Parsed(
        paths=(path,),
        trigger=trigger,
        embedding=embedding,
        layout=reading.layout,
        findings=tuple(_named(finding, path) for finding in noticed),
        placeholder=reading.placeholder,
    )


def _named(finding: Finding, path: Path) -> Finding:
    if finding.severity != "error":
        return finding
    return replace(finding, message=f"{printable(path.name, 100)}: {finding.message}")


def _names(path: Path, container: Container, reading: Reading) -> tuple[str, tuple[str, ...]]:
    """Trigger and aliases: the stem for files, the inner name for pictures, the placeholder under a generic stem."""
    stem, inner = trigger_of(path), reading.placeholder
    if container.kind == "picture" and inner:
        trigger, others = inner, (stem,)
    elif is_generic(stem):
        trigger, others = inner or _folder_name(path) or stem, (stem,)
    else:
        trigger, others = stem, (inner,)
    raw = path.stem
    return trigger, tuple(dict.fromkeys(n for n in (*others, raw) if n and n != trigger))


def is_generic(stem: str) -> bool:
    """Whether a file's stem is one that trainers give to every file."""
    return _GENERIC_STEM.match(stem.lower()) is not None


def _folder_name(path: Path) -> str:
    name = path.absolute().parent.name
    return "" if is_generic(name) else name


def _file_findings(path: Path, container: Container, reading: Reading) -> Iterable[Finding]:
    """What the file's name says that its content does not."""
    if not reading.vectors:
        return
    ending = os.path.splitext(path.name.lower())[1]
    usual = "torch" if ending in TENSOR_ENDINGS else ""
    told = {".safetensors": "safetensors", ".pti": "safetensors"}.get(ending, usual)
    if ending == ".corrupted":
        message = "Forge had renamed it to .corrupted, but it can be read."
        yield Finding(code="renamed-by-host", severity="note", message=message, repaired="Read it under its old name.")
    elif container.kind != "picture" and told and not container.kind.startswith(told):
        message = f"The ending says {ending}, the content is {container.kind}; the content counts."
        yield Finding(
            code="wrong-ending", severity="note", message=message, repaired="Went by the content, not by the ending."
        )
    elif ending in (".pti", ".pth", ".pkl", ".emb", ".ckpt"):
        message = f"WebUIs do not open files that end in {ending}."
        yield Finding(code="unusual-ending", severity="note", message=message, repaired=f"Opened the {ending} file.")
    inner = reading.placeholder
    if inner and container.kind == "picture" and inner != trigger_of(path):
        message = (
            f"The name inside the picture is {quoted(inner)}; it is the trigger, and the file name works as an alias."
        )
        yield Finding(code="inner-name", severity="note", message=message)
