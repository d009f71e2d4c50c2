"""What a WebUI writes into its pictures: prompt, negative prompt and settings, as far as an evaluation can use them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from ti_fix.errors import WrongUse

USER_COMMENT, EXIF_PART = 0x9286, 0x8769
"""Where JPEG and WebP keep the text: a tag of Exif, and the part of Exif that it stands in."""

LONGEST = 100_000
"""Characters of text that are looked at."""

NEGATIVE = "Negative prompt:"
NETWORK = re.compile(r"<\w+:[^<>]*>")
"""``<lora:name:1>``: a network is no part of what an evaluation compares."""

SETTINGS: Mapping[str, tuple[str, str, Callable[[str], Any]]] = {
    "Steps": ("steps", r"\d{1,9}", int),
    "CFG scale": ("cfg_scale", r"\d{1,9}(?:\.\d{1,9})?", float),
}
"""Name in the text -> name of the setting, how its value is written, and its type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Infotext:
    """The text of a picture.

    Attributes:
        prompt: in one line, without networks.
        negative_prompt: the same.
        settings: by their names in `EvalConfig`; sizes in pixels.
    """

    prompt: str
    negative_prompt: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


def in_picture(path: str) -> Infotext:
    """The text that a picture carries.

    Raises:
        WrongUse: it is no picture, or carries none.
    """
    name = Path(path).name
    try:
        with Image.open(path) as image:
            text = image.info.get("parameters") or _comment(image.getexif().get_ifd(EXIF_PART).get(USER_COMMENT))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise WrongUse(f"{name} cannot be read as a picture ({error}); send another one.") from None
    if not isinstance(text, str) or not text.strip():
        raise WrongUse(f"{name} carries no prompt and settings; take the picture as the WebUI has saved it.")
    return parse(text[:LONGEST])


def _comment(raw: object) -> str:
    """The tag's text: eight bytes that name its coding, then the text itself."""
    if not isinstance(raw, bytes):
        return ""
    kind, text = raw[:8], raw[8:]
    if kind.startswith(b"UNICODE"):
        return text.decode("utf-16-le" if text[1:2] == b"\0" else "utf-16-be", "replace")
    return text.decode("utf-8", "replace")


def parse(text: str) -> Infotext:
    """Take the text apart: lines of the prompt, lines of the negative prompt, one line of settings."""
    lines = text.strip().splitlines()
    last = lines.pop() if lines and re.match(r"Steps: \d+", lines[-1]) else ""
    place = next((i for i, line in enumerate(lines) if line.startswith(NEGATIVE)), len(lines))
    negative = "\n".join(lines[place:]).removeprefix(NEGATIVE)
    return Infotext(
        prompt=_one_line("\n".join(lines[:place])), negative_prompt=_one_line(negative), settings=_settings(last)
    )


def _one_line(text: str) -> str:
    return " ".join(NETWORK.sub(" ", text).split())


def _settings(line: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (setting, form, kind) in SETTINGS.items():
        if match := re.search(rf"(?:^|, ){re.escape(name)}: ({form})\s*(?=,|$)", line):
            found[setting] = kind(match[1])
    if size := re.search(r"(?:^|, )Size: (\d{1,9})x(\d{1,9})", line):
        found |= {"width": int(size[1]), "height": int(size[2])}
    return found
