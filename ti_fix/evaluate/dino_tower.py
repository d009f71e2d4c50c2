"""DINO and DINOv2 in plain PyTorch, read from a state dict in the layout that their authors publish.

Caron et al. 2021 (arXiv 2104.14294), Oquab et al. 2023 (arXiv 2304.07193).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from ti_fix.errors import UnreadableFile

HEAD_WIDTH = 64
EPSILON = 1e-6


class DinoTower:
    """The image tower; gives the class token's features of unit length.

    Args:
        state: ``cls_token``, ``pos_embed``, ``patch_embed.proj.*``, ``blocks.N.*``, ``norm.*``; with ``ls1.gamma``
            (DINOv2) or without (DINO).
        device: where it computes.
        heads: where they are not 64 wide.

    Raises:
        UnreadableFile: another kind of model.
    """

    def __init__(self, state: Mapping[str, Tensor], *, device: str = "cpu", heads: int | None = None) -> None:
        try:
            self.width, _, self.patch, _ = state["patch_embed.proj.weight"].shape
            self._state = {key: tensor.to(device, torch.float32) for key, tensor in state.items()}
            self.layers = len({key.split(".")[1] for key in state if key.startswith("blocks.")})
            self._grid = math.isqrt(state["pos_embed"].shape[1] - 1)
            _ = state["blocks.0.mlp.fc1.weight"]
        except (KeyError, ValueError) as missing:
            raise UnreadableFile("no-dino", f"The file holds no DINO image tower (it lacks {missing}).") from None
        self.heads = heads or self.width // HEAD_WIDTH

    def encode_image(self, pixels: Tensor) -> Tensor:
        """Normalised pixels (n, 3, height, width), multiples of the patch -> (n, width)."""
        s = self._state
        x = F.conv2d(pixels, s["patch_embed.proj.weight"], s["patch_embed.proj.bias"], stride=self.patch)
        places = self._places(x.shape[2], x.shape[3])
        x = torch.cat([s["cls_token"].expand(len(x), -1, -1), x.flatten(2).transpose(1, 2)], dim=1) + places
        for number in range(self.layers):
            x = self._block(x, f"blocks.{number}.")
        return F.normalize(self._norm(x[:, 0], "norm"), dim=-1)

    def _places(self, height: int, width: int) -> Tensor:
        """Position table for another grid than the model was trained on, by bicubic interpolation."""
        table = self._state["pos_embed"]
        if (height, width) == (self._grid, self._grid):
            return table
        square = table[:, 1:].reshape(1, self._grid, self._grid, self.width).permute(0, 3, 1, 2)
        resized = F.interpolate(square, size=(height, width), mode="bicubic", align_corners=False)
        return torch.cat([table[:, :1], resized.flatten(2).transpose(1, 2)], dim=1)

    def _block(self, x: Tensor, name: str) -> Tensor:
        joined = self._linear(self._norm(x, f"{name}norm1"), f"{name}attn.qkv")
        q, k, v = joined.view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        x = x + self._scaled(self._linear(mixed, f"{name}attn.proj"), f"{name}ls1.gamma")
        hidden = F.gelu(self._linear(self._norm(x, f"{name}norm2"), f"{name}mlp.fc1"))
        return x + self._scaled(self._linear(hidden, f"{name}mlp.fc2"), f"{name}ls2.gamma")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (self.width,), self._state[f"{name}.weight"], self._state[f"{name}.bias"], EPSILON)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self._state[f"{name}.weight"], self._state[f"{name}.bias"])

    def _scaled(self, x: Tensor, name: str) -> Tensor:
        return x * self._state[name] if name in self._state else x
