"""The scene judge: small CNNs that read the words off a picture (shape, colour, texture, background, layout)."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ti_fix.small import scenes
from ti_fix.small.captions import Described
from ti_fix.small.measure import object_mask
from ti_fix.small.packs import part, read_pack

LAYOUTS = ("one", "beside", "above")
SLOT = {
    "shape": (*scenes.SHAPES, "blob"),
    "colour": (*scenes.COLOURS, "unnamed"),
    "texture": ("solid", *scenes.TEXTURES, "split"),
    "stretch": ("even", "tall", "wide"),
    "slant": ("upright", "slanted"),
}
# slot 0 is the only, left or upper object; slot 1 the right or lower one
HEADS: dict[str, tuple[str, ...]] = {"background": scenes.BACKGROUNDS, "layout": LAYOUTS} | {
    f"{attribute}{slot}": words for slot in (0, 1) for attribute, words in SLOT.items()
}
EVEN = ("striped", "checkered", "split")


WHOLE = ("background", "layout")
CROP = 40
MARGIN = 1.12  # side of a crop over that of the object's bounding box


def _convolutions(channels: tuple[int, ...], strides: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b, stride in zip(channels[:-1], channels[1:], strides, strict=True):
        layers += [nn.Conv2d(a, b, 3, stride, 1), nn.GroupNorm(8, b), nn.ReLU()]
    return nn.Sequential(*layers)


class SceneJudge(nn.Module):
    """Reads background and layout off the whole picture, and each object's words off its own cut-out.

    ``whole``: (n, 3, 64, 64) in -1..1 -> logits of `WHOLE`; ``thing``: (n, 4, 40, 40), cut-outs of :func:`cut_outs` ->
    logits of `SLOT`. An object is always centred and of one size, so that little is left to be learned.
    """

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        w = width
        self.whole = nn.Sequential(
            _convolutions((3, w // 2, w, w, w), (2, 2, 2, 2)),
            nn.Flatten(),
            nn.Linear(16 * w, 64),
            nn.ReLU(),
            nn.Linear(64, sum(len(HEADS[h]) for h in WHOLE)),
        )
        self.thing = nn.Sequential(
            _convolutions((4, w, 2 * w, 2 * w, 2 * w), (1, 2, 2, 2)),
            nn.Flatten(),
            nn.Linear(25 * 2 * w, 192),
            nn.ReLU(),
            nn.Linear(192, sum(map(len, SLOT.values()))),
        )

    def about_whole(self, x: Tensor) -> dict[str, Tensor]:
        """Pictures (n, 3, 64, 64) in -1..1 -> logits (n, classes) of background and layout."""
        return dict(zip(WHOLE, self.whole(x).split([len(HEADS[h]) for h in WHOLE], 1), strict=True))

    def about_things(self, x: Tensor) -> dict[str, Tensor]:
        """Cut-outs (n, 4, 40, 40) -> logits (n, classes) of each attribute."""
        return dict(zip(SLOT, self.thing(x).split([len(v) for v in SLOT.values()], 1), strict=True))


def _bounds(inside: NDArray[np.bool_], layout: str, slot: int) -> tuple[float, float, float]:
    """Centre row, centre column and half side of the square around the object of a slot, in pixels."""
    side = len(inside)
    half = side // 2
    only = inside.copy()
    if layout == "beside":
        only[:, half:] &= slot == 1
        only[:, :half] &= slot == 0
    elif layout == "above":
        only[half:] &= slot == 1
        only[:half] &= slot == 0
    rows, columns = np.nonzero(only.any(1))[0], np.nonzero(only.any(0))[0]
    if not len(rows):
        return half, half, half
    height, width = rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1
    return (rows[0] + rows[-1]) / 2, (columns[0] + columns[-1]) / 2, max(height, width, 8) / 2 * MARGIN


def cut_outs(pictures: Tensor, layouts: list[str]) -> Tensor:
    """The objects of pictures (n, 3, 128, 128) in -1..1, slot by slot: (n, 2, 4, 40, 40), colour and mask.

    Of a picture with one object the second slot repeats the first.
    """
    out = torch.empty(len(pictures), 2, 4, CROP, CROP)
    grid = torch.linspace(-1, 1, CROP)
    for i, layout in enumerate(layouts):
        picture = pictures[i]
        inside = object_mask((picture.permute(1, 2, 0).double().numpy() + 1) * 127.5)
        source = torch.cat([picture, torch.from_numpy(inside)[None].float() * 2 - 1])[None]
        side = picture.shape[-1]
        for slot in (0, 1):
            row, column, half = _bounds(inside, layout, slot)
            y = (2 * (row + grid * half) + 1) / side - 1
            x = (2 * (column + grid * half) + 1) / side - 1
            places = torch.stack([x[None].expand(CROP, CROP), y[:, None].expand(CROP, CROP)], -1)[None]
            out[i, slot] = F.grid_sample(source, places, padding_mode="border", align_corners=False)[0]
    return out


def as_pixels(pictures: NDArray[np.uint8] | Tensor) -> Tensor:
    """uint8 (n, 128, 128, 3) pictures as float (n, 3, 128, 128) in -1..1; such tensors as they are."""
    if isinstance(pictures, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(pictures)).permute(0, 3, 1, 2).float() / 127.5 - 1
    return pictures


def judge_input(pictures: Tensor) -> Tensor:
    """Float (n, 3, 128, 128) pictures in -1..1, as the judge sees the whole of them: (n, 3, 64, 64)."""
    return F.avg_pool2d(pictures, 2)


def truth(described: Described) -> dict[str, int]:
    """Head -> class index, -1 where the scene's words leave it open."""
    labels = dict.fromkeys(HEADS, -1)
    labels["background"] = scenes.BACKGROUNDS.index(described.background)
    labels["layout"] = LAYOUTS.index(described.layout)
    for slot, (thing, words) in enumerate(zip(described.scene.things, described.words, strict=True)):
        values = {"shape": thing.shape, "texture": thing.texture, "colour": scenes.seen_colour(thing.paint)}
        if thing.shape != "blob" or "lobes" in words:
            values["stretch"] = words.get("stretch", "even")
            values["slant"] = "slanted" if "slant" in words else "upright"
        for attribute, value in values.items():
            if attribute == "colour" and thing.texture in EVEN:
                continue  # two colours of one share: which of them is the first cannot be seen
            if value in SLOT[attribute]:
                labels[f"{attribute}{slot}"] = SLOT[attribute].index(value)
    return labels


@cache
def scene_judge() -> SceneJudge:
    """The trained judge."""
    tensors, about = read_pack("judge")
    model = SceneJudge(about["width"])
    model.load_state_dict(part(tensors, "judge"))
    return model.eval()


@torch.no_grad()
def read(pictures: NDArray[np.uint8] | Tensor, judge: SceneJudge | None = None) -> dict[str, NDArray[np.int64]]:
    """Head -> class indices (n,) that the judge sees; slot 1 of a one-object picture means nothing."""
    model, x = judge or scene_judge(), as_pixels(pictures)
    parts = [_read(model, each) for each in x.split(64)]
    return {k: torch.cat([p[k] for p in parts]).numpy() for k in HEADS}


def _read(model: SceneJudge, x: Tensor) -> dict[str, Tensor]:
    seen = {k: v.argmax(1) for k, v in model.about_whole(judge_input(x)).items()}
    things = model.about_things(cut_outs(x, [LAYOUTS[i] for i in seen["layout"].tolist()]).flatten(0, 1))
    for attribute, logits in things.items():
        found = logits.argmax(1).view(-1, 2)
        seen |= {f"{attribute}{slot}": found[:, slot] for slot in (0, 1)}
    return seen


def obedience(described: list[Described], seen: dict[str, NDArray[np.int64]]) -> dict[str, float]:
    """Share of pictures in which each *said* attribute is right; ``both`` asks shape and colour of two objects.

    What is said by other words than the judge's ("yellow green") is not asked for.
    """
    wanted = [truth(d) for d in described]
    said: dict[str, list[bool]] = {}
    for i, (d, labels) in enumerate(zip(described, wanted, strict=True)):
        right = {h: bool(seen[h][i] == v) for h, v in labels.items() if v >= 0}
        said.setdefault("background", []).append(right["background"])
        said.setdefault("layout", []).append(right["layout"])
        slots = []
        for slot, words in enumerate(d.words):
            checks = {a: right[f"{a}{slot}"] for a in SLOT if words.get(a) in SLOT[a] and f"{a}{slot}" in right}
            for attribute, good in checks.items():
                said.setdefault(attribute, []).append(good)
            slots.append(all(checks.get(a, True) for a in ("shape", "colour")))
        said.setdefault("both" if len(slots) == 2 else "single", []).append(all(slots))
    return {k: float(np.mean(v)) for k, v in sorted(said.items())}
