"""Random numbers that depend on nothing but the seed and what they are for.

Each use has its own stream, named by the seed, the purpose and the step. So previews, other programs and a resumed
run cannot shift it, and there is no generator state to save.
"""

from __future__ import annotations

import hashlib
import random

import torch


def _number(seed: int, *what: str | int) -> int:
    return int.from_bytes(hashlib.sha256(repr((seed, *what)).encode()).digest()[:8], "little") >> 1


def torch_stream(seed: int, *what: str | int) -> torch.Generator:
    """A generator on the CPU for this seed and purpose."""
    return torch.Generator().manual_seed(_number(seed, *what))


def python_stream(seed: int, *what: str | int) -> random.Random:
    """The same for choices and shuffles."""
    return random.Random(_number(seed, *what))
