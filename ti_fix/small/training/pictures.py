"""Captioned 32 x 32 pictures that the text towers learn their words from: emoji, clip art and rendered scenes.

Sources (unpacked under WORK, see :mod:`ti_fix.small.training.sources`): Twitter emoji (CC-BY 4.0) with emojilib
keywords (MIT), Fluent emoji (MIT), Noto emoji (OFL; a style that no tower trains on) and Open Clip Art (public
domain; one drawing in ten held out).
"""

from __future__ import annotations

import argparse
import io
import json
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from ti_fix.small import captions, scenes
from ti_fix.small.training import report
from ti_fix.small.training.sources import fetch

SIDE = 32
VIEWS = 3  # placements per training picture
CAPTIONS = 14
SCENES = 16000
SCENE_CAPTIONS = 5
TEST_SCENES = 1024
STOP = frozenset(
    "of the a an and with for in on no to by from or at is it i s t button sign symbol mark mapsym hash clipart clip "
    "art icon mime types etiquette theme unsorted svg public domain pd".split()
)
PREFIXES = {
    "twitter": ("an emoji of ", "an icon of "),
    "fluent": ("an icon of ", "an emoji of "),
    "noto": ("",),
    "clipart": ("a drawing of ", "clip art of ", "a cartoon of "),
}
QUALITIES = {
    "blurred": ("blurred", "blurry"),
    "noisy": ("noisy", "grainy"),
    "faded": ("faded", "pale", "dull"),
    "photo": ("photo",),
    "drawing": ("drawing", "sketch"),
    "outline": ("outline", "hollow"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One named picture: its style, its name words and its keywords."""

    style: str
    key: str
    name: str
    keywords: tuple[str, ...]
    held_out: bool


def words_of(text: str) -> list[str]:
    """Lower-case words of a name or keyword."""
    return re.findall(r"[a-z]+", text.lower().replace("_", " ").replace("\u2019", "").replace("'", ""))


def _rasterise(svg: str | None = None, path: str | None = None) -> Image.Image:
    import resvg_py

    data = resvg_py.svg_to_bytes(svg_string=svg, svg_path=path, width=96)
    return Image.open(io.BytesIO(bytes(data))).convert("RGBA")


def view(image: Image.Image, rng: random.Random) -> NDArray[np.uint8] | None:
    """An RGBA picture on a random ground, jittered, (32, 32, 3)."""
    box = image.getbbox()
    if box is None:
        return None
    image = image.crop(box)
    k = 64 * rng.uniform(0.72, 0.98) / max(image.size)
    image = image.resize((max(1, round(image.width * k)), max(1, round(image.height * k))), Image.Resampling.BILINEAR)
    low = 255 if rng.random() < 0.5 else 0 if rng.random() < 0.4 else 190
    ground = (rng.randint(low, 255), rng.randint(low, 255), rng.randint(low, 255))
    canvas = Image.new("RGB", (64, 64), ground)
    canvas.paste(
        image, ((64 - image.width) // 2 + rng.randint(-3, 3), (64 - image.height) // 2 + rng.randint(-3, 3)), image
    )
    return np.asarray(canvas.resize((SIDE, SIDE), Image.Resampling.BOX))


def _emoji(work: Path) -> Iterator[tuple[Item, Image.Image]]:
    twitter = next((work / "x").glob("emoji-datasource-twitter*")) / "package"
    library = json.loads((next((work / "x").glob("emojilib*")) / "package/dist/emoji-en-US.json").read_text())
    fluent = _fluent(next((work / "x").glob("iconify-json-fluent*")) / "package")
    font = ImageFont.truetype(str(next((work / "deb").rglob("NotoColorEmoji.ttf"))), 109)
    for entry in json.loads((twitter / "emoji.json").read_text()):
        code = entry["unified"].upper()
        char = "".join(chr(int(x, 16)) for x in code.split("-"))
        tags = library.get(char) or library.get(char.replace("\ufe0f", "")) or []
        name = " ".join(words_of(entry["name"] or entry["short_name"]) or words_of(entry["short_name"]))
        item = partial(Item, key=code, name=name, keywords=_emoji_keywords(tags, entry))
        path = twitter / "img/twitter/64" / entry["image"]
        if path.exists():
            yield item(style="twitter", held_out=False), Image.open(path).convert("RGBA")
        if svg := fluent(code):
            yield item(style="fluent", held_out=False), _rasterise(svg=svg)
        if glyph := _glyph(char, font):
            yield item(style="noto", held_out=True), glyph


def _emoji_keywords(tags: Sequence[str], entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Tags of up to three words, then the words of the emoji's groups; each once."""
    keywords: list[str] = []
    for tag in tags:
        parts = words_of(tag)
        if parts and len(parts) <= 3 and " ".join(parts) not in keywords and not set(parts) <= STOP:
            keywords.append(" ".join(parts))
    for group in words_of(entry.get("category", "")) + words_of(entry.get("subcategory", "")):
        if group not in STOP and group not in keywords and len(group) > 2:
            keywords.append(group)
    return tuple(keywords)


def _fluent(package: Path) -> Callable[[str], str]:
    """What gives a code's drawing as SVG, empty where there is none."""
    icons = json.loads((package / "icons.json").read_text())["icons"]
    by_char = json.loads((package / "chars.json").read_text())

    def drawing(code: str) -> str:
        icon = by_char.get(code.replace("-FE0F", "").lower()) or by_char.get(code.lower())
        if icon not in icons:
            return ""
        return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">{icons[icon]["body"]}</svg>'

    return drawing


def _glyph(char: str, font: ImageFont.FreeTypeFont) -> Image.Image | None:
    """An emoji as the font draws it, None where it has none or draws a sequence as two."""
    canvas = Image.new("RGBA", (200, 160), (0, 0, 0, 0))
    ImageDraw.Draw(canvas).text((20, 15), char, font=font, embedded_color=True)
    box = canvas.getbbox()
    return canvas if box and box[2] - box[0] <= 140 else None


def _clipart(work: Path) -> Iterator[tuple[Item, Image.Image]]:
    root = next((work / "deb").rglob("openclipart/svg"))
    for path in sorted(root.rglob("*.svg")):
        key = path.relative_to(root).as_posix()
        if path.stat().st_size > 120_000:
            continue
        text = path.read_text(errors="replace")
        title = re.search(r"<dc:title>([^<]*)</dc:title>", text)
        name = [w for w in words_of(title.group(1)) if len(w) > 1][:8] if title else []
        tags = [" ".join(words_of(k)) for k in re.findall(r"<rdf:li>([^<]*)</rdf:li>", text)]
        tags += [" ".join(words_of(k)) for k in key.split("/")[:-1]]
        keywords = [k for k in dict.fromkeys(tags) if 2 < len(k) < 30 and not set(k.split()) <= STOP]
        if not (keywords or name):
            continue
        try:
            image = _rasterise(path=str(path))
        except (ValueError, RuntimeError, OSError):
            continue
        held = random.Random("held/" + key).random() < 0.1
        yield (
            Item(style="clipart", key=key, name=" ".join(name) or keywords[0], keywords=tuple(keywords), held_out=held),
            image,
        )


def item_caption(item: Item, rng: random.Random) -> str:
    """Name, keywords or both, with or without a prefix."""
    dice, keywords = rng.random(), list(item.keywords)
    if dice < 0.25 or not keywords:
        text = item.name
    elif dice < 0.4:
        text = item.name + rng.choice((", ", " ", " and ")) + ", ".join(rng.sample(keywords, min(len(keywords), 2)))
    else:
        text = rng.choice((", ", " ")).join(rng.sample(keywords, min(len(keywords), rng.choice((1, 2, 2, 3, 3, 4)))))
    prefix = rng.choice(PREFIXES[item.style]) if rng.random() < 0.3 else rng.choice(("", "", "a picture of ", "a "))
    return prefix + text


def spoil(picture: NDArray[np.uint8], quality: str | None, rng: random.Random, side: int = SIDE) -> NDArray[np.uint8]:
    """Blurred, noisy, ... version of a 128-pixel scene, (side, side, 3)."""
    image = Image.fromarray(picture)
    if quality == "blurred":
        image = image.filter(ImageFilter.GaussianBlur(rng.uniform(6, 9)))
    if quality in ("outline", "drawing"):
        edge = image.convert("L").filter(ImageFilter.FIND_EDGES).filter(ImageFilter.MaxFilter(5))
        line = edge.point(lambda v: 255 if v > 25 else 0)
        ink = (20, 20, 20) if np.mean(picture[:2]) > 90 else (245, 245, 245)
        base = image if quality == "drawing" else Image.new("RGB", image.size, tuple(int(v) for v in picture[2, 2]))
        base.paste(ink, (0, 0), line)
        image = base
    x = np.asarray(image.resize((side, side), Image.Resampling.BOX)).astype(np.float32)
    noise = np.random.RandomState(rng.randrange(2**31))
    if quality == "noisy":
        x = x + noise.randn(side, side, 3) * 40
    if quality == "faded":
        x = 128 + (x - 128) * 0.3
    if quality == "photo":
        shade = np.linspace(0.55, 1.15, side)
        x = x * (shade[None, :, None] if rng.random() < 0.5 else shade[:, None, None])
        x = x + noise.randn(side, side, 1) * 8
    return x.clip(0, 255).astype(np.uint8)


def quality_caption(text: str, quality: str | None, rng: random.Random) -> str:
    """The quality word in front of a caption (or a "sharp" word when there is none)."""
    if quality is None:
        return rng.choice(("sharp ", "clear ", "crisp ")) + text if rng.random() < 0.15 else text
    word = rng.choice(QUALITIES[quality])
    head = f"a {word} of " if quality in ("photo", "drawing", "outline") else f"{word} "
    return head + text.removeprefix("a picture of ")


def _scene_data(rng: random.Random) -> tuple[NDArray[np.uint8], list[list[str]]]:
    pictures, texts = [], []
    for _ in range(SCENES):
        described = captions.draw(rng, two=0.25)
        quality = rng.choice(tuple(QUALITIES)) if rng.random() < 0.3 else None
        pictures.append(spoil(scenes.render(described.scene), quality, rng))
        texts.append(
            [
                quality_caption(
                    captions.caption(described, rng, keep=0.85) if i else captions.plain_caption(described, rng),
                    quality,
                    rng,
                )
                for i in range(SCENE_CAPTIONS)
            ]
        )
    return np.stack(pictures), texts


def plain_scene(colour: str, shape: str, rng: random.Random) -> captions.Described:
    """One solid object of a colour and shape on a background that it stands out from."""
    thing = scenes.Thing(
        shape=shape,
        paint=scenes.colour_paint(colour, rng),
        cx=0,
        cy=0,
        radius=rng.uniform(24, 40),
        turn=rng.gauss(0, 4),
    )
    return captions.compose([thing], [{"colour": colour, "shape": shape}], rng)


def build(work: Path) -> None:
    """Write ``pictures.npz`` and ``captions.json`` under ``work`` (about two minutes)."""
    start = time.time()
    rng, caption_rng = random.Random(0), random.Random(8)
    items: list[dict[str, Any]] = []
    pictures: list[NDArray[np.uint8]] = []
    owner: list[int] = []
    for source in (_emoji(work), _clipart(work)):
        for item, image in source:
            views = [view(image, rng) for _ in range(1 if item.held_out else VIEWS)]
            if any(v is None for v in views):
                continue
            owner += [len(items)] * len(views)
            pictures += [v for v in views if v is not None]
            items.append(asdict(item) | {"captions": [item_caption(item, caption_rng) for _ in range(CAPTIONS)]})
        report(len(items), "named pictures", f"{time.time() - start:.0f} s")
    scene_pictures, scene_texts = _scene_data(random.Random(7))
    test_rng = random.Random(99)
    pairs = [(test_rng.choice(scenes.COLOURS), test_rng.choice(scenes.SHAPES)) for _ in range(TEST_SCENES)]
    tests = [spoil(scenes.render(plain_scene(c, s, test_rng).scene), None, test_rng) for c, s in pairs]
    np.savez(
        work / "pictures.npz",
        pictures=np.stack(pictures),
        owner=np.array(owner),
        scenes=scene_pictures,
        tests=np.stack(tests),
    )
    (work / "captions.json").write_text(json.dumps({"items": items, "scenes": scene_texts, "tests": pairs}))
    report("saved", len(pictures), "views,", len(scene_texts), "scenes", f"{time.time() - start:.0f} s")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    args = parser.parse_args()
    fetch(args.work)
    build(args.work)


if __name__ == "__main__":
    main()
