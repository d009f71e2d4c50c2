"""Training pictures before training: captions that do not fit, pictures that do not belong, duplicates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ti_fix.errors import WrongUse
from ti_fix.evaluate import metrics
from ti_fix.evaluate.backbone import Backbone, BackboneFacts
from ti_fix.evaluate.statistics import Estimate, estimate

OUTLIER = 3.0
"""Robust deviations below the set's median from which a picture is flagged: 1.4826 * MAD is one for a normal law."""

DUPLICATE = 0.97
SAME_LAYOUT = 0.9
"""Two pictures count as one when the judge's features have this cosine, and their small grey copies this correlation:
features alone also take two photographs of one thing for one."""

THUMBNAIL = 16

SIMILARITY_HINT = 0.28
"""What articles use as a fixed threshold for captions with ViT-L/14. Cosines of other judges lie elsewhere, so it is
shown as a hint and nothing is flagged by it."""

FLOOR = 1e-3
"""Smallest robust deviation, so that a set of near copies does not flag rounding errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A picture with its caption, as it was found.

    Attributes:
        name: shown to the user.
        caption: empty where there is none.
        similarity: cosine of picture and caption, None without a caption.
        likeness: mean cosine to the other pictures of the set.
        flags: why it should be looked at, as sentences.
    """

    name: str
    caption: str
    similarity: float | None
    likeness: float
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetReport:
    """What was found.

    Attributes:
        judge: what scored.
        items: in the order of the pictures.
        duplicates: groups of names that are one picture.
        before, after: figure -> value for the whole set, and without the flagged pictures and spare copies.
    """

    judge: BackboneFacts
    items: tuple[Item, ...]
    duplicates: tuple[tuple[str, ...], ...]
    before: dict[str, Estimate | None]
    after: dict[str, Estimate | None]

    @property
    def kept(self) -> list[str]:
        """Names of the pictures that nothing speaks against, one of each group of copies."""
        spare = {name for group in self.duplicates for name in group[1:]}
        return [item.name for item in self.items if not item.flags and item.name not in spare]

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "kept": self.kept, "similarity_hint": SIMILARITY_HINT}


@dataclass(frozen=True, slots=True, kw_only=True)
class LookEvent:
    """Pictures were looked at."""

    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetEvent:
    """The end."""

    report: DatasetReport


def look(
    names: Sequence[str], pictures: Iterable[Any], captions: Sequence[str], judge: Backbone
) -> Iterator[LookEvent | DatasetEvent]:
    """Look through a set of at least two pictures.

    Args:
        names: of the pictures, each once.
        pictures: PIL pictures, as many; taken one by one, so that a large set need not be in memory at once.
        captions: one a picture; empty where there is none.
        judge: of pictures and texts.

    Raises:
        WrongUse: fewer than two pictures.
    """
    if len(names) < 2:
        raise WrongUse("A set has at least two pictures; give a folder with more.")
    features, small = [], []
    for number, picture in enumerate(pictures):
        yield LookEvent(done=number, total=len(names))
        features.append(judge.pictures([picture])[0])
        small.append(thumbnail(picture))
    yield DatasetEvent(report=judged(names, torch.stack(features), torch.stack(small), captions, judge))


def thumbnail(picture: Any) -> Tensor:
    """A picture's layout: 16 x 16 grey values of mean 0 and unit length."""
    grey = np.asarray(picture.convert("L").resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX), dtype=np.float32)
    values = torch.from_numpy(grey).flatten()
    return torch.nn.functional.normalize(values - values.mean(), dim=0)


def judged(
    names: Sequence[str], features: Tensor, thumbnails: Tensor, captions: Sequence[str], judge: Backbone
) -> DatasetReport:
    """The report from features that are known already.

    Args:
        names: see `look`.
        features: (n, width) of unit length.
        thumbnails: (n, 256), see `thumbnail`.
        captions: see `look`.
        judge: see `look`.
    """
    similarity = _similarities(features, captions, judge)
    likeness = metrics.ceiling(features)
    odd = robust_z(likeness) < -OUTLIER
    unfit = robust_z(similarity) < -OUTLIER
    items = tuple(
        Item(
            name=name,
            caption=caption,
            similarity=None if similarity[i].isnan() else float(similarity[i]),
            likeness=float(likeness[i]),
            flags=_flags(bool(odd[i]), bool(unfit[i])),
        )
        for i, (name, caption) in enumerate(zip(names, captions, strict=True))
    )
    groups = copies(features, thumbnails)
    spare = {number for group in groups for number in group[1:]}
    kept = torch.tensor([not item.flags and i not in spare for i, item in enumerate(items)])
    return DatasetReport(
        judge=judge.facts,
        items=items,
        duplicates=tuple(tuple(names[i] for i in group) for group in groups),
        before=_figures(features, similarity, groups),
        after=_figures(features[kept], similarity[kept], ()),
    )


def _similarities(features: Tensor, captions: Sequence[str], judge: Backbone) -> Tensor:
    values = metrics.clip_t(features, judge.texts([caption or " " for caption in captions]))
    values[[not caption for caption in captions]] = float("nan")
    return values


def robust_z(values: Tensor) -> Tensor:
    """How many robust deviations each value lies from the median; NaN stays NaN."""
    known = values[~values.isnan()]
    if not len(known):
        return values.clone()
    median = known.median()
    deviation = 1.4826 * (known - median).abs().median()
    return (values - median) / deviation.clamp(min=FLOOR)


def _flags(odd: bool, unfit: bool) -> tuple[str, ...]:
    found = []
    if unfit:
        found.append("its caption fits far worse than the others' do")
    if odd:
        found.append("it is far less like the set than the others are")
    return tuple(found)


def copies(features: Tensor, thumbnails: Tensor) -> list[list[int]]:
    """Groups of pictures that count as one, each picture in one group, singles left out.

    Args:
        features: (n, width) of unit length.
        thumbnails: (n, 256), see `thumbnail`.
    """
    alike = (features @ features.T >= DUPLICATE) & (thumbnails @ thumbnails.T >= SAME_LAYOUT)
    left = set(range(len(features)))
    groups = []
    while left:
        first = min(left)
        group = sorted(i for i in left if alike[first, i])
        left -= {first, *group}
        if len(group) > 1:
            groups.append(group)
    return groups


def _figures(features: Tensor, similarity: Tensor, groups: Sequence[Sequence[int]]) -> dict[str, Estimate | None]:
    consistency = estimate(metrics.ceiling(features)) if len(features) > 1 else None
    share = sum(len(group) - 1 for group in groups) / max(1, len(features))
    return {
        "consistency": consistency,
        "caption similarity": estimate(similarity) if len(similarity) else None,
        "share of spare copies": Estimate(mean=share, low=share, high=share, n=len(features)),
    }
