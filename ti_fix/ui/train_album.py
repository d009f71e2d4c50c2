"""The pictures on the Train page: what its controls do with them, and captions by the host's own interrogators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ti_fix.errors import WrongUse
from ti_fix.train import TrainConfig
from ti_fix.ui import markup, progress, train_pictures
from ti_fix.ui.desk import Desk
from ti_fix.ui.guard import owners_only
from ti_fix.ui.train_captions import missing
from ti_fix.ui.train_shown import FORM, Request, Shown, Window, buttons, safe
from ti_fix.ui.train_words import TEXTS

SETTINGS = ("folders", "resolution", "buckets", "scales", "masks", "alpha", "background")
"""What decides which pictures are there and how they are cut; controls hand over their values in this order."""


@safe
@owners_only
def pictures_added(desk: Desk, files: Sequence[str], *values: Any) -> Shown:
    """Pictures were dropped."""
    desk.training.album.take(files)
    return Shown(album=album(desk, chosen(desk, values)), status="")


@safe
def album_changed(desk: Desk, *values: Any) -> Shown:
    """Other folders were named, or pictures are to be cut in another way."""
    return Shown(album=album(desk, chosen(desk, values)), status="")


@safe
def new_pictures(desk: Desk, *values: Any) -> Shown:
    """Begin with no pictures; those of before stay on the disk."""
    desk.training.begin_album()
    return Shown(album=album(desk, chosen(desk, values)), status="")


@owners_only
def picture(desk: Desk, verb: str, what: str, asked: Request) -> Shown:
    """A caption was changed, or a picture is taken out.

    Args:
        desk: the page's.
        verb: ``caption`` or ``remove``.
        what: the picture's id, and for a caption its text behind a colon.
        asked: the form.
    """
    id_, _, text = what.partition(":")
    config = settings_of(desk, asked)
    path = train_pictures.find(_folders(desk, config), id_)
    if verb == "caption":
        train_pictures.write_caption(path, text)
        return Shown(status="")
    desk.training.album.remove(path)
    return Shown(album=album(desk, config), status="")


@owners_only
def captions(desk: Desk, window: Window, what: str, asked: Request) -> Iterator[Shown]:
    """Have the host caption the pictures that have no caption; nothing is downloaded before the user agrees.

    Args:
        desk: the page's.
        window: of the page.
        what: key of the interrogator, with ``:yes`` where the user has agreed to a download.
        asked: the form.
    """
    key, _, agreed = what.partition(":")
    captioner = next((each for each in desk.host.captioners if each.key == key), None)
    if captioner is None:
        raise WrongUse("That interrogator is not there any more; reload the page.")
    config = settings_of(desk, asked)
    paths = missing(_folders(desk, config))
    if not paths:
        raise WrongUse("Every picture has a caption; empty those that are to be written anew.")
    downloads = captioner.needed()
    if downloads and agreed != "yes":
        yield Shown(status=_ask(captioner.name, downloads, f"captions:{key}:yes"))
        return
    desk.training.caption(captioner, paths)
    window.turn += 1
    turn, job = window.turn, desk.training.captioning
    for state, status in progress.watched(job):
        if window.turn != turn:
            return
        drawn = album(desk, config) if not state.active else None
        yield Shown(status=status, album=drawn, buttons=buttons(desk))


def _ask(name: str, downloads: Sequence[str], command: str) -> str:
    text = (
        f"{name} is not complete on this computer. If you go on, the WebUI downloads {'; '.join(downloads)}. Nothing "
        "is downloaded otherwise."
    )
    return markup.message(text, "info") + markup.button(markup.shown(TEXTS["download"]), command, kind="step")


def album(desk: Desk, config: TrainConfig) -> str:
    """The pictures that a run with these settings would take, as HTML."""
    shown = replace(config, folders=_folders(desk, config))
    return train_pictures.gallery(shown, desk.training.album, desk.host.captioners)


def settings_of(desk: Desk, asked: Request) -> TrainConfig:
    """What the form says of the pictures."""
    given = {field.name: value for field, value in zip(FORM.fields, asked.values, strict=True)}
    return chosen(desk, [given[name] for name in SETTINGS])


def chosen(desk: Desk, values: Sequence[Any]) -> TrainConfig:
    """The defaults with values of controls; the last ones may be left out."""
    fields = {field.name: field for field in FORM.fields}
    read = {name: fields[name].read(value) for name, value in zip(SETTINGS, values, strict=False)}
    return replace(desk.training.defaults(), **read)


def _folders(desk: Desk, config: TrainConfig) -> tuple[str, ...]:
    if config.folders:
        desk.refuse_strangers()
    return tuple(dict.fromkeys((*desk.training.album.folders, *config.folders)))
