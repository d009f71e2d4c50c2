"""CLIP's other image tower, a ResNet with attention at its end (RN50 and kin), from open_clip's ``ModifiedResNet``.

Radford et al. 2021 (arXiv 2103.00020), section 2.4: three convolutions at the start, averaging in place of strides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PREFIX = "visual."
SHRINKS = 32
"""How much smaller than the picture the last grid is."""


class ResNetImages(nn.Module):
    """Normalised pixels to features.

    Args:
        state: the whole model's tensors in open_clip's layout.
        heads: of the attention at the end.
    """

    def __init__(self, state: Mapping[str, Tensor], heads: int) -> None:
        super().__init__()
        self._heads = heads
        self._blocks = [_numbers(state, f"{PREFIX}layer{stage}.") for stage in range(1, 5)]
        for key, tensor in state.items():
            if key.startswith(PREFIX) and "num_batches" not in key:
                self.register_buffer(_flat(key.removeprefix(PREFIX)), tensor.float())

    def forward(self, x: Tensor) -> Tensor:
        """Pixels (n, 3, side, side) -> (n, features)."""
        x = self._step(x, "conv1", "bn1", stride=2, padding=1)
        x = self._step(x, "conv2", "bn2", padding=1)
        x = F.avg_pool2d(self._step(x, "conv3", "bn3", padding=1), 2)
        for stage, blocks in enumerate(self._blocks, 1):
            for number in blocks:
                x = self._block(x, f"layer{stage}.{number}.", 2 if stage > 1 and number == 0 else 1)
        return self._pool(x)

    def _block(self, x: Tensor, name: str, stride: int) -> Tensor:
        y = self._step(x, f"{name}conv1", f"{name}bn1")
        y = self._step(y, f"{name}conv2", f"{name}bn2", padding=1)
        y = F.avg_pool2d(y, stride) if stride > 1 else y
        y = self._norm(self._convolved(y, f"{name}conv3"), f"{name}bn3")
        if self._has(f"{name}downsample.0.weight"):
            x = F.avg_pool2d(x, stride) if stride > 1 else x
            x = self._norm(self._convolved(x, f"{name}downsample.0"), f"{name}downsample.1")
        return F.relu(x + y)

    def _pool(self, x: Tensor) -> Tensor:
        """Attention of the mean over all places."""
        x = x.flatten(2).transpose(1, 2)
        x = torch.cat([x.mean(dim=1, keepdim=True), x], dim=1) + self._get("attnpool.positional_embedding")
        count, _, width = x.shape
        q, k, v = (
            self._linear(part, f"attnpool.{letter}_proj").view(count, -1, self._heads, width // self._heads)
            for letter, part in (("q", x[:, :1]), ("k", x), ("v", x))
        )
        mixed = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return self._linear(mixed.transpose(1, 2).reshape(count, width), "attnpool.c_proj")

    def _step(self, x: Tensor, convolution: str, norm: str, *, stride: int = 1, padding: int = 0) -> Tensor:
        return F.relu(self._norm(self._convolved(x, convolution, stride=stride, padding=padding), norm))

    def _convolved(self, x: Tensor, name: str, *, stride: int = 1, padding: int = 0) -> Tensor:
        return F.conv2d(x, self._get(f"{name}.weight"), stride=stride, padding=padding)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        mean, variance = self._get(f"{name}.running_mean"), self._get(f"{name}.running_var")
        return F.batch_norm(x, mean, variance, self._get(f"{name}.weight"), self._get(f"{name}.bias"))

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self._get(f"{name}.weight"), self._get(f"{name}.bias"))

    def _get(self, name: str) -> Tensor:
        return self.get_buffer(_flat(name))

    def _has(self, name: str) -> bool:
        return _flat(name) in self._buffers


def image_size(state: Mapping[str, Tensor]) -> int:
    """Side of the picture that the table of positions is for."""
    return math.isqrt(state[f"{PREFIX}attnpool.positional_embedding"].shape[0] - 1) * SHRINKS


def _flat(name: str) -> str:
    return name.replace(".", "_").replace("-", "_")


def _numbers(state: Mapping[str, Tensor], prefix: str) -> list[int]:
    return sorted({int(key[len(prefix) :].partition(".")[0]) for key in state if key.startswith(prefix)})
