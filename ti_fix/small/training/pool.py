"""A pool of rendered scenes as latents, shared by all diffusion models; kept in memory and renewed a little."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor

from ti_fix.small import captions, latents, scenes
from ti_fix.small.captions import Described


def guide_latents(described: list[Described]) -> Tensor:
    """Exact guide latents of scenes, (n, 4, 16, 16)."""
    pictures = np.stack([scenes.render(d.scene) for d in described])
    return latents.target(torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 127.5 - 1)


class ScenePool:
    """Scenes with their latents; ``batch`` replaces ``fresh`` of them by new ones each time."""

    def __init__(self, size: int, seed: int, two: float = 0.34) -> None:
        self.rng, self.size, self.two = random.Random(seed), size, two
        self.described: list[Described] = []
        self.latents = torch.empty(size, latents.CHANNELS, 16, 16)

    def _add(self, count: int) -> None:
        drawn = [captions.draw(self.rng, self.two) for _ in range(count)]
        z = guide_latents(drawn)
        for k, d in enumerate(drawn):
            if len(self.described) < self.size:
                self.latents[len(self.described)] = z[k]
                self.described.append(d)
            else:
                i = self.rng.randrange(self.size)
                self.described[i], self.latents[i] = d, z[k]

    def batch(self, count: int, fresh: int = 6) -> tuple[Tensor, list[Described]]:
        """``count`` latents and their scenes; ``fresh`` new scenes join the pool first."""
        self._add(fresh if len(self.described) >= 64 else 64)
        chosen = [self.rng.randrange(len(self.described)) for _ in range(count)]
        return self.latents[chosen], [self.described[i] for i in chosen]
