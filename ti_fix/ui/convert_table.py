"""The Convert page's results as HTML: for each embedding a card, for each vector a row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ti_fix.convert import KEPT
from ti_fix.embedding import ENCODERS, norms
from ti_fix.ui.convert_desk import Converted
from ti_fix.ui.convert_pictures import gallery
from ti_fix.ui.convert_words import TEXTS
from ti_fix.ui.markup import empty, message, name, shown

if TYPE_CHECKING:
    from ti_fix.convert import Row

MOST_ROWS = 32
"""Vectors of one embedding that are drawn; more are counted."""

MOST_CARDS = 50


def results(done: Sequence[Converted]) -> str:
    """All cards, the newest last."""
    if not done:
        return empty(TEXTS["no_result"], "")
    more = len(done) - MOST_CARDS
    cards = "".join(map(card, done[:MOST_CARDS]))
    return f'<div class="cards">{cards}</div>' + (f"<p>… {more:,}</p>" if more > 0 else "")


def card(each: Converted) -> str:
    """One embedding, before and after."""
    if each.conversion is None:
        return f'<section class="card"><h4>{name(each.name)}</h4>{message(each.problem, "bad")}</section>'
    done = each.conversion
    where = _where(each.path) if each.path else f"<p><span>{shown(TEXTS['not_written'])}</span></p>"
    found = "".join(message(f.message, "bad" if f.severity == "warning" else "info") for f in done.findings)
    return (
        f'<section class="card"><h4>{name(each.name)}</h4><p>{shown(done.message)}</p>{found}'
        f"{_table(each, done.rows)}{gallery(each.pictures)}{where}</section>"
    )


def _where(path: Path) -> str:
    """The written file, and what prompts call it: its stem."""
    return (
        f"<p><span>{shown(TEXTS['written'])}</span> <code>{name(str(path))}</code></p>"
        f"<p><span>{shown(TEXTS['in_prompt'])}</span> <code>{name(path.stem)}</code></p>"
    )


def _table(each: Converted, rows: Sequence[Row]) -> str:
    words = each.words or {}
    heads = [TEXTS["vector"], TEXTS["how"], TEXTS["likeness"]]
    heads += [f"{TEXTS['nearest']} {TEXTS['nearest_l' if key == 'clip_l' else 'nearest_g']}" for key in words]
    head = "".join(f"<th>{_head(text)}</th>" for text in heads)
    lengths = _lengths(each)
    body = "".join(
        f"<tr><td>{i + 1}{_length(lengths, i)}</td><td>{shown(TEXTS.get(row.method, row.method))}</td>"
        f"<td>{bar(row)}</td>{_words(words, i)}</tr>"
        for i, row in enumerate(rows[:MOST_ROWS])
    )
    more = len(rows) - MOST_ROWS
    body += f'<tr><td colspan="{len(heads)}">… {more:,}</td></tr>' if more > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _head(text: str) -> str:
    if text == TEXTS["likeness"]:
        return f'<span title="{shown(TEXTS["likeness_hint"])}">{shown(text)}</span>'
    first, _, second = text.partition(f"{TEXTS['nearest']} ")
    return f"<span>{shown(TEXTS['nearest'])}</span> <span>{shown(second)}</span>" if second else shown(first)


def _lengths(each: Converted) -> list[str]:
    """For each vector its lengths, the new half's behind an arrow."""
    assert each.before is not None and each.conversion is not None
    after = each.conversion.embedding.vectors
    columns = [[f"{ENCODERS[key].title} {n:.2f}" for n in norms(block)] for key, block in after.items()]
    return [" · ".join(parts) for parts in zip(*columns, strict=True)]


def _length(lengths: Sequence[str], i: int) -> str:
    return f'<small title="{shown(TEXTS["length"])}">{shown(lengths[i])}</small>'


def _words(words: dict[str, list[list[str]]], i: int) -> str:
    return "".join(f"<td>{', '.join(name(word) for word in rows[i])}</td>" for rows in words.values())


def bar(row: Row) -> str:
    """The expected likeness as a bar, its interval as a thin line, both as numbers for those who cannot see them."""
    if row.method == KEPT:
        return ""
    told = row.confidence
    low, high, middle = (round(100 * min(max(x, 0.0), 1.0)) for x in (told.low, told.high, told.expected))
    expected, least, most = (round(x, 2) + 0.0 for x in (told.expected, told.low, told.high))  # no minus zero
    said = f"{expected:.2f} ({least:.2f} – {most:.2f})"
    return (
        f'<div class="bar" role="img" aria-label="{said}"><i style="width:{middle}%"></i>'
        f'<b style="left:{low}%;width:{max(high - low, 1)}%"></b></div><small>{said}</small>'
    )
