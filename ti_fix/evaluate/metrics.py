"""The scores, as pure functions on features.

Features are float tensors of unit length, one row a picture or text. Each function gives one value a picture, so that
a mean, an interval and a paired difference can be taken by `ti_fix.evaluate.statistics`.
"""

from __future__ import annotations

import torch
from PIL import Image
from torch import Tensor

CLIP_SCORE_WEIGHT = 2.5
"""Hessel et al. 2021 (arXiv 2104.08718), equation 1."""


def clip_i(pictures: Tensor, references: Tensor) -> Tensor:
    """Likeness to the references: mean cosine of each picture to all of them (Ruiz et al. 2023, arXiv 2208.12242).

    With features of DINO instead of CLIP the same formula is that paper's DINO score.

    Args:
        pictures: (n, width).
        references: (m, width).

    Returns:
        (n,) in -1…1; its mean is the mean over all pairs.
    """
    return (pictures @ references.T).mean(dim=1)


def ceiling(references: Tensor) -> Tensor:
    """How like each reference is to the others: what a picture that were one of them would score.

    Args:
        references: (m, width), at least two.

    Returns:
        (m,) leave-one-out means.
    """
    cosines = references @ references.T
    count = len(references)
    return (cosines.sum(dim=1) - cosines.diagonal()) / (count - 1)


def clip_t(pictures: Tensor, texts: Tensor) -> Tensor:
    """Likeness of each picture to its own text (same paper's CLIP-T).

    Args:
        pictures: (n, width).
        texts: (n, width).

    Returns:
        (n,) cosines.
    """
    return (pictures * texts).sum(dim=1)


def clip_score_25(cosines: Tensor) -> Tensor:
    """CLIPScore: 2.5 times the cosine, never below 0 (Hessel et al. 2021, arXiv 2104.08718)."""
    return CLIP_SCORE_WEIGHT * cosines.clamp(min=0)


def clip_iqa(pictures: Tensor, good: Tensor, bad: Tensor, scale: float = 100.0) -> Tensor:
    """Quality by antonyms: the share of the better text of each pair (Wang et al. 2022, arXiv 2207.12396).

    Args:
        pictures: (n, width).
        good: (pairs, width), for instance of “Good photo.”.
        bad: (pairs, width), of “Bad photo.”.
        scale: the backbone's logit scale.

    Returns:
        (n, pairs) in 0…1.
    """
    return torch.sigmoid(scale * (pictures @ good.T - pictures @ bad.T))  # a softmax over two


def adherence(picture: Tensor, said: Tensor, alternatives: Tensor, scale: float = 100.0) -> Tensor:
    """How surely a picture shows the word that was said rather than others of its group.

    The texts are minimal pairs: the prompt, and the prompt with this one word changed.

    Args:
        picture: (width,).
        said: (width,).
        alternatives: (k, width).
        scale: the backbone's logit scale.

    Returns:
        A scalar in 0…1; 1 / (k + 1) is chance.
    """
    logits = scale * torch.cat([said[None], alternatives]) @ picture
    return logits.softmax(dim=0)[0]


def adherence_q(groups: Tensor, quality: Tensor) -> Tensor:
    """Our own reading of what articles call “CLIP-Q”: geometric mean of adherence and quality.

    Args:
        groups: (n, groups) adherence per phrase group, NaN where a prompt has none.
        quality: (n,) `clip_iqa`.

    Returns:
        (n,) in 0…1; NaN where a prompt has no phrase of any group.
    """
    return (groups.nanmean(dim=1) * quality).sqrt()


def masked(picture: Image.Image, mask: Image.Image, fill: tuple[int, int, int] = (123, 117, 104)) -> Image.Image:
    """The picture with everything outside the mask painted over, for `clip_i` of the subject alone.

    CatVersion (Zhao et al. 2023, arXiv 2311.14631), section 4.1.

    Args:
        picture: any mode.
        mask: mode L; 255 inside. Brought to the picture's size.
        fill: colour outside; CLIP's mean pixel, which its normalisation takes to 0.
    """
    inside = mask.convert("L").resize(picture.size, Image.Resampling.BILINEAR)
    return Image.composite(picture.convert("RGB"), Image.new("RGB", picture.size, fill), inside)
