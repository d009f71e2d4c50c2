"""Judges, pictures and prompts of the commands that score."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from ti_fix.cli.standalone import device_of
from ti_fix.errors import TiFixError, WrongUse
from ti_fix.evaluate import Backbone, PictureJudge, dino_from_file, from_file, from_state, interrogator_file, named
from ti_fix.evaluate.features import OFFERS
from ti_fix.train.captions import decode_text, one_line
from ti_fix.train.dataset import caption_beside, is_picture, mask_of
from ti_fix.train.pictures import ENDINGS, open_mask, open_picture

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
    found = sorted(filter(is_picture, folder.iterdir()))
    if not found:
        raise WrongUse(f"{folder} holds no picture ({', '.join(sorted(ENDINGS))}).")
    return found


def opened(path: Path) -> Image.Image:
    """A picture, upright and RGB, as training reads it.

    Raises:
        UnusablePicture: it cannot be read, or is too small.
    """
    return open_picture(path).image


def mask_beside(path: Path) -> Image.Image | None:
    """The mask beside a picture: white where its subject is."""
    found = mask_of(path)
    return open_mask(found) if found else None


def caption_of(path: Path) -> str:
    """The caption beside a picture, empty without one."""
    found = caption_beside(path)
    return one_line(found[1].text) if found else ""


def texts_in(given: Sequence[str]) -> list[str]:
    """Prompts from the command line: texts as they are, files line by line (empty lines and # are left out)."""
    found: list[str] = []
    for each in given:
        path = Path(each)
        if path.suffix == ".txt" and path.is_file():
            lines = decode_text(path.read_bytes()).text.splitlines()
            found += [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        else:
            found.append(each)
    return found
