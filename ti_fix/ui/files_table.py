"""The list of the Files page: filter, search, and the table as HTML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ti_fix.repair.names import fold
from ti_fix.ui import markup
from ti_fix.ui.library import Entry
from ti_fix.ui.words import ALL, LAST_PICTURE, REASON_SEVERITY, TABLE, TEXTS, VERDICTS

PAGE_ROWS = 50
"""Rows of one page; a browser draws them at once, thousands it does not."""

EVERYTHING = "all"
USED = "used"
CHOICES = (EVERYTHING, *VERDICTS, USED)


@dataclass(slots=True, kw_only=True)
class Latest:
    """What a window has come to look at last, for a handler that was slow and knows only what it began with.

    Attributes:
        view: as the last handler has left it.
        search: what was searched for then.
    """

    view: View | None = None
    search: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What one browser window looks at.

    Attributes:
        latest: shared by all views of the window.
        show: a verdict, ``all`` or ``used``.
        page: counted from 0.
        chosen: id of the embedding whose details are shown.
        told: number of the job whose outcome it has shown last.
    """

    show: str = EVERYTHING
    page: int = 0
    chosen: str = ""
    told: int = 0
    latest: Latest = field(default_factory=Latest, compare=False, repr=False)


def is_used(entry: Entry, used: Iterable[str]) -> bool:
    """Whether the newest picture used it, under any of its names."""
    called = {fold(each) for each in used}
    return any(fold(each) in called for each in (entry.trigger, *entry.judged.aliases))


def found(entries: Iterable[Entry], search: str) -> list[Entry]:
    """Those that hold every word of the search."""
    words = search.casefold().split()
    return [entry for entry in entries if all(word in entry.searched for word in words)]


def filtered(entries: Iterable[Entry], show: str, used: frozenset[str]) -> list[Entry]:
    """Those with a verdict, or those of the newest picture."""
    if show == EVERYTHING:
        return list(entries)
    if show == USED:
        return [entry for entry in entries if is_used(entry, used)]
    return [entry for entry in entries if entry.verdict == show]


def chips(entries: Sequence[Entry], show: str, used: frozenset[str]) -> str:
    """The filter: a button for each verdict with how many there are."""
    counts = Counter(entry.verdict for entry in entries)
    counts[EVERYTHING] = len(entries)
    counts[USED] = sum(is_used(entry, used) for entry in entries) if used else 0
    drawn = "".join(_chip(each, counts[each], chosen=each == show) for each in CHOICES)
    return f'<div class="chips" role="group" aria-label="{TEXTS["show"]}">{drawn}</div>'


def _chip(choice: str, count: int, *, chosen: bool) -> str:
    word = {EVERYTHING: ALL, USED: LAST_PICTURE}.get(choice) or VERDICTS[choice][0]
    inside = f'<i class="dot {choice}"></i><span>{markup.shown(word)}</span><b>{count:,}</b>'
    kind = "chip" if count or chosen or choice == EVERYTHING else "chip none"
    return markup.button(inside, f"show:{choice}", kind=kind, pressed=chosen)


def table(entries: Sequence[Entry], view: View, used: frozenset[str]) -> str:
    """One page of rows, with the way to the others below.

    Args:
        entries: all that passed search and filter.
        view: which page, and which row is chosen.
        used: triggers of the newest picture.
    """
    page = clamped(view.page, len(entries))
    rows = entries[page * PAGE_ROWS : (page + 1) * PAGE_ROWS]
    head = "".join(f'<th scope="col" class="{key}">{markup.shown(word)}</th>' for key, word in TABLE.items())
    body = "".join(_row(entry, chosen=entry.id == view.chosen, used=is_used(entry, used)) for entry in rows)
    return (
        f'<div class="rows" tabindex="-1"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        f"{_pages(page, len(entries))}"
    )


def clamped(page: int, count: int) -> int:
    """A page that exists."""
    return max(0, min(page, (count - 1) // PAGE_ROWS))


def _row(entry: Entry, *, chosen: bool, used: bool) -> str:
    open_ = markup.button(markup.name(entry.trigger), f"open:{entry.id}", kind="name", pressed=chosen)
    where = " + ".join(map(markup.name, entry.where))
    where_plain = markup.shown(" + ".join(entry.where))
    made_for = entry.judged.made_for
    dot = f'<i class="dot used" title="{LAST_PICTURE}"></i><span class="hear">{TEXTS["used"]}</span>' if used else ""
    cells = {
        "name": f'<div>{open_}{dot}</div><small title="{where_plain}">{where}</small>',
        "made_for": f'<span class="pill">{markup.shown(made_for.title)}</span>' if made_for else "",
        "vectors": str(vectors(entry) or ""),
        "verdict": markup.badge(entry.verdict),
        "reason": f"<div>{markup.shown(reason(entry))}</div>",
    }
    drawn = "".join(f'<td class="{key}">{cell}</td>' for key, cell in cells.items())
    return f'<tr class="{"chosen" if chosen else ""}" data-ti-fix="open:{entry.id}">{drawn}</tr>'


def vectors(entry: Entry) -> int:
    """How many tokens of a prompt it takes, 0 where nothing could be read."""
    return max((len(each) for each in entry.about["norms"].values()), default=0)


def reason(entry: Entry) -> str:
    """Why it has its verdict, in a line; empty for a healthy file."""
    result = entry.judged.result
    worst = [f for severity in REASON_SEVERITY for f in result.findings if f.severity == severity]
    if entry.verdict == "repair":
        return " ".join(result.applied)
    if not worst:
        return ""
    return worst[0].message.removeprefix(f"{entry.paths[0].name}: ")


def _pages(page: int, count: int) -> str:
    if count <= PAGE_ROWS:
        return ""
    last = (count - 1) // PAGE_ROWS
    first_row, last_row = page * PAGE_ROWS + 1, min(count, (page + 1) * PAGE_ROWS)
    back = markup.button(markup.shown(TEXTS["previous"]), f"page:{page - 1}", kind="step") if page else ""
    on = markup.button(markup.shown(TEXTS["next"]), f"page:{page + 1}", kind="step") if page < last else ""
    place = f"<span>{first_row:,}–{last_row:,}</span> <span>{TEXTS['of']}</span> <span>{count:,}</span>"
    return f'<div class="pages">{back}{place}{on}</div>'
