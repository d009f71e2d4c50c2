"""Several processes that share one run: each takes its rows of every batch, and the gradients are summed.

The vectors are so small that the sums go through the CPU (gloo) whatever the model runs on.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The processes of a run.

    Attributes:
        rank: which one this is, 0 writes the files.
        size: how many there are.
    """

    rank: int = 0
    size: int = 1

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over the processes."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def any(self, flag: bool) -> bool:
        """Whether one of the processes says so."""
        if self.size == 1:
            return flag
        total = torch.tensor(int(flag))
        dist.all_reduce(total)
        return bool(total)


def current() -> Group:
    """The group that this process belongs to; alone unless `join` was called or the caller has set one up."""
    if dist.is_available() and dist.is_initialized():
        return Group(rank=dist.get_rank(), size=dist.get_world_size())
    return Group()


def join() -> Group:
    """Join the processes that ``accelerate launch`` or ``torchrun`` has started; alone where there are none."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and dist.is_available() and not dist.is_initialized():
        dist.init_process_group("gloo")
    return current()
