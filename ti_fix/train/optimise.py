"""Updates of the vectors. State and vectors are plain float32 tensors on the CPU, whatever the model uses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from ti_fix.train.config import TrainConfig
from ti_fix.train.initial import Statistics

Blocks = Mapping[str, Tensor]
"""Encoder key -> (vectors, width)."""

_BETAS = (0.9, 0.999)


class Optimiser(Protocol):
    """One kind of update."""

    def update(self, vectors: Blocks, gradients: Blocks, rates: Mapping[str, float]) -> None:
        """Change the vectors in place."""

    def state(self) -> dict[str, Tensor]:
        """All that a resumed run needs, as named tensors."""

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take a state back."""


class _Remembering:
    """State as one dictionary of tensors; subclasses keep all they know in it."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def state(self) -> dict[str, Tensor]:
        """All that a resumed run needs, copied."""
        return {name: tensor.clone() for name, tensor in self._kept.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take a state back."""
        self._kept = {name: tensor.clone() for name, tensor in state.items()}

    def _remembered(self, name: str, like: Tensor) -> Tensor:
        if name not in self._kept:
            self._kept[name] = torch.zeros_like(like)
        return self._kept[name]

    def _count(self, key: str) -> int:
        count = self._remembered(f"{key}.count", torch.zeros((), dtype=torch.int64))
        count += 1
        return int(count)


class AdamW(_Remembering):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019, arXiv 1711.05101)."""

    def __init__(self, decay: Mapping[str, float]) -> None:
        super().__init__()
        self._decay = decay

    @torch.no_grad()
    def update(self, vectors: Blocks, gradients: Blocks, rates: Mapping[str, float]) -> None:
        """Change the vectors in place."""
        for key, block in vectors.items():
            count = self._count(key)
            first = self._remembered(f"{key}.first", block)
            second = self._remembered(f"{key}.second", block)
            first.lerp_(gradients[key], 1 - _BETAS[0])
            second.mul_(_BETAS[1]).addcmul_(gradients[key], gradients[key], value=1 - _BETAS[1])
            block.mul_(1 - rates[key] * self._decay[key])
            root = (second.sqrt() / math.sqrt(1 - _BETAS[1] ** count)).add_(1e-8)
            block.addcdiv_(first, root, value=-rates[key] / (1 - _BETAS[0] ** count))


class Direction(_Remembering):
    """Steps on the sphere of the vocabulary's length: the direction learns, the length stays.

    Directional Textual Inversion (Kim et al. 2025, arXiv 2512.13672): the gradient with respect to the unit
    direction, less `prior` times the start's direction (von Mises-Fisher), projected on the tangent and divided by
    its own length per vector. Here with a running mean of the tangent gradient and of its squared length, as in
    Riemannian Adam (Becigneul & Ganea 2019, arXiv 1810.00760); the paper has neither. A rate of one RMS is one radian.
    """

    def __init__(self, lengths: Mapping[str, float], rms: Mapping[str, float], start: Blocks, prior: float) -> None:
        super().__init__()
        self._lengths, self._rms, self._prior = lengths, rms, prior
        self._start = {key: _unit(block.detach()) for key, block in start.items()}

    @torch.no_grad()
    def update(self, vectors: Blocks, gradients: Blocks, rates: Mapping[str, float]) -> None:
        """Change the vectors in place."""
        for key, block in vectors.items():
            count = self._count(key)
            unit = _unit(block)
            gradient = gradients[key] * self._lengths[key] - self._prior * self._start[key]
            tangent = _tangent(gradient, unit)
            first = self._remembered(f"{key}.first", block)
            second = self._remembered(f"{key}.second", block[:, :1])
            first.copy_(_tangent(first, unit)).lerp_(tangent, 1 - _BETAS[0])
            second.mul_(_BETAS[1]).add_(tangent.square().sum(1, keepdim=True), alpha=1 - _BETAS[1])
            root = (second / (1 - _BETAS[1] ** count)).sqrt().add_(1e-12)
            move = first / (1 - _BETAS[0] ** count) / root
            angle = rates[key] / self._rms[key]
            block.copy_(_unit(unit - angle * move) * self._lengths[key])


def _unit(block: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(block, dim=1, keepdim=True)
    return block / lengths.clamp_min(1e-12)


def _tangent(block: Tensor, unit: Tensor) -> Tensor:
    """The part of each row that is at a right angle to the unit vector of that row."""
    return block - (block * unit).sum(1, keepdim=True) * unit


class Prodigy(_Remembering):
    """Adam that estimates its own step size from how far it has come (Mishchenko & Defazio 2023, arXiv 2306.06101).

    Algorithm 4 of the paper; the rate multiplies the estimate and should be 1. One estimate per encoder.
    """

    def __init__(self, decay: Mapping[str, float], *, first_guess: float = 1e-6) -> None:
        super().__init__()
        self._decay, self._first_guess = decay, first_guess

    @torch.no_grad()
    def update(self, vectors: Blocks, gradients: Blocks, rates: Mapping[str, float]) -> None:
        """Change the vectors in place."""
        for key, block in vectors.items():
            if self._count(key) == 1:
                self._kept[f"{key}.start"] = block.detach().clone()
                self._kept[f"{key}.size"] = torch.tensor(self._first_guess, dtype=torch.float64)
            self._update(key, block, gradients[key], rates[key])

    def _update(self, key: str, block: Tensor, gradient: Tensor, rate: float) -> None:
        size = float(self._kept[f"{key}.size"])
        root = math.sqrt(_BETAS[1])
        travelled = self._remembered(f"{key}.travelled", torch.zeros((), dtype=torch.float64))
        direction = self._remembered(f"{key}.direction", block)
        first, second = self._remembered(f"{key}.first", block), self._remembered(f"{key}.second", block)
        first.mul_(_BETAS[0]).add_(gradient, alpha=(1 - _BETAS[0]) * size)
        second.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=(1 - _BETAS[1]) * size * size)
        way = float((gradient.double() * (self._kept[f"{key}.start"] - block).double()).sum())
        travelled.mul_(root).add_((1 - root) * rate * size * size * way)
        direction.mul_(root).add_(gradient, alpha=(1 - root) * rate * size * size)
        total = float(direction.double().abs().sum())
        if total > 0:
            self._kept[f"{key}.size"] = torch.tensor(max(size, float(travelled) / total), dtype=torch.float64)
        block.mul_(1 - rate * size * self._decay[key])
        block.addcdiv_(first, second.sqrt().add_(size * 1e-8), value=-rate * size)


class Adafactor(_Remembering):
    """Second moments as the product of one number a row and one a column, updates clipped by their own size.

    Shazeer & Stern 2018 (arXiv 1804.04235), algorithm 4 with the rate as it is set instead of a relative one.
    """

    def __init__(self, decay: Mapping[str, float]) -> None:
        super().__init__()
        self._decay = decay

    @torch.no_grad()
    def update(self, vectors: Blocks, gradients: Blocks, rates: Mapping[str, float]) -> None:
        """Change the vectors in place."""
        tiny = torch.finfo(torch.float32).eps
        for key, block in vectors.items():
            share = self._count(key) ** -0.8
            rows = self._remembered(f"{key}.rows", block[:, :1])
            columns = self._remembered(f"{key}.columns", block[:1])
            rows.lerp_(gradients[key].square().mean(1, keepdim=True), share)
            columns.lerp_(gradients[key].square().mean(0, keepdim=True), share)
            second = (rows @ columns) / rows.mean().clamp_min(tiny)
            move = gradients[key] * second.clamp_min(tiny**2).rsqrt()
            size = float(move.norm()) / math.sqrt(move.numel())
            block.mul_(1 - rates[key] * self._decay[key])
            block.add_(move, alpha=-rates[key] / max(1.0, size))


_BY_NAME: Mapping[str, Callable[[Mapping[str, float]], Optimiser]] = {
    "adamw": AdamW,
    "prodigy": Prodigy,
    "adafactor": Adafactor,
}


def optimiser(config: TrainConfig, start: Blocks, about: Mapping[str, Statistics]) -> Optimiser:
    """The optimiser that the settings name.

    Args:
        config: the settings.
        start: the first vectors.
        about: statistics of the vocabulary per encoder.
    """
    if config.optimiser == "direction":
        lengths = {key: about[key].length for key in start}
        return Direction(lengths, {key: about[key].rms for key in start}, start, config.direction_prior)
    return _BY_NAME[config.optimiser](decays(config, start))


def decays(config: TrainConfig, keys: Mapping[str, object]) -> dict[str, float]:
    """Weight decay per encoder; the second encoder has its own."""
    return {key: config.weight_decay_g if key == "clip_g" else config.weight_decay for key in keys}


def clip(gradients: Blocks, how: str, bound: float) -> dict[str, Tensor]:
    """Gradients no larger than the bound.

    Args:
        gradients: encoder key -> gradient.
        bound: the largest length, or number.
        how: ``joint`` and ``norm`` scale by the length over all encoders or in each; ``value`` cuts each number.
    """
    if how == "value":
        return {key: block.clamp(-bound, bound) for key, block in gradients.items()}
    lengths = {key: float(block.norm()) for key, block in gradients.items()}
    if how == "joint":
        lengths = dict.fromkeys(lengths, math.sqrt(sum(each**2 for each in lengths.values())))
    if how == "off":
        return dict(gradients)
    return {key: block * min(1.0, bound / (lengths[key] + 1e-6)) for key, block in gradients.items()}
