"""Exact gradient checkpointing: blocks of the UNet are computed again in the backward pass instead of remembered.

Chen et al. 2016 (arXiv 1604.06174). Works on any UNet whose blocks have the names that Stable Diffusion's code
families give them, without the host's help. Inputs are copied, because some hosts add to a block's input in place
after it has been used, and a block computed again from a changed input gives a wrong gradient without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

BLOCKS = frozenset({"ResnetBlock2D", "Transformer2DModel", "ResBlock", "SpatialTransformer"})
"""Class names of the blocks: diffusers' first, then those of the WebUIs' own UNets."""

LARGE = 200_000_000
"""Weights from which a UNet is taken for one of real size."""


def wanted(setting: str, unet: Any) -> bool:
    """Whether to checkpoint: as set, or on for UNets of real size."""
    if setting == "auto":
        size: int = sum(p.numel() for p in unet.parameters())
        return size >= LARGE
    return setting == "on"


@contextmanager
def recomputed(unet: Any) -> Iterator[int]:
    """While open, blocks are computed again in the backward pass; yields how many there are."""
    with around_blocks(unet, lambda _module, forward: _checkpointed(forward)) as count:
        yield count


@contextmanager
def around_blocks(unet: Any, wrap: Callable[[Any, Any], Any]) -> Iterator[int]:
    """While open, ``wrap(module, forward)`` stands in for each block's forward function; yields how many there are.

    May be opened within itself: what stood there before comes back.
    """
    blocks = [module for module in unet.modules() if type(module).__name__ in BLOCKS]
    before = [module.__dict__.get("forward") for module in blocks]
    try:
        for module in blocks:
            module.forward = wrap(module, module.forward)
        yield len(blocks)
    finally:
        for module, own in zip(blocks, before, strict=True):
            if own is None:
                del module.forward
            else:
                module.forward = own


def _checkpointed(forward: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        kept = [_copied(value) for value in args]
        named = {name: _copied(value) for name, value in kwargs.items()}
        return checkpoint(forward, *kept, use_reentrant=False, preserve_rng_state=False, **named)

    return call


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
