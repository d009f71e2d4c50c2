"""Captions and templates: reading text files of any encoding, filling in templates, shuffling tags."""

from __future__ import annotations

import codecs
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ti_fix.errors import WrongUse

NAME, FILEWORDS = "[name]", "[filewords]"

SUBJECT = (
    "a photo of [name]",
    "a close-up photo of [name]",
    "a photo of the [name]",
    "a good photo of [name]",
    "a bright photo of [name]",
    "a cropped photo of [name]",
    "a picture of one [name]",
    "a rendition of [name]",
)
STYLE = (
    "a painting in the style of [name]",
    "a picture in the style of [name]",
    "a rendering in the style of [name]",
    "a work of art in the style of [name]",
    "a detail in the style of [name]",
    "a scene in the style of [name]",
)

_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_STEM_NUMBER = re.compile(r"^[-_\d\s]+")


@dataclass(frozen=True, slots=True)
class Text:
    """The content of a text file.

    Attributes:
        text: what it says.
        encoding: how it was read.
        guessed: whether the encoding is a guess.
    """

    text: str
    encoding: str
    guessed: bool


def decode_text(data: bytes) -> Text:
    """The text in these bytes: by a byte order mark, else UTF-8, else UTF-16 by its zeros, else Windows-1252."""
    for bom, encoding in _BOMS:
        if data.startswith(bom):
            return Text(data.decode(encoding, "replace").lstrip("\ufeff"), encoding, False)
    if b"\0" in data:
        encoding = "utf-16-le" if data[1::2].count(0) >= data[::2].count(0) else "utf-16-be"
        return Text(data.decode(encoding, "replace"), encoding, True)
    try:
        return Text(data.decode("utf-8"), "utf-8", False)
    except UnicodeDecodeError:
        pass
    try:
        return Text(data.decode("cp1252"), "Windows-1252", True)
    except UnicodeDecodeError:  # five bytes that Windows-1252 leaves open
        return Text(data.decode("latin-1"), "Latin-1", True)


def one_line(text: str) -> str:
    """A caption as one line; lines become parts of one sentence."""
    return " ".join(text.split())


def words_of_name(stem: str) -> str:
    """What a file name says: without leading numbers, separators as spaces, as in A1111."""
    return one_line(_STEM_NUMBER.sub("", stem).replace("_", " "))


def templates(setting: str) -> tuple[tuple[str, ...], Text | None]:
    """The captions that a template setting stands for, and how a file was read.

    Args:
        setting: ``subject``, ``style``, a caption with ``[name]`` or ``[filewords]``, or a file of captions.

    Raises:
        WrongUse: no such file, or nothing in it.
    """
    if setting in ("subject", "style"):
        return (SUBJECT if setting == "subject" else STYLE), None
    if NAME in setting or FILEWORDS in setting:
        return (setting,), None
    try:
        read = decode_text(Path(setting).read_bytes())
    except (OSError, ValueError) as error:
        raise WrongUse(
            f"The template {setting!r} is neither a file nor a caption with {NAME} ({error}); write one of them."
        ) from None
    lines = tuple(line.strip() for line in read.text.splitlines() if line.strip())
    if not lines:
        raise WrongUse(f"The template file {setting} is empty; write captions with {NAME} into it, one a line.")
    return lines, read


def filled(template: str, name: str, filewords: str) -> str:
    """The template with the embedding's name and the picture's own words."""
    return one_line(template.replace(FILEWORDS, filewords).replace(NAME, name)).strip(" ,")


def varied(caption: str, keep: str, chance: random.Random, *, shuffle: bool, drop: float) -> str:
    """The caption with its comma-separated parts in another order and some left out.

    Args:
        caption: the filled-in text.
        keep: parts that hold this text (in any case) are never left out.
        chance: where the choices come from.
        shuffle: change the order.
        drop: chance of each other part to be left out.
    """
    if not (shuffle or drop) or "," not in caption:
        return caption
    parts = [part.strip() for part in caption.split(",")]
    parts = [part for part in parts if keep.lower() in part.lower() or chance.random() >= drop]
    if shuffle:
        chance.shuffle(parts)
    return ", ".join(parts)


def prompts_of(caption: str | None, lines: Sequence[str], name: str) -> tuple[str, ...]:
    """All captions that a picture can get: each template filled in."""
    return tuple(dict.fromkeys(filled(line, name, caption or "") for line in lines))
