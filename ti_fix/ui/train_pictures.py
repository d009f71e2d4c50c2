"""The pictures of a run on the page: taken in, shown with their captions, captions changed in place, left out again."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageOps

from ti_fix.errors import TiFixError, WrongUse
from ti_fix.formats.write import file_name, write_bytes
from ti_fix.train.captions import one_line
from ti_fix.train.dataset import CAPTION_ENDINGS, caption_beside, pictures_in
from ti_fix.train.pictures import ENDINGS
from ti_fix.ui import markup
from ti_fix.ui.markup import shown
from ti_fix.ui.train_live import thumbnail
from ti_fix.ui.train_words import TEXTS

SHOWN = 60
"""Pictures that are drawn; more are counted."""

SMALL = 160
"""Pixels along the longer side of a thumbnail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Album:
    """A folder for uploaded pictures.

    Attributes:
        folder: where they lie; made when the first arrives.
    """

    folder: Path

    @property
    def folders(self) -> tuple[str, ...]:
        """The folder as a training setting; nothing while it is empty."""
        return (str(self.folder),) if self.folder.is_dir() and any(self.folder.iterdir()) else ()

    def take(self, files: Sequence[str]) -> int:
        """Copy pictures, and captions in text files of the same name; how many files were new.

        Raises:
            TiFixError: one cannot be copied, or is no picture.
        """
        new = 0
        for file in map(Path, files):
            ending = file.suffix.lower()
            if ending not in ENDINGS and ending not in CAPTION_ENDINGS:
                raise WrongUse(f"{file.name} is no picture; add .png, .jpg, .webp and the like.")
            target = self.folder / (file_name(file.stem) + ending)
            if target.exists():
                continue
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)
            except OSError as error:
                raise TiFixError(f"{file.name} cannot be kept ({error.strerror}); free some disk space.") from error
            new += 1
        return new

    def remove(self, path: Path) -> None:
        """Take the copy of a picture and its caption away.

        Raises:
            WrongUse: it lies elsewhere, and is the user's own.
        """
        if path.parent != self.folder:
            raise WrongUse(f"{path.name} lies in {path.parent}; take it out of that folder yourself.")
        for each in (path, *(path.with_suffix(ending) for ending in CAPTION_ENDINGS)):
            with contextlib.suppress(FileNotFoundError):
                each.unlink()


def new_album(root: Path) -> Album:
    """A folder that is not there yet, named by the time."""
    name = time.strftime("%Y-%m-%d %H.%M.%S")
    taken = sum(1 for path in root.glob(f"{name}*")) if root.is_dir() else 0
    return Album(folder=root / (f"{name} {taken + 1}" if taken else name))


def find(folders: Sequence[str], id_: str) -> Path:
    """A picture by the id that `gallery` gave it.

    Raises:
        WrongUse: there is none.
    """
    for path in pictures_in(folders):
        if _id(path) == id_:
            return path
    raise WrongUse("That picture is not there any more; reload the page.")


def write_caption(path: Path, text: str) -> None:
    """Write a picture's caption into the file beside it; an empty one takes the file away.

    Raises:
        TiFixError: it cannot be written.
    """
    words, known = one_line(text), caption_beside(path)
    file = known[0] if known else path.with_suffix(CAPTION_ENDINGS[0])
    if words:
        write_bytes(file, words.encode("utf-8"), overwrite=True)
    elif known:
        file.unlink()


def gallery(folders: Sequence[str], own: Album) -> str:
    """The pictures of the folders, each with its caption to change, as HTML.

    Raises:
        WrongUse: a folder does not exist.
    """
    paths = pictures_in(folders)
    if not paths:
        return markup.empty(TEXTS["no_pictures"], TEXTS["no_pictures_do"])
    captioned = sum(caption_beside(path) is not None for path in paths)
    head = (
        f'<p class="hint"><b>{len(paths):,}</b> <span>{shown(TEXTS["pictures"])}</span> · '
        f"<b>{captioned:,}</b> <span>{shown(TEXTS['with_captions'])}</span></p>"
    )
    rest = len(paths) - SHOWN
    more = f'<p class="hint"><b>{rest:,}</b> <span>{shown(TEXTS["more"])}</span></p>' if rest > 0 else ""
    cards = "".join(_card(path, removable=path.parent == own.folder) for path in paths[:SHOWN])
    return f'{head}<ul class="album">{cards}</ul>{more}'


def _card(path: Path, *, removable: bool) -> str:
    picture, size = _thumbnail(path, path.stat().st_mtime_ns)
    known = caption_beside(path)
    caption = one_line(known[1].text) if known else ""
    remove = markup.button("×", f"remove:{_id(path)}", kind="remove", label=f"{TEXTS['remove']} {path.name}")
    return (
        f'<li><div class="picture"><img src="{picture}" alt="{shown(path.name)}" title="{shown(path.name)}">'
        f"{remove if removable else ''}<small>{size}</small></div>"
        f'<textarea rows="2" data-ti-fix-edit="caption:{_id(path)}" placeholder="{shown(TEXTS["caption_empty"])}"'
        f' aria-label="{shown(TEXTS["caption_of"])} {shown(path.name)}">{shown(caption)}</textarea></li>'
    )


def _id(path: Path) -> str:
    return hashlib.sha256(str(path).encode("utf-8", "surrogatepass")).hexdigest()[:16]


@functools.lru_cache(maxsize=512)
def _thumbnail(path: Path, _changed: int) -> tuple[str, str]:
    """A small picture as a data address, and the size of the large one; empty where it cannot be opened."""
    try:
        with Image.open(path) as image:
            upright = ImageOps.exif_transpose(image)
            return thumbnail(upright, SMALL), f"{upright.width} × {upright.height}"
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return "", ""
