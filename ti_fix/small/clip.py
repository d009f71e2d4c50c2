"""A small CLIP as a judge, in open_clip's layout: contrastive towers of its own, independent of the text encoders.

State dict names and arithmetic are open_clip's ``CLIP`` (``ModifiedResNet`` image tower, causal text tower, pooled at
the largest id), so that open_clip itself can load :func:`open_clip_state` with :data:`CONFIG`. Convolutions know a
shape wherever it stands, which a small vision transformer does not learn from so few pictures.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ti_fix.small.packs import part, read_pack
from ti_fix.small.vocabulary import BOS, EOS, VOCABULARY, tokenizer

# open_clip model configuration
CONFIG: dict[str, Any] = {
    "embed_dim": 64,
    "vision_cfg": {"image_size": 96, "layers": [1, 1, 1, 1], "width": 12, "head_width": 32},
    "text_cfg": {"context_length": 77, "vocab_size": VOCABULARY, "width": 64, "heads": 2, "layers": 2},
}
MEAN = (0.48145466, 0.4578275, 0.40821073)  # OpenAI CLIP's pixel statistics
DEVIATION = (0.26862954, 0.26130258, 0.27577711)
FILLER_SEED = 303


class Block(nn.Module):
    """Pre-norm transformer block, open_clip's ResidualAttentionBlock."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential()
        self.mlp.add_module("c_fc", nn.Linear(width, 4 * width))
        self.mlp.add_module("gelu", nn.GELU())
        self.mlp.add_module("c_proj", nn.Linear(4 * width, width))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """(n, length, width) -> the same shape; ``mask`` is added to the attention logits."""
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, need_weights=False, attn_mask=mask)[0]
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    """A stack of blocks."""

    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.resblocks = nn.ModuleList(Block(width, heads) for _ in range(layers))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(n, length, width) -> the same shape."""
        for block in self.resblocks:
            x = block(x, mask)
        return x


class Bottleneck(nn.Module):
    """Residual block that halves the picture by averaging, open_clip's Bottleneck."""

    def __init__(self, incoming: int, planes: int, stride: int) -> None:
        super().__init__()
        outgoing = 4 * planes
        self.conv1, self.bn1 = nn.Conv2d(incoming, planes, 1, bias=False), nn.BatchNorm2d(planes)
        self.conv2, self.bn2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False), nn.BatchNorm2d(planes)
        self.conv3, self.bn3 = nn.Conv2d(planes, outgoing, 1, bias=False), nn.BatchNorm2d(outgoing)
        self.halve = nn.AvgPool2d(stride) if stride > 1 else nn.Identity()
        self.downsample = nn.Sequential()
        self.downsample.add_module("-1", nn.AvgPool2d(stride))
        self.downsample.add_module("0", nn.Conv2d(incoming, outgoing, 1, bias=False))
        self.downsample.add_module("1", nn.BatchNorm2d(outgoing))

    def forward(self, x: Tensor) -> Tensor:
        """(n, incoming, h, w) -> (n, 4 * planes, h / stride, w / stride)."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.halve(F.relu(self.bn2(self.conv2(y))))
        return F.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class AttentionPool(nn.Module):
    """Attention of the mean over all places, open_clip's AttentionPool2d."""

    def __init__(self, side: int, width: int, heads: int, out: int) -> None:
        super().__init__()
        self.positional_embedding = nn.Parameter(torch.randn(side**2 + 1, width) / math.sqrt(width))
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width) for _ in range(3))
        self.c_proj, self.heads = nn.Linear(width, out), heads

    def forward(self, x: Tensor) -> Tensor:
        """(n, width, side, side) -> (n, out)."""
        x = x.flatten(2).transpose(1, 2)
        x = torch.cat([x.mean(1, keepdim=True), x], 1) + self.positional_embedding
        n, _, width = x.shape
        split = (n, -1, self.heads, width // self.heads)
        q, k, v = (
            f(y).view(split).transpose(1, 2) for f, y in ((self.q_proj, x[:, :1]), (self.k_proj, x), (self.v_proj, x))
        )
        return self.c_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, width))


class Vision(nn.Module):
    """Image tower, (n, 3, 96, 96) normalised pixels -> (n, 64); open_clip's ModifiedResNet."""

    def __init__(self) -> None:
        super().__init__()
        c, width = CONFIG["vision_cfg"], CONFIG["vision_cfg"]["width"]
        half = width // 2
        self.conv1, self.bn1 = nn.Conv2d(3, half, 3, 2, 1, bias=False), nn.BatchNorm2d(half)
        self.conv2, self.bn2 = nn.Conv2d(half, half, 3, padding=1, bias=False), nn.BatchNorm2d(half)
        self.conv3, self.bn3 = nn.Conv2d(half, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        incoming = width
        for stage in range(4):
            self.add_module(
                f"layer{stage + 1}", nn.Sequential(Bottleneck(incoming, width << stage, 1 if stage == 0 else 2))
            )
            incoming = 4 * (width << stage)
        heads = width * 32 // c["head_width"]
        self.attnpool = AttentionPool(c["image_size"] // 32, incoming, heads, CONFIG["embed_dim"])

    def forward(self, x: Tensor) -> Tensor:
        """Normalised pixels (n, 3, 96, 96) -> (n, 64)."""
        for conv, norm in ((self.conv1, self.bn1), (self.conv2, self.bn2), (self.conv3, self.bn3)):
            x = F.relu(norm(conv(x)))
        x = F.avg_pool2d(x, 2)
        for stage in range(1, 5):
            x = self.get_submodule(f"layer{stage}")(x)
        return self.attnpool(x)


class SmallClip(nn.Module):
    """Both towers. ``token_embedding`` may be replaced by a table of used rows while training."""

    def __init__(self) -> None:
        super().__init__()
        t = CONFIG["text_cfg"]
        self.visual = Vision()
        self.token_embedding = nn.Embedding(t["vocab_size"], t["width"])
        self.positional_embedding = nn.Parameter(torch.randn(t["context_length"], t["width"]) * 0.01)
        self.transformer = Transformer(t["width"], t["layers"], t["heads"])
        self.ln_final = nn.LayerNorm(t["width"])
        self.text_projection = nn.Parameter(torch.randn(t["width"], CONFIG["embed_dim"]) / math.sqrt(t["width"]))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def encode_image(self, x: Tensor) -> Tensor:
        """Normalised pixels (n, 3, 96, 96) -> unit features (n, 64)."""
        return F.normalize(self.visual(x), dim=-1)

    def encode_text(self, ids: Tensor) -> Tensor:
        """Token ids (n, length <= 77) -> unit features (n, 64)."""
        length = ids.shape[1]
        mask = torch.full((length, length), float("-inf")).triu(1)
        x = self.token_embedding(ids) + self.positional_embedding[:length]
        x = self.ln_final(self.transformer(x, mask))
        return F.normalize(x[torch.arange(len(x)), ids.argmax(1)] @ self.text_projection, dim=-1)


def normalised(pixels: Tensor) -> Tensor:
    """Pixels (n, 3, h, w) in -1..1 -> what the image tower takes, (n, 3, 96, 96)."""
    side = CONFIG["vision_cfg"]["image_size"]
    x = F.interpolate(pixels, (side, side), mode="bilinear", antialias=True, align_corners=False) / 2 + 0.5
    return (x - torch.tensor(MEAN)[:, None, None]) / torch.tensor(DEVIATION)[:, None, None]


def clip_ids(texts: list[str], length: int = 77) -> Tensor:
    """Token ids (n, length), zero-padded as open_clip does."""
    lists = tokenizer("clip_l")(texts, add_special_tokens=False, truncation=True, max_length=length - 2)["input_ids"]
    return torch.tensor([[BOS, *i, EOS] + [0] * (length - 2 - len(i)) for i in lists])


def open_clip_state() -> dict[str, Tensor]:
    """The judge's weights as an open_clip state dict, fp32; never-seen token rows are seeded noise."""
    tensors, _ = read_pack("clip")
    state = part(tensors, "clip")
    noise = np.random.RandomState(FILLER_SEED).standard_normal((VOCABULARY, CONFIG["text_cfg"]["width"]))
    table = torch.from_numpy((noise * 0.02).astype(np.float32))
    table[tensors["ids"].long()] = tensors["rows"].float()
    return state | {"token_embedding.weight": table}


@cache
def clip_judge() -> SmallClip:
    """The trained CLIP judge."""
    model = SmallClip()
    model.load_state_dict(open_clip_state())
    return model.eval().requires_grad_(False)


@torch.no_grad()
def similarity(pictures: NDArray[np.uint8] | Tensor, texts: list[str]) -> Tensor:
    """Cosines (n pictures, n texts); pictures uint8 (n, h, w, 3) or float (n, 3, h, w) in -1..1."""
    if isinstance(pictures, np.ndarray):
        pictures = torch.from_numpy(np.ascontiguousarray(pictures)).permute(0, 3, 1, 2).float() / 127.5 - 1
    model = clip_judge()
    images = torch.cat([model.encode_image(normalised(p)) for p in pictures.split(64)])
    return images @ model.encode_text(clip_ids(texts)).T
