"""The public reports as a table: each case in a sub-folder of a WebUI's embeddings folder, each name in a prompt."""

from __future__ import annotations

import shutil
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cases import cases, folder
from tests.hosts.webui_client import Client, Failed, Picture
from ti_fix.formats.read import PICTURE_ENDINGS, TENSOR_ENDINGS

CONTROLS = (
    "photo of one dog",
    "photo of one dog, (red:1.3), [blue]",
    "some house BREAK green tree",
    "this [dog:horse:0.5] AND some tower",
    "",
)
"""Prompts without any name of the folder; ``a``, ``cat`` and ``and`` are names of cases."""

NAMES = {
    "F07": ("learned_embeds",),
    "F18": ("star-ti",),
    "F22": ("bare-ti", "bareparam"),
    "F28": ("legacy-ti",),
    "N03": ("cat-toy", "a-b", "emb-v2-final", "fast-slow", "name_with_-1.2"),
    "N05": ("dup", "dup-ti"),
    "N13": ("and-ti", "break-ti"),
    "P01": ("emb_1.5",),
    "P04": ("b", "c", "d", "e", "f", "g"),
}
"""Case -> what prompts call its embeddings, where that is not the stem of each file. P04's ``a`` is N04's name too.

Ordinary words (F07's inner name ``toy``, P01's stem ``renamed``) stay plain text, as they were without ti_fix.
"""

UNUSABLE = frozenset({"reject", "ignore"})
BROKEN_BESIDE = frozenset({("D08", "corrupt")})
"""Files of a usable case that are unusable by intention."""

SEEN = 1.0
"""Mean grey levels from which a picture counts as changed; rounding stays far below, an embedding is far above."""


@dataclass(frozen=True)
class Name:
    """One name to try.

    Attributes:
        case: id of the report.
        title: of the report.
        text: what a prompt says.
        usable: whether the embedding must work under SDXL.
        sd15: whether it must work under SD1.5 too; a name that only a conversion brings is not there.
    """

    case: str
    title: str
    text: str
    usable: bool
    sd15: bool

    @property
    def prompt(self) -> str:
        return f"photo of {self.text}"


@dataclass(frozen=True)
class Tried:
    """What a name did in a prompt.

    Attributes:
        changed: mean grey levels to the picture of the same words without the files.
        error: the WebUI's error, empty where it drew.
    """

    changed: float = 0.0
    error: str = ""

    @property
    def word(self) -> str:
        """For the table."""
        if self.error:
            return f"error: {self.error[:80]}"
        return f"changed {self.changed:.1f}" if self.changed > SEEN else "plain text"


@dataclass(frozen=True)
class Row:
    """A name's line in the table; `sd15` is None where it was not tried with an SD1.5 model."""

    name: Name
    listed: bool
    tried: Tried
    sd15: Tried | None = None

    @property
    def title(self) -> str:
        """In one line."""
        return f"{self.name.case} {self.name.text}: {'usable' if self.name.usable else 'left out'}"

    @property
    def faults(self) -> list[str]:
        """What is not as it must be."""
        found = [f"SDXL: {self.tried.error}"] if self.tried.error else []
        if (self.tried.changed > SEEN) != self.name.usable:
            found.append("plain text" if self.name.usable else "it changes the picture")
        if self.listed != self.name.usable:
            found.append("listed" if self.listed else "not listed")
        if self.sd15 and not self.sd15.changed > SEEN:
            found.append(f"SD1.5: {self.sd15.word}")
        return found

    def cells(self) -> list[str]:
        """Case, name, what must happen, what happens."""
        must = "usable" if self.name.usable else "left out"
        sd15 = self.sd15.word if self.sd15 else "–"
        listed = "yes" if self.listed else "no"
        verdict = "; ".join(self.faults) or "ok"
        return [self.name.case, self.name.title, self.name.text, must, listed, self.tried.word, sd15, verdict]


HEAD = ["case", "what it is", "name", "must be", "listed", "its picture", "SD1.5 loaded", "verdict"]


def names(wanted: str = "") -> list[Name]:
    """Every name of every case that comes as embedding files.

    Args:
        wanted: beginnings of the ids of cases, separated by commas; empty for all.
    """
    begin = tuple(filter(None, wanted.split(","))) or ("",)
    chosen = [case for case in cases().values() if is_file_case(case) and case["id"].startswith(begin)]
    return [name for case in chosen for name in _names_of(case)]


def is_file_case(case: dict[str, Any]) -> bool:
    """Whether a case is about files in an embeddings folder."""
    return bool(case["expect"]["verdict_on_sdxl"] != "n/a")


def _names_of(case: dict[str, Any]) -> Iterator[Name]:
    expect = case["expect"]
    usable = expect["verdict_on_sdxl"] not in UNUSABLE
    sd15 = expect.get("on_sd15_model") in ("load", "repair")
    for text in NAMES.get(case["id"]) or _stems(case["files"]):
        works = usable and (case["id"], text) not in BROKEN_BESIDE
        yield Name(case["id"], case["title"], text, works, works and sd15 and not text.endswith("-ti"))


def _stems(files: list[dict[str, Any]]) -> list[str]:
    paths = [Path(each["path"]) for each in files]
    opened = [path for path in paths if path.suffix.lower() in TENSOR_ENDINGS | PICTURE_ENDINGS]
    return list({path.stem.lower(): path.stem for path in reversed(opened) if path.name[0] != "."}.values())[::-1]


def put(where: Path, wanted: Container[str] | None = None) -> None:
    """Write each case into a sub-folder of its own; all of them where none is named."""
    for case in cases().values():
        if is_file_case(case) and (wanted is None or case["id"] in wanted):
            shutil.copytree(folder() / "handover" / case["id"], where / case["id"], dirs_exist_ok=True)


def tried(webui: Client, without: dict[str, Picture], prompt: str) -> Tried:
    """One prompt, against its picture without the files."""
    try:
        return Tried(changed=webui.picture(prompt, steps=1).differs(without[prompt]))
    except Failed as error:
        return Tried(error=str(error))


def markdown(rows: list[Row]) -> str:
    """The table."""
    lines = [HEAD, ["---"] * len(HEAD), *(row.cells() for row in rows)]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines
    )
