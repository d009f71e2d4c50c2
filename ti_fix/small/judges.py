"""The scene judge: a small CNN that reads the words off a picture (shape, colour, texture, background, layout)."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ti_fix.small import scenes
from ti_fix.small.captions import Described
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
INPUT = 64


class SceneJudge(nn.Module):
    """(n, 3, 64, 64) in -1..1 -> logits per head."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for a, b in ((3, width), (width, 2 * width), (2 * width, 2 * width), (2 * width, 2 * width)):
            layers += [nn.Conv2d(a, b, 3, 2, 1), nn.GroupNorm(8, b), nn.ReLU()]
        self.features = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * width, 160), nn.ReLU())
        self.sizes = [len(v) for v in HEADS.values()]
        self.head = nn.Linear(160, sum(self.sizes))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Pictures (n, 3, 64, 64) in -1..1 -> logits (n, classes) per head."""
        logits = self.head(self.features(x)).split(self.sizes, 1)
        return dict(zip(HEADS, logits, strict=True))


def judge_input(pictures: NDArray[np.uint8] | Tensor) -> Tensor:
    """uint8 (n, 128, 128, 3) pictures, or float (n, 3, 128, 128) in -1..1, as the judge sees them."""
    if isinstance(pictures, np.ndarray):
        pictures = torch.from_numpy(np.ascontiguousarray(pictures)).permute(0, 3, 1, 2).float() / 127.5 - 1
    return F.avg_pool2d(pictures, 2)


def truth(described: Described) -> dict[str, int]:
    """Head -> class index, -1 where the scene's words leave it open."""
    labels = dict.fromkeys(HEADS, -1)
    labels["background"] = scenes.BACKGROUNDS.index(described.background)
    labels["layout"] = LAYOUTS.index(described.layout)
    for slot, (thing, words) in enumerate(zip(described.scene.things, described.words, strict=True)):
        values = {"shape": thing.shape, "texture": thing.texture, "colour": words.get("colour", "unnamed")}
        if thing.shape != "blob" or "lobes" in words:
            values["stretch"] = words.get("stretch", "even")
            values["slant"] = "slanted" if "slant" in words else "upright"
        for attribute, value in values.items():
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
    """Head -> class indices (n,) that the judge sees."""
    model, x = judge or scene_judge(), judge_input(pictures)
    parts = [{k: v.argmax(1) for k, v in model(x[i : i + 128]).items()} for i in range(0, len(x), 128)]
    return {k: torch.cat([p[k] for p in parts]).numpy() for k in HEADS}


def obedience(described: list[Described], seen: dict[str, NDArray[np.int64]]) -> dict[str, float]:
    """Share of pictures in which each *said* attribute is right; ``both`` asks shape and colour of two objects."""
    wanted = [truth(d) for d in described]
    said: dict[str, list[bool]] = {}
    for i, (d, labels) in enumerate(zip(described, wanted, strict=True)):
        right = {h: bool(seen[h][i] == v) for h, v in labels.items() if v >= 0}
        said.setdefault("background", []).append(right["background"])
        said.setdefault("layout", []).append(right["layout"])
        slots = []
        for slot, words in enumerate(d.words):
            checks = {a: right[f"{a}{slot}"] for a in SLOT if a in words and f"{a}{slot}" in right}
            for attribute, good in checks.items():
                said.setdefault(attribute, []).append(good)
            slots.append(all(checks.get(a, True) for a in ("shape", "colour")))
        said.setdefault("both" if len(slots) == 2 else "single", []).append(all(slots))
    return {k: float(np.mean(v)) for k, v in sorted(said.items())}
