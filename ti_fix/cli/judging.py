"""Judges, pictures and prompts of the commands that score."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps, UnidentifiedImageError

from ti_fix.cli.standalone import device_of
from ti_fix.errors import TiFixError, WrongUse
from ti_fix.evaluate import Backbone, PictureJudge, dino_from_file, from_file, from_state, interrogator_file, named
from ti_fix.evaluate.features import OFFERS

PICTURES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp"})
SMALL_JUDGE = "small"


def add_judge(parser: Any) -> None:
    """The arguments that say who scores."""
    parser.add_argument(
        "--judge",
        metavar="J",
        help="a CLIP: weights in a file, open_clip's ARCHITECTURE/WEIGHTS, or small (for the small models). "
        "Without it the one that the WebUI's Interrogate has fetched before is taken.",
    )
    parser.add_argument("--clip-folder", metavar="F", help="where the WebUI keeps its CLIP (--clip-models-path)")
    parser.add_argument("--dino", metavar="FILE", help="weights of DINO or DINOv2, for a second opinion on likeness")
    parser.add_argument("--download", action="store_true", help="yes, fetch the judge if it is not here")


def judge_of(arguments: argparse.Namespace) -> Backbone:
    """The judge that the arguments name.

    Raises:
        TiFixError: there is none, or it must be fetched and nobody has agreed.
    """
    device, name = device_of(arguments.device), arguments.judge
    if name is None and (getattr(arguments, "model", None) or "").startswith("small:"):
        name = SMALL_JUDGE
    if name == SMALL_JUDGE:
        return small_judge()
    if name is None:
        found = interrogator_file([Path(arguments.clip_folder)] if arguments.clip_folder else [])
        if found is None:
            offers = "\n  ".join(map(str, OFFERS.values()))
            raise WrongUse(
                "no judge is here: nobody has used the WebUI's Interrogate yet. Give a file with --judge FILE, or one "
                f"of these with --judge NAME --download: {offers}"
            )
        return from_file(found, device=device)
    if Path(name).is_file():
        return from_file(Path(name), device=device)
    return named(name, device=device, download=arguments.download)


def small_judge() -> Backbone:
    """The small CLIP that ships with ti_fix; it knows the small models' pictures and nothing else."""
    from ti_fix.small import clip

    try:
        state = clip.open_clip_state()
    except FileNotFoundError:
        raise TiFixError("The small judge is not part of this version yet; give another one with --judge.") from None
    return from_state(state, "small CLIP of ti_fix", {**clip.CONFIG, "resampling": "bilinear"})


def dino_of(arguments: argparse.Namespace) -> PictureJudge | None:
    """The second judge, None without."""
    return dino_from_file(Path(arguments.dino), device=device_of(arguments.device)) if arguments.dino else None


def pictures_in(folder: Path) -> list[Path]:
    """The pictures of a folder, by name.

    Raises:
        WrongUse: there is no such folder, or no picture in it.
    """
    if not folder.is_dir():
        raise WrongUse(f"{folder} is no folder; give one with pictures in it.")
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() in PICTURES and "-mask" not in path.stem)
    if not found:
        raise WrongUse(f"{folder} holds no picture ({', '.join(sorted(PICTURES))}).")
    return found


def opened(path: Path) -> Image.Image:
    """A picture, upright.

    Raises:
        WrongUse: it cannot be read.
    """
    try:
        with Image.open(path) as image:
            return ImageOps.exif_transpose(image).convert("RGB")
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise WrongUse(f"{path} cannot be read as a picture ({error}); take it out of the folder.") from None


def mask_of(path: Path) -> Image.Image | None:
    """``NAME-mask.png`` beside a picture: white where its subject is."""
    beside = path.with_name(f"{path.stem}-mask.png")
    return opened(beside).convert("L") if beside.is_file() else None


def caption_of(path: Path) -> str:
    """The text file beside a picture, empty without one."""
    beside = path.with_suffix(".txt")
    return beside.read_text(encoding="utf-8", errors="replace").strip() if beside.is_file() else ""


def texts_in(given: Sequence[str]) -> list[str]:
    """Prompts from the command line: texts as they are, files line by line (empty lines and # are left out)."""
    found: list[str] = []
    for each in given:
        path = Path(each)
        if path.suffix == ".txt" and path.is_file():
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            found += [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        else:
            found.append(each)
    return found
