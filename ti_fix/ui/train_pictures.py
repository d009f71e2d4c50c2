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

from PIL import Image

from ti_fix.errors import TiFixError, WrongUse
from ti_fix.formats.write import file_name, write_bytes
from ti_fix.train import TrainConfig
from ti_fix.train.buckets import views
from ti_fix.train.captions import one_line
from ti_fix.train.dataset import CAPTION_ENDINGS, caption_beside, mask_of, pictures_in
from ti_fix.train.pictures import ENDINGS, open_picture
from ti_fix.ui import markup
from ti_fix.ui.host import Captioner
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


def gallery(config: TrainConfig, own: Album, captioners: Sequence[Captioner] = ()) -> str:
    """The pictures of the folders, each with its caption to change and what is cut off, as HTML.

    Args:
        config: folders, and how pictures are cut.
        own: pictures of this folder can be taken out.
        captioners: who can write captions.

    Raises:
        WrongUse: a folder does not exist.
    """
    paths = pictures_in(config.folders)
    if not paths:
        return markup.empty(TEXTS["no_pictures"], TEXTS["no_pictures_do"])
    captioned = sum(caption_beside(path) is not None for path in paths)
    counted = TEXTS["picture" if len(paths) == 1 else "pictures"]
    head = (
        f'<p class="hint"><b>{len(paths):,}</b> <span>{shown(counted)}</span> · '
        f"<b>{captioned:,}</b> <span>{shown(TEXTS['with_captions'])}</span></p>"
    )
    rest = len(paths) - SHOWN
    more = f'<p class="hint"><b>{rest:,}</b> <span>{shown(TEXTS["more"])}</span></p>' if rest > 0 else ""
    framed = [(path, _framed(path, config)) for path in paths[:SHOWN]]
    cards = "".join(_card(path, frame, removable=path.parent == own.folder) for path, frame in framed)
    signs = {"shaded": any(f.cut for _, f in framed), "masked": any(f.masked for _, f in framed)}
    legend = " ".join(f"<span>{shown(TEXTS[key])}</span>" for key, there in signs.items() if there)
    hint = f'<p class="hint">{legend}</p>' if legend else ""
    return f'{head}<ul class="album">{cards}</ul>{more}{hint}{_by(captioners) if captioned < len(paths) else ""}'


def _by(captioners: Sequence[Captioner]) -> str:
    buttons = "".join(
        markup.button(f"<span>{shown(each.kind)}</span> ({shown(each.name)})", f"captions:{each.key}", kind="step")
        for each in captioners
    )
    return f'<div class="do"><span>{shown(TEXTS["caption_by"])}</span>{buttons}</div>' if buttons else ""


def _card(path: Path, frame: Frame, *, removable: bool) -> str:
    known = caption_beside(path)
    caption = one_line(known[1].text) if known else ""
    remove = markup.button("×", f"remove:{_id(path)}", kind="remove", label=f"{TEXTS['remove']} {path.name}")
    return (
        f'<li><div class="picture"><img src="{frame.picture}" alt="{shown(path.name)}" title="{shown(path.name)}">'
        f"{remove if removable else ''}<small>{frame.sizes}</small></div>"
        f'<textarea rows="2" data-ti-fix-edit="caption:{_id(path)}" placeholder="{shown(TEXTS["caption_empty"])}"'
        f' aria-label="{shown(TEXTS["caption_of"])} {shown(path.name)}">{shown(caption)}</textarea></li>'
    )


def _id(path: Path) -> str:
    return hashlib.sha256(str(path).encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A small picture with what a run leaves out of it.

    Attributes:
        picture: as a data address, empty where it cannot be opened.
        sizes: of the file, and of what is trained on.
        cut: whether something is cut off.
        masked: whether some places count less than others.
    """

    picture: str = ""
    sizes: str = ""
    cut: bool = False
    masked: bool = False


def _framed(path: Path, config: TrainConfig) -> Frame:
    mask = mask_of(path) if config.masks else None
    changed = tuple(each.stat().st_mtime_ns for each in (path, mask) if each)
    largest = max(config.scales, default=1.0)
    return _frame(path, mask, changed, config.resolution, not config.buckets, largest, config.alpha, config.background)


@functools.lru_cache(maxsize=512)
def _frame(
    path: Path,
    mask: Path | None,
    _changed: tuple[int, ...],
    resolution: int,
    square: bool,
    scale: float,
    alpha: str,
    background: str,
) -> Frame:
    try:
        found = open_picture(path, mask=mask, alpha=alpha, background=background)
        size = found.image.height, found.image.width
        view = views(0, size, resolution, square=square, scales=(scale,), flip=False)[0]
    except (TiFixError, ValueError):
        return Frame()
    masked = found.weight is not None and found.weight.getextrema() != (255, 255)
    image = found.image
    image.thumbnail((SMALL, SMALL))
    if masked and found.weight is not None:
        red = Image.blend(image, Image.new("RGB", image.size, "red"), 0.6)
        image = Image.composite(image, red, found.weight.resize(image.size))
    across, down = image.width / view.resized[1], image.height / view.resized[0]
    top, left = view.crop
    box = (left * across, top * down, (left + view.target[1]) * across, (top + view.target[0]) * down)
    x, y, right, below = (round(edge) for edge in box)
    cut = (x, y, right, below) != (0, 0, *image.size)
    if cut:
        dark = Image.blend(image, Image.new("RGB", image.size), 0.7)
        dark.paste(image.crop((x, y, right, below)), (x, y))
        image = dark
    of_file, trained = (f"{width} × {height}" for height, width in (size, view.target))
    sizes = of_file if of_file == trained else f"{of_file} → {trained}"
    return Frame(picture=thumbnail(image, SMALL), sizes=sizes, cut=cut, masked=masked)
