"""Axis by axis: how the weight of a wide layer is laid out from that of a small one, so that both compute the same.

A wide state holds copies of the small state. A layer that maps copies to copies is block-diagonal; a reader of what
stands outside the copies (text, time) divides or picks. Normalisation sees the same mean and variance in copies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

SHARED = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Axis:
    """Positions of a wide axis in terms of a small one, each tensor of shape (wide,).

    Attributes:
        index: position in the small axis, -1 where the wide axis holds nothing.
        copy: which copy the position belongs to, `SHARED` for what exists once.
        share: factor on the weights of this position.
    """

    index: Tensor
    copy: Tensor
    share: Tensor

    def scaled(self, factor: float) -> Axis:
        """The same axis with its weights multiplied."""
        return replace(self, share=self.share * factor)


def once(size: int) -> Axis:
    """An axis that is not widened."""
    return Axis(index=torch.arange(size), copy=torch.full((size,), SHARED), share=torch.ones(size))


def copies(size: int, count: int) -> Axis:
    """`count` copies of the small axis, one after the other."""
    return Axis(
        index=torch.arange(size).repeat(count),
        copy=torch.arange(count).repeat_interleave(size),
        share=torch.ones(size * count),
    )


def averaged(size: int, count: int) -> Axis:
    """Copies that are read as their mean, whatever copy reads them."""
    axis = copies(size, count)
    return replace(axis, copy=torch.full_like(axis.copy, SHARED)).scaled(1 / count)


def joined(*axes: Axis, offsets: tuple[int, ...]) -> Axis:
    """Axes one after the other; each counts small positions from its offset."""
    index = [torch.where(a.index < 0, a.index, a.index + offset) for a, offset in zip(axes, offsets, strict=True)]
    return Axis(
        index=torch.cat(index), copy=torch.cat([a.copy for a in axes]), share=torch.cat([a.share for a in axes])
    )


def heads(size: int, count: int, wide_size: int, wide_count: int) -> Axis:
    """Attention's inner axis with each small head at the start of a wide one and the other heads left empty.

    Raises:
        ValueError: the small heads do not fit.
    """
    small, wide = size // count, wide_size // wide_count
    if count > wide_count or small > wide:
        raise ValueError(f"{count} heads of {small} do not fit {wide_count} heads of {wide}.")
    index = torch.full((wide_count, wide), -1)
    index[:count, :small] = torch.arange(size).reshape(count, small)
    return replace(once(wide_size), index=index.flatten())


def head_scale(size: int, count: int, wide_size: int, wide_count: int) -> float:
    """What queries must be multiplied by, since attention divides by the root of the head's width."""
    return math.sqrt((wide_size / wide_count) / (size / count))


def frequencies(size: int, count: int) -> Axis:
    """Sinusoidal time features, cosines then sines: those of the small axis are every `count`-th of the wide one."""
    index = torch.full((2, size // 2, count), -1)
    index[:, :, 0] = torch.arange(size).reshape(2, size // 2)
    return replace(once(size * count), index=index.flatten())


def tile_vector(vector: Tensor, out: Axis) -> Tensor:
    """A bias or a normalisation parameter."""
    return vector[out.index.clamp_min(0)] * (out.share * (out.index >= 0)).to(vector)


def tile_matrix(weight: Tensor, out: Axis, into: Axis) -> Tensor:
    """The weight (out, in, …) of a linear or convolutional layer.

    A copy reads its own copy and whatever is shared; what exists once reads the first copy.
    """
    reads = (
        (out.copy[:, None] == into.copy) | (into.copy == SHARED) | ((out.copy[:, None] == SHARED) & (into.copy == 0))
    )
    held = (out.index[:, None] >= 0) & (into.index >= 0)
    factor = (reads & held) * out.share[:, None] * into.share
    wide = weight[out.index.clamp_min(0)][:, into.index.clamp_min(0)]
    return wide * factor.reshape(factor.shape + (1,) * (weight.ndim - 2)).to(weight)
