"""Judge and pictures of an evaluation, from what the page was given."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from ti_fix.errors import WrongUse
from ti_fix.evaluate import Backbone, from_file, interrogator_file, named
from ti_fix.evaluate.features import OFFERS
from ti_fix.train.pictures import open_mask, open_picture
from ti_fix.ui.desk import Desk

NAMED = re.compile(r"[A-Za-z0-9][\w-]*/[\w-]+")
"""ARCHITECTURE/WEIGHTS of open_clip: nothing that begins as a path does or ends as a file does."""

MASK = "-mask"
"""End of the name of a picture that says where the subject of another is: white there."""


def judge_of(desk: Desk, name: str, *, download: bool = False) -> Backbone:
    """The judge from a file, by open_clip's name, the interrogator's, or the small models' own where one is loaded.

    Args:
        desk: of this process.
        name: a file, ARCHITECTURE/WEIGHTS, or empty for the one that is here.
        download: the user has agreed to fetch what is named.

    Raises:
        NeedsDownload: it is not here and nobody has agreed; tells size, licence and source.
        TiFixError: there is none; names what can be had.
    """
    name = name.strip()
    path = Path(name).expanduser()
    if name:
        by_name = NAMED.fullmatch(name) and not path.is_file()
        return named(name, download=download) if by_name else from_file(path)
    own = desk.host.judge()
    if own is not None:
        return own
    found = interrogator_file(desk.host.clip_folders)
    if found is None:
        offers = "; ".join(map(str, OFFERS.values()))
        raise WrongUse(
            "No judge is here, a CLIP that scores the pictures. Use the WebUI's Interrogate CLIP once, which fetches "
            f"one (890 MB), or give the weights of a CLIP as a file under Judge, or one of these names: {offers}."
        )
    return from_file(found)


def pictures_and_masks(paths: Sequence[str]) -> tuple[list[Image.Image], list[Image.Image | None]]:
    """Pictures, and the mask of each; no masks at all unless every picture has one.

    Raises:
        WrongUse: one is a mask of none.
        UnusablePicture: one cannot be read, or is too small.
    """
    named = {Path(path).stem: path for path in paths}
    plain = {stem: path for stem, path in named.items() if not stem.endswith(MASK)}
    masks = {stem.removesuffix(MASK): path for stem, path in named.items() if stem.endswith(MASK)}
    lonely = sorted(masks.keys() - plain.keys())
    if lonely:
        raise WrongUse(f"{lonely[0]}{MASK} is the mask of no picture; add {lonely[0]} too, or take it out.")
    pictures = [open_picture(Path(path)).image for path in plain.values()]
    if masks.keys() != plain.keys():
        return pictures, []
    return pictures, [open_mask(Path(masks[stem])) for stem in plain]
