"""The demo's page: what each part did, with its pictures beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from PIL import Image

_STYLE = (
    "body{font:16px/1.5 sans-serif;max-width:70em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse}td,th{border:1px solid #999;padding:.2em .6em;text-align:left}"
    "figure{margin:1em 0}img{max-width:100%}"
)


@dataclass(kw_only=True)
class Section:
    """What one part of the demo has to show.

    Attributes:
        title: its heading.
        lines: sentences.
        table: rows of cells, the first one the heading; may be empty.
        pictures: file -> what it shows.
    """

    title: str
    lines: list[str] = field(default_factory=list)
    table: list[tuple[str, ...]] = field(default_factory=list)
    pictures: dict[Path, str] = field(default_factory=dict)


def write_report(path: Path, sections: Sequence[Section]) -> Path:
    """Write the page; it names its pictures relative to its own folder."""
    parts = [_section(section, path.parent) for section in sections]
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>ti_fix demo</title><style>{_STYLE}</style>'
    path.write_text(f"{head}<h1>ti_fix demo</h1>{''.join(parts)}</html>\n", encoding="utf-8")
    return path


def strip(images: Sequence[Image.Image], path: Path) -> Path:
    """Pictures of one size side by side in one file."""
    width, height = images[0].size
    joined = Image.new("RGB", ((width + 4) * len(images) - 4, height), "white")
    for place, image in enumerate(images):
        joined.paste(image, (place * (width + 4), 0))
    path.parent.mkdir(parents=True, exist_ok=True)
    joined.save(path)
    return path


def _section(section: Section, folder: Path) -> str:
    rows = [
        "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) + "</tr>"
        for row, tag in zip(section.table, ["th"] + ["td"] * len(section.table), strict=False)
    ]
    table = f"<table>{''.join(rows)}</table>" if rows else ""
    figures = [
        f'<figure><figcaption>{escape(what)}</figcaption><img alt="{escape(what)}" '
        f'src="{escape(path.relative_to(folder).as_posix())}"></figure>'
        for path, what in section.pictures.items()
    ]
    lines = "".join(f"<p>{escape(line)}</p>" for line in section.lines)
    return f"<h2>{escape(section.title)}</h2>{lines}{table}{''.join(figures)}"
