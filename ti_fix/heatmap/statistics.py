"""What a map says in numbers: mass, entropy, where its peak lies, how well it covers a mask."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ti_fix.heatmap.capture import WordMaps

THRESHOLD = 0.4
"""Share of the largest value above which a place counts as covered (DAAM's threshold, arXiv 2210.04885)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapFacts:
    """One word's map in numbers.

    Attributes:
        word: whose map.
        mass: mean share of the attention that goes to the word, 0…1.
        among_words: its part of what goes to all words that are followed, 0…1.
        entropy: of the map over the places, 0 (one place) … 1 (everywhere alike).
        x, y: the peak, 0…1 from the left and from the top.
        covers: share of the picture above the threshold.
        iou, hit: with the subject's mask where one is known: overlap, and whether the peak lies on it.
    """

    word: str
    mass: float
    among_words: float
    entropy: float
    x: float
    y: float
    covers: float
    iou: float | None = None
    hit: bool | None = None


def facts_of(found: WordMaps, masks: Mapping[str, Tensor] | None = None) -> list[MapFacts]:
    """Numbers for every word.

    Args:
        found: the maps of one picture.
        masks: word -> (height, width) bool, of any size, where the truth is known.
    """
    masses = found.maps.flatten(1).mean(dim=1)
    whole = float(masses.sum()) or 1.0
    rows = []
    for word, map_, mass in zip(found.words, found.maps, masses.tolist(), strict=True):
        y, x = peak(map_)
        mask = (masks or {}).get(word)
        rows.append(
            MapFacts(
                word=word,
                mass=mass,
                among_words=mass / whole,
                entropy=entropy(map_),
                x=(x + 0.5) / map_.shape[1],
                y=(y + 0.5) / map_.shape[0],
                covers=float(covered(map_).float().mean()),
                iou=None if mask is None else iou(map_, mask),
                hit=None if mask is None else pointing(map_, mask),
            )
        )
    return rows


def peak(map_: Tensor) -> tuple[int, int]:
    """Row and column of the largest value."""
    return divmod(int(map_.argmax()), map_.shape[1])


def entropy(map_: Tensor) -> float:
    """Shannon entropy over the places, as a share of the largest that is possible."""
    shares = map_.double().flatten().clamp(min=0)
    shares = shares / shares.sum().clamp(min=1e-12)
    return float(torch.special.entr(shares).sum() / math.log(max(2, len(shares))))


def covered(map_: Tensor, threshold: float = THRESHOLD) -> Tensor:
    """Places above the threshold, after the lowest value was taken off; bool of the map's shape."""
    above = map_ - map_.min()
    return above > threshold * above.max()


def iou(map_: Tensor, mask: Tensor, threshold: float = THRESHOLD) -> float:
    """Overlap of the covered places with a mask: intersection over union, 0…1.

    Args:
        map_: (height, width).
        mask: bool of any size; the map is brought to it.
        threshold: see `covered`.
    """
    inside, shown = mask.bool(), covered(_at_size(map_, mask.shape), threshold)
    union = (inside | shown).sum()
    return float((inside & shown).sum() / union) if union else 0.0


def pointing(map_: Tensor, mask: Tensor, tolerance: int = 0) -> bool:
    """The pointing game (Zhang et al. 2016, arXiv 1608.00507): whether the peak lies on the mask.

    Args:
        map_: (height, width).
        mask: bool of any size; the map is brought to it.
        tolerance: pixels of the mask that the peak may lie beside it (the paper allows 15).
    """
    y, x = peak(_at_size(map_, mask.shape))
    around = mask[max(0, y - tolerance) : y + tolerance + 1, max(0, x - tolerance) : x + tolerance + 1]
    return bool(around.any())


def _at_size(map_: Tensor, size: Sequence[int]) -> Tensor:
    return F.interpolate(map_[None, None].float(), size=tuple(size), mode="bilinear", align_corners=False)[0, 0]


def grouped(found: WordMaps, groups: Mapping[str, Sequence[str]]) -> WordMaps:
    """The maps of groups of words (colour, object, scene): the sum over each group's words.

    Args:
        found: the maps of the words.
        groups: group -> its words; those without a map are passed over, empty groups left out.
    """
    places = {word: number for number, word in enumerate(found.words)}
    kept = {group: [places[w] for w in words if w in places] for group, words in groups.items()}
    kept = {group: numbers for group, numbers in kept.items() if numbers}
    empty = found.maps.new_zeros(0, found.height, found.width)
    maps = torch.stack([found.maps[numbers].sum(dim=0) for numbers in kept.values()]) if kept else empty
    return WordMaps(
        picture=found.picture,
        width=found.width,
        height=found.height,
        words=tuple(kept),
        maps=maps,
        layers=found.layers,
        steps=found.steps,
    )
