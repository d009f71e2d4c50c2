"""Small pieces of HTML; every text of a stranger goes through `shown`."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable

from ti_fix.jobs import JobState
from ti_fix.ui.words import TEXTS, VERDICTS


def shown(text: object) -> str:
    """Text for HTML and attributes: signs of HTML escaped, invisible characters made visible."""
    return html.escape("".join(map(_visible, str(text))), quote=True)


def _visible(char: str) -> str:
    kind = unicodedata.category(char)
    if kind in ("Cc", "Cf", "Cs", "Zl", "Zp") and char not in "\t\n":
        return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"
    return char


def name(text: object) -> str:
    """A name that cannot change the direction of what stands around it."""
    return f"<bdi>{shown(text)}</bdi>"


def counted(vectors: int) -> str:
    """How many vectors, in words."""
    return f"{vectors} <span>{TEXTS['one_vector' if vectors == 1 else 'some_vectors']}</span>"


def badge(verdict: str) -> str:
    """The coloured word for a verdict; the meaning shows on hovering."""
    word, meaning = VERDICTS[verdict]
    return f'<span class="badge {verdict}" title="{shown(meaning)}">{shown(word)}</span>'


def button(word: str, command: str, *, kind: str = "", label: str = "", pressed: bool | None = None) -> str:
    """A button that sends a command to the page's one channel.

    Args:
        word: its text, as HTML.
        command: what is sent when it is pressed.
        kind: style class.
        label: what a screen reader says instead of the text.
        pressed: for a button that stays down.
    """
    state = "" if pressed is None else f' aria-pressed="{str(pressed).lower()}"'
    about = f' aria-label="{shown(label)}"' if label else ""
    return f'<button type="button" class="{kind}" data-ti-fix="{shown(command)}"{state}{about}>{word}</button>'


def go_to(word: str, page: str, command: str) -> str:
    """A button that opens another page and sends it a command.

    Args:
        word: its text.
        page: name of the page.
        command: what is sent once that page is there.
    """
    return f'<button type="button" class="step" data-ti-fix-to="{page}:{shown(command)}">{shown(word)}</button>'


def empty(title: str, advice: str, more: Iterable[str] = ()) -> str:
    """What stands where a list would stand; says what to do."""
    lines = "".join(f"<code>{name(line)}</code>" for line in more)
    return f'<div class="empty"><strong>{shown(title)}</strong><p>{shown(advice)}</p>{lines}</div>'


def message(text: str, kind: str = "good") -> str:
    """An outcome: ``good``, ``bad`` (read out at once) or ``info``."""
    role = "alert" if kind == "bad" else "status"
    return f'<div class="message {kind}" role="{role}">{shown(text)}</div>' if text else ""


def progress(state: JobState) -> str:
    """A bar with what is done, how much and how long it still takes."""
    done, total = state.progress.done, state.progress.total
    share = f"{100 * done / total:.0f}" if total else "0"
    count = f"{done:,} <span>{TEXTS['of']}</span> {total:,}" if total else ""
    left = f"{duration(state.seconds_left)} <span>{TEXTS['left']}</span>" if state.seconds_left is not None else ""
    said = " · ".join(filter(None, (count, left)))
    now = shown(TEXTS["stopping"]) if state.status == "stopping" else name(state.progress.note)
    return (
        f'<div class="progress" role="progressbar" aria-valuemin="0" aria-valuemax="100" aria-valuenow="{share}"'
        f' aria-label="{shown(state.title)}"><div class="told"><strong>{shown(state.title)}</strong>'
        f"<span>{said}</span></div>"
        f'<div class="track"><i style="width:{share}%"></i></div><small>{now}</small></div>'
    )


def duration(seconds: float) -> str:
    """Seconds as people say them: ``40 s``, ``3 min``, ``2 h 5 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def size(count: int) -> str:
    """Bytes as people say them."""
    if count < 1000:
        return f"{count} bytes"
    number, unit = (count / 1e3, "kB") if count < 1e6 else (count / 1e6, "MB")
    return f"{number:.3g} {unit}"
