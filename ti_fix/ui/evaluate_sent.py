"""What other places send to the Evaluate page: an embedding, pictures to compare with, a picture whose settings count.

Plain values in and out; knows no Gradio.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ti_fix.errors import WrongUse
from ti_fix.evaluate import PLACE
from ti_fix.ui import markup
from ti_fix.ui.desk import Desk
from ti_fix.ui.evaluate_handlers import choices
from ti_fix.ui.evaluate_words import TEXTS
from ti_fix.ui.guard import guarded
from ti_fix.ui.library import Entry

if TYPE_CHECKING:
    from ti_fix.evaluate.infotext import Infotext


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """What changes in the form; None stays as it is.

    Attributes:
        status: HTML.
        choices: (label, id) of the embeddings.
        entry: label of the chosen one.
        prompts: one a line.
        references: paths of pictures.
        values: settings by name.
    """

    status: str | None = None
    choices: tuple[tuple[str, str], ...] | None = None
    entry: str | None = None
    prompts: str | None = None
    references: tuple[str, ...] | None = None
    values: Mapping[str, Any] = field(default_factory=dict)


def _said(message: str) -> Filled:
    return Filled(status=message)


safe = guarded(_said)


@safe
def commanded(desk: Desk, command: str) -> Filled:
    """``take:WHAT``: an embedding, by its id or by the name that prompts call."""
    verb, _, what = command.partition(":")
    if verb != "take":
        return Filled()
    desk.library.refreshed()
    listed = choices(desk)
    known = {id_ for _, id_ in listed}
    entry = next((e for e in desk.library.entries if e.id in known and what in (e.id, e.trigger)), None)
    if entry is None:
        raise WrongUse("This embedding cannot be evaluated under the loaded model; the Files page says why.")
    return Filled(status="", choices=listed, entry=_label(listed, entry))


@safe
def pictures_sent(known: Sequence[str], sent: Sequence[str]) -> Filled:
    """Pictures join those that are there.

    Args:
        known: paths of the page's pictures.
        sent: paths of the new ones.
    """
    together = tuple(dict.fromkeys((*known, *sent)))
    return Filled(status=markup.message(f"{TEXTS['sent_pictures']} {len(together):,}", "info"), references=together)


@safe
def settings_sent(desk: Desk, path: str) -> Filled:
    """Prompt and settings of a picture that a WebUI made; the embedding that its prompt calls is chosen."""
    from ti_fix.evaluate.infotext import in_picture  # the WebUI waits for this module at its start

    told = in_picture(path)
    desk.library.refreshed()
    listed = choices(desk)
    known = {id_ for _, id_ in listed}
    entries = [entry for entry in desk.library.entries if entry.id in known]
    called, negative = _called(entries, told)
    prompt = told.prompt if called is None or negative else _word(called).sub(PLACE, told.prompt)
    rest = _without(told.negative_prompt, called) if called and negative else told.negative_prompt
    values = {**told.settings, "negative": negative, "negative_prompt": rest}
    said = markup.message(TEXTS["sent_settings"], "info")
    if called is None:
        said = markup.message(TEXTS["sent_no_embedding"], "bad")
    return Filled(
        status=said, choices=listed, entry=_label(listed, called) if called else None, prompts=prompt, values=values
    )


def _label(listed: Iterable[tuple[str, str]], entry: Entry) -> str:
    return next(label for label, id_ in listed if id_ == entry.id)


def _called(entries: Iterable[Entry], told: Infotext) -> tuple[Entry | None, bool]:
    """The embedding that comes first in the prompt, or else in the negative prompt; whether it was the latter."""
    for text, negative in ((told.prompt, False), (told.negative_prompt, True)):
        places = [(match.start(), entry) for entry in entries if (match := _word(entry).search(text))]
        if places:
            return min(places, key=lambda each: each[0])[1], negative
    return None, False


def _word(entry: Entry) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w-]){re.escape(entry.trigger)}(?![\w-])", re.IGNORECASE)


def _without(text: str, entry: Entry) -> str:
    """The negative prompt without the embedding, which the evaluation puts in front of it by itself."""
    return re.sub(r"\s*,(\s*,)+", ",", _word(entry).sub("", text)).strip(" ,")
