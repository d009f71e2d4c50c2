"""Folders of pictures and captions -> a data set, with everything noticed on the way."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from ti_fix.embedding import Finding
from ti_fix.errors import WrongUse
from ti_fix.train.captions import Text, decode_text, one_line, words_of_name
from ti_fix.train.config import TrainConfig
from ti_fix.train.pictures import ENDINGS, UnusablePicture, open_picture

CAPTION_ENDINGS = (".txt", ".caption", ".tags")

_MASK_ENDINGS = ("-mask.png", "-masklabel.png")
_REPEATS = re.compile(r"(?P<folder>.+):(?P<repeats>\d+)")
_SHOWN = 5
"""Names listed in one message."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One picture with its caption.

    Attributes:
        source: the file, or a picture in memory.
        size: (height, width) in pixels, upright.
        caption: its own words, None where it has none.
        mask: a file that weights the places.
        repeats: how many times it counts.
        key: hash of its content.
        name: what it is called in messages.
    """

    source: Path | Image.Image
    size: tuple[int, int]
    caption: str | None = None
    mask: Path | None = None
    repeats: int = 1
    key: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dataset:
    """Pictures to learn from, and what was noticed while they were gathered."""

    samples: tuple[Sample, ...]
    findings: tuple[Finding, ...] = ()


def from_images(images: Sequence[Image.Image], captions: Sequence[str | None] | None = None) -> Dataset:
    """A data set of pictures in memory.

    Args:
        images: the pictures.
        captions: one each; None where all captions come from the template.
    """
    texts = captions if captions is not None else [None] * len(images)
    samples = [
        Sample(
            source=image,
            size=(image.height, image.width),
            caption=text,
            key=hashlib.sha256(repr((image.mode, image.size)).encode() + image.tobytes()).hexdigest(),
            name=f"picture {i + 1}",
        )
        for i, (image, text) in enumerate(zip(images, texts, strict=True))
    ]
    return Dataset(samples=tuple(samples))


def gather(config: TrainConfig) -> Dataset:
    """The pictures of the configured folders in a stable order.

    Raises:
        WrongUse: no folder is given, or one does not exist.
    """
    if not config.folders:
        raise WrongUse("No folder of pictures is given; name one (folders).")
    samples: list[Sample] = []
    notes = _Notes()
    for entry in config.folders:
        folder, repeats = _folder(entry)
        files = [path for path in _files(folder) if not _is_mask(path)]
        notes.add_others(folder, files)
        for path in filter(is_picture, files):
            samples += _sample(path, repeats, config, notes)
    if not samples:
        where = ", ".join(config.folders)
        notes.add("error", "no-pictures", f"There are no usable images in {where}; give a folder with pictures.")
    notes.add_duplicates(samples)
    return Dataset(samples=tuple(samples), findings=notes.findings())


def _folder(entry: str) -> tuple[Path, int]:
    match = _REPEATS.fullmatch(entry)
    if match and not Path(entry).is_dir():
        folder, repeats = Path(match["folder"]), int(match["repeats"])
    else:
        folder, repeats = Path(entry), 1
    if not folder.is_dir():
        raise WrongUse(f"{folder} is no folder; give a folder with pictures for folders.")
    if not 1 <= repeats <= 10000:
        raise WrongUse(f"{entry}: pictures can count 1 to 10000 times; change the number.")
    return folder, repeats


def _files(folder: Path) -> Iterator[Path]:
    """Files of the folder and its sub-folders by name; hidden ones are left out."""
    for path in sorted(folder.rglob("*"), key=lambda p: p.relative_to(folder).as_posix()):
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
            yield path


def _sample(path: Path, repeats: int, config: TrainConfig, notes: _Notes) -> Iterator[Sample]:
    mask = mask_of(path) if config.masks else None
    try:
        data = path.read_bytes()
        picture = open_picture(path, mask=mask, alpha=config.alpha, background=config.background)
    except (OSError, UnusablePicture) as error:
        notes.add("warning", "unusable-picture", str(error))
        return
    for note in picture.notes:
        notes.pictures.setdefault(note, []).append(path.name)
    key = hashlib.sha256(data)
    if mask is not None:
        key.update(mask.read_bytes())
    yield Sample(
        source=path,
        size=(picture.image.height, picture.image.width),
        caption=_caption(path, notes),
        mask=mask,
        repeats=repeats,
        key=key.hexdigest(),
        name=path.name,
    )


def mask_of(path: Path) -> Path | None:
    """The mask beside a picture, None where there is none."""
    return next((m for ending in _MASK_ENDINGS if (m := path.with_name(path.stem + ending)).is_file()), None)


def _caption(path: Path, notes: _Notes) -> str | None:
    """The text beside the picture; None where there is no file or nothing in it."""
    found = caption_beside(path)
    if found is None:
        return None
    file, read = found
    notes.add_encoding(file, read)
    text = one_line(read.text)
    if not text:
        notes.empty.append(file.name)
    return text or None


def caption_beside(path: Path) -> tuple[Path, Text] | None:
    """The file with a picture's caption, and what it says; None where there is none."""
    for ending in CAPTION_ENDINGS:
        file = path.with_suffix(ending)
        if file.is_file():
            return file, decode_text(file.read_bytes())
    return None


def pictures_in(folders: Sequence[str]) -> list[Path]:
    """The picture files of folders, as `gather` takes them; none of them is opened.

    Raises:
        WrongUse: a folder does not exist.
    """
    files = (path for entry in folders for path in _files(_folder(entry)[0]))
    return list(filter(is_picture, files))


def is_picture(path: Path) -> bool:
    """Whether a file is a picture to learn from, by its name: masks are none."""
    return path.suffix.lower() in ENDINGS and not _is_mask(path)


def _is_mask(path: Path) -> bool:
    return path.name.lower().endswith(_MASK_ENDINGS)


def caption_or_name(sample: Sample) -> str:
    """What ``[filewords]`` stands for: the caption, else the words of the file's name, as in A1111."""
    if sample.caption is not None:
        return sample.caption
    return words_of_name(sample.source.stem) if isinstance(sample.source, Path) else ""


_PICTURE_NOTES: Mapping[str, str] = {
    "turned": "turned upright by their EXIF orientation",
    "flattened": "transparent parts drawn on the background colour",
    "first frame": "only the first frame of an animation is used",
    "16 bit": "16-bit grey brought to 8 bits",
    "CMYK": "print colours (CMYK) brought to RGB",
}


class _Notes:
    """Collects what is noticed, so that a hundred pictures make one sentence."""

    def __init__(self) -> None:
        self.pictures: dict[str, list[str]] = {}
        self.empty: list[str] = []
        self._found: list[Finding] = []

    def add(self, severity: str, code: str, message: str) -> None:
        self._found.append(Finding(code=code, severity=severity, message=message))  # type: ignore[arg-type]

    def add_encoding(self, file: Path, read: Text) -> None:
        if read.guessed or read.encoding.startswith("utf-16"):
            how = "taken for" if read.guessed else "in"
            self.add("note", "caption-encoding", f"{file.name} is {how} {read.encoding}; save it as UTF-8 to be sure.")

    def add_others(self, folder: Path, files: Sequence[Path]) -> None:
        others = [p.name for p in files if p.suffix.lower() not in (*ENDINGS, *CAPTION_ENDINGS)]
        if others:
            self.add("note", "other-files", f"{folder.name}: left out, no pictures by their names: {listed(others)}.")

    def add_duplicates(self, samples: Sequence[Sample]) -> None:
        first: dict[str, str] = {}
        same = [f"{s.name} = {first[s.key]}" for s in samples if first.setdefault(s.key, s.name) != s.name]
        if same:
            self.add("warning", "same-picture", f"The same picture stands there twice: {listed(same)}; remove one.")

    def findings(self) -> tuple[Finding, ...]:
        for note, names in self.pictures.items():
            code = f"picture-{note.replace(' ', '-')}"
            self.add("note", code, f"{len(names)} picture(s): {_PICTURE_NOTES[note]} ({listed(names)}).")
        if self.empty:
            self.add("warning", "empty-caption", f"Empty caption files count as none: {listed(self.empty)}.")
        return tuple(self._found)


def listed(names: Sequence[str]) -> str:
    """The first few names."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
