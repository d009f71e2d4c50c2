"""What the controls of the Train page do; functions of plain values, which know no Gradio.

Each returns, or yields while something runs, a `Shown`: what is to be drawn anew. A None in it stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ti_fix.errors import WrongUse
from ti_fix.jobs import Job
from ti_fix.train import TrainConfig
from ti_fix.train.captions import NAME, one_line
from ti_fix.train.dataset import caption_beside, pictures_in
from ti_fix.train.history import Run
from ti_fix.ui import markup, progress, train_album, train_view
from ti_fix.ui.desk import Desk
from ti_fix.ui.guard import owners_only
from ti_fix.ui.train_desk import NameTaken
from ti_fix.ui.train_live import Live
from ti_fix.ui.train_shown import FORM, WATCH, Request, Shown, Window, buttons, safe, safe_steps
from ti_fix.ui.train_words import TEXTS


def config_of(desk: Desk, asked: Request) -> TrainConfig:
    """The settings that a request comes to.

    Raises:
        WrongUse: a value cannot be; says which.
    """
    if not asked.name.strip():
        raise WrongUse("Give it a name first: the word that you will write in prompts.")
    config = FORM.config(
        asked.values, desk.training.defaults(), name=asked.name.strip(), start_text=one_line(asked.what) or "*"
    )
    folders = tuple(dict.fromkeys((*desk.training.album.folders, *config.folders)))
    if not folders:
        raise WrongUse("Add pictures first: drop them on the field, or name a folder under Options, Pictures.")
    config = replace(config, folders=folders)
    return replace(config, template=_template(config, style=asked.style)) if config.template == "auto" else config


def _template(config: TrainConfig, *, style: bool) -> str:
    """What ``auto`` comes to here: captions that lack the name get it, and styles have sentences of their own."""
    texts = [found[1].text for path in pictures_in(config.folders) if (found := caption_beside(path))]
    if not texts:
        return "style" if style else "auto"
    if any(config.name.lower() in text.lower() or NAME in text for text in texts):
        return "auto"
    return f"[filewords], in the style of {NAME}" if style else f"{NAME}, [filewords]"


def request_of(config: TrainConfig, own: Sequence[str]) -> Request:
    """The form filled with settings; the page's own folders are not listed, and overwriting is asked for anew."""
    others = tuple(folder for folder in config.folders if folder not in own)
    what = "" if config.start_text == "*" else config.start_text
    values = tuple(FORM.values(replace(config, folders=others, overwrite=False)))
    return Request(name=config.name, what=what, style="style" in config.template, values=values)


@safe
def filled(desk: Desk, window: Window) -> Shown:
    """The page is opened, perhaps again: its form shows the run that goes on, or the defaults for the loaded model."""
    if window.filled:
        return Shown()
    window.filled = True
    return Shown(fill=_first(desk))


def _first(desk: Desk) -> Request:
    """What the form of a new page shows."""
    training = desk.training
    return request_of(training.live.config if training.live else training.defaults(), training.album.folders)


@safe_steps
def opened(desk: Desk, window: Window, *cut: Any) -> Iterator[Shown]:
    """The page comes into sight, perhaps again: find a run, and draw the pictures as the form says.

    Args:
        desk: the page's.
        window: of the page.
        cut: values of the controls of `train_album.SETTINGS`; those of a new page are not filled yet.
    """
    new, window.drawn = not window.drawn, True
    yield everything(desk, train_album.settings_of(desk, _first(desk)) if new else train_album.chosen(desk, cut))
    job = desk.training.checking if desk.training.checking.state.active else desk.training.job
    if job.state.number:
        yield from _watched(desk, window, job)


@safe_steps
@owners_only
def start(desk: Desk, window: Window, asked: Request) -> Iterator[Shown]:
    """Train."""
    yield from _begun(desk, window, asked, desk.training.start, desk.training.job)


@safe_steps
@owners_only
def check(desk: Desk, window: Window, asked: Request) -> Iterator[Shown]:
    """Look at everything before a run."""
    yield from _begun(desk, window, asked, desk.training.check, desk.training.checking)


def _begun(
    desk: Desk, window: Window, asked: Request, begin: Callable[[TrainConfig], None], job: Job
) -> Iterator[Shown]:
    """A name that is taken is told with the button that allows overwriting."""
    try:
        begin(config_of(desk, asked))
    except NameTaken as error:
        overwrite = next(field for field in FORM.fields if field.name == "overwrite")
        word = f"<span>{TEXTS['set']}</span> <span>{overwrite.about.label}</span> <span>{TEXTS['to']}</span> on"
        button = markup.button(word, 'remedy:{"overwrite": true}', kind="step")
        yield Shown(status=markup.message(str(error), "bad") + button)
        return
    yield from _watched(desk, window, job)


@safe_steps
@owners_only
def resume(desk: Desk, window: Window) -> Iterator[Shown]:
    """Go on with the run that was paused."""
    desk.training.resume()
    yield from _watched(desk, window, desk.training.job)


@safe
def pause(desk: Desk) -> Shown:
    """Free the WebUI after this step."""
    desk.training.pause()
    return Shown()


@safe
def stop(desk: Desk) -> Shown:
    """End after this step."""
    desk.training.stop()
    return Shown()


@safe
@owners_only
def save_now(desk: Desk) -> Shown:
    """Write the vectors as they are."""
    desk.training.save_now()
    return Shown()


@safe_steps
def commanded(desk: Desk, window: Window, command: str, asked: Request) -> Iterator[Shown]:
    """A button or a caption of what the page draws: ``caption:ID:TEXT``, ``remedy:{SETTING: VALUE}``, and so on."""
    verb, _, what = command.partition(":")
    if verb in ("caption", "remove"):
        yield train_album.picture(desk, verb, what, asked)
    elif verb == "captions":
        yield from train_album.captions(desk, window, what, asked)
    elif verb == "remedy":
        yield _remedied(asked, json.loads(what))
    elif verb == "again":
        yield _again(desk, _run(desk, what))
    elif verb == "use":
        yield from _use(desk, what)
    elif verb == "resume":
        yield from _resumed(desk, window, what)


@owners_only
def _resumed(desk: Desk, window: Window, name: str) -> Iterator[Shown]:
    desk.training.resume(_run(desk, name).config)
    yield from _watched(desk, window, desk.training.job)


def _remedied(asked: Request, wanted: Mapping[str, Any]) -> Shown:
    """The form with other values."""
    values, said = list(asked.values), []
    for place, field in enumerate(FORM.fields):
        if field.name in wanted:
            values[place] = field.shown(field.read(wanted[field.name]))
            said.append(f"{field.about.label} is now {values[place]}")
    status = markup.message(f"{', '.join(said)}. It counts from the next start.")
    return Shown(status=status, fill=replace(asked, values=tuple(values)))


def _again(desk: Desk, run: Run) -> Shown:
    """An earlier run's settings and pictures in the form."""
    own = [folder for folder in run.config.folders if Path(folder).parent == desk.training.pictures]
    desk.training.begin_album(Path(own[0]) if own else None)
    fill = request_of(replace(run.config, resume=False), own[:1])
    status = markup.message(f"The settings and pictures of {run.config.name} are in the form; change the name or not.")
    return Shown(fill=fill, album=train_album.album(desk, train_album.settings_of(desk, fill)), status=status)


@owners_only
def _use(desk: Desk, what: str) -> Iterator[Shown]:
    number, _, name = what.partition(":")
    step = None if number == "best" else int(number)
    desk.training.use_step(_run(desk, name), step)
    which = "the run's result" if step is None else f"the embedding of step {step:,}"
    yield Shown(status=markup.message(f"{name} is now {which}; prompts use it at once."))


def _run(desk: Desk, name: str) -> Run:
    for run in desk.training.runs():
        if run.config.name == name:
            return run
    raise WrongUse(f"There is no run {name!r} in the embeddings folder any more; reload the page.")


def everything(desk: Desk, config: TrainConfig) -> Shown:
    """All that the page draws, from what is known, with the pictures as these settings cut them."""
    training = desk.training
    record = training.found if training.checking.state.active else training.live or training.found
    return Shown(
        album=train_album.album(desk, config),
        live=_live(record),
        strip=train_view.strip(record.previews) if record else "",
        history=train_view.history(training.runs()),
        buttons=buttons(desk),
    )


def _watched(desk: Desk, window: Window, job: Job) -> Iterator[Shown]:
    """A job's progress until it ends, or another handler of this window draws."""
    window.turn += 1
    turn, drawn = window.turn, ("", "")
    record = desk.training.found if job is desk.training.checking else desk.training.live
    for state, status in progress.watched(job, WATCH):
        if window.turn != turn:
            return
        new = _live(record), train_view.strip(record.previews) if record else ""
        live, strip = (now if now != before else None for now, before in zip(new, drawn, strict=True))
        yield Shown(status=status, live=live, strip=strip, buttons=buttons(desk))
        drawn = new
        if not state.active:
            yield Shown(history=train_view.history(desk.training.runs()), buttons=buttons(desk))


def _live(record: Live | None) -> str:
    return train_view.live(record) if record is not None else markup.empty(TEXTS["idle"], TEXTS["idle_do"])
