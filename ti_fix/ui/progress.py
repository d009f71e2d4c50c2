"""A running job on a page: its bar, its end in words, and the row with Stop that every page draws alike.

A page that is opened later, or again, finds the job and shows the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ti_fix.jobs import Job, JobState
from ti_fix.ui import markup

WATCH = 0.4
"""Seconds between two looks at a running job."""

SHOWN_PROBLEMS = 20
"""Problems of a job that are listed; more are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The last event of a job: what it came to, as sentences.

    Attributes:
        text: for the user.
        problems: what could not be done, a sentence each.
    """

    text: str
    problems: tuple[str, ...] = ()


def watched(job: Job, every: float | None = None) -> Iterator[tuple[JobState, str]]:
    """What a job is and the HTML of its status: bars while it runs, at last its outcome.

    Args:
        job: where it runs.
        every: seconds between two looks.
    """
    for state in job.watch(WATCH if every is None else every):
        if state.active:
            yield state, markup.progress(state)
    yield state, outcome(job, state)


def outcome(job: Job, state: JobState) -> str:
    """The end of a job in words (HTML): its last `Outcome`, or why it failed; nothing before the first job."""
    if state.status == "failed":
        return markup.message(state.message, "bad")
    told = [event for event in job.events() if isinstance(event, Outcome)]
    if not told:
        return markup.message("Stopped.", "info") if state.status == "stopped" else ""
    more = len(told[-1].problems) - SHOWN_PROBLEMS
    problems = [markup.message(problem, "bad") for problem in told[-1].problems[:SHOWN_PROBLEMS]]
    problems += [markup.message(f"… and {more:,} more of this kind.", "bad")] if more > 0 else []
    return markup.message(told[-1].text) + "".join(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The components of a page's progress row."""

    status: Any
    stop: Any


def draw_row(page: str, stop_word: str) -> Row:
    """Draw the row into the block that is open; further buttons may follow it in the same Gradio row.

    Args:
        page: name of the page, for element ids (``ti_fix_<page>_status``, ``ti_fix_<page>_stop``).
        stop_word: text of the button, hidden until a job runs.
    """
    import gradio as gr

    from ti_fix.ui import compat

    status = compat.html(f"ti_fix_{page}_status")
    stop = gr.Button(stop_word, variant="stop", size="sm", visible=False, elem_id=f"ti_fix_{page}_stop")
    return Row(status=status, stop=stop)


TAKE_COMMAND = "() => [window.tiFixCommand || '']"
"""For a handler whose one input is the channel's command: what a text box holds may lag behind a press."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """Hidden components through which `javascript/ti_fix.js` reaches a page.

    Attributes:
        command: a text box that is handed to the handler of `send`.
        send: pressed when an element with ``data-ti-fix`` is; what it holds arrives as the command.
        opened: pressed when the page comes into sight, also after a reload: take up a running job here.
    """

    command: Any
    send: Any
    opened: Any


def draw_channel(page: str) -> Channel:
    """Draw a page's channel, inside its element ``ti_fix_<page>_page``."""
    import gradio as gr

    with gr.Row(elem_id=f"ti_fix_{page}_channel", elem_classes=["ti_fix_channel"]):
        command = gr.Textbox(show_label=False, elem_id=f"ti_fix_{page}_command")
        send = gr.Button("send", elem_id=f"ti_fix_{page}_send")
        opened = gr.Button("opened", elem_id=f"ti_fix_{page}_opened")
    return Channel(command=command, send=send, opened=opened)
