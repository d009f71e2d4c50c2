"""CLIP in plain PyTorch: both towers, read from a state dict in open_clip's layout.

So a judge needs no package that a host may lack. Architecture: Radford et al. 2021 (arXiv 2103.00020).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ti_fix.errors import UnreadableFile
from ti_fix.evaluate.resnet_tower import ResNetImages, image_size

HEAD_WIDTH = 64
VISION_HEAD_WIDTHS = {1280: 80, 1408: 88, 1664: 104}
"""Width of the image tower -> width of its heads, where it is not 64 (open_clip's ViT-H, g and bigG)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipShape:
    """What the tensors of a CLIP model tell, and the two things that they do not (heads, activation).

    Attributes:
        image_size: side of the square picture in pixels.
        patch: side of a patch in pixels; 0 for an image tower of the ResNet kind.
        vision_width, vision_layers, vision_heads: image tower.
        text_width, text_layers, text_heads: text tower.
        context: tokens of a text, start and end included.
        features: width of what both towers give.
        quick_gelu: OpenAI's own models use x * sigmoid(1.702 x) in place of GELU.
    """

    image_size: int
    patch: int
    vision_width: int
    vision_layers: int
    vision_heads: int
    text_width: int
    text_layers: int
    text_heads: int
    context: int
    features: int
    quick_gelu: bool


def shape_of(
    state: Mapping[str, Tensor],
    *,
    quick_gelu: bool,
    vision_heads: int | None = None,
    vision_head_width: int | None = None,
    text_heads: int | None = None,
) -> ClipShape:
    """The shape of a model, read off its tensors.

    Args:
        state: in open_clip's layout.
        quick_gelu: see `ClipShape`.
        vision_heads: where they are not what the published models have.
        vision_head_width: the same, said by their width.
        text_heads: the same for the text tower.

    Raises:
        UnreadableFile: no CLIP in this layout.
    """
    try:
        if "visual.attnpool.positional_embedding" in state:
            vision_width, patch = state["visual.attnpool.positional_embedding"].shape[1], 0
            side = image_size(state)
        else:
            vision_width, _, patch, _ = state["visual.conv1.weight"].shape
            side = math.isqrt(state["visual.positional_embedding"].shape[0] - 1) * patch
        text_width, features = state["text_projection"].shape
        context = state["positional_embedding"].shape[0]
    except (KeyError, ValueError) as missing:
        raise UnreadableFile(
            "no-clip", f"The file holds no CLIP with an image tower of the ViT or ResNet kind (it lacks {missing})."
        ) from None
    return ClipShape(
        image_size=side,
        patch=patch,
        vision_width=vision_width,
        vision_layers=_count(state, "visual.transformer.resblocks."),
        vision_heads=vision_heads
        or vision_width // (vision_head_width or VISION_HEAD_WIDTHS.get(vision_width if patch else 0, HEAD_WIDTH)),
        text_width=text_width,
        text_layers=_count(state, "transformer.resblocks."),
        text_heads=text_heads or text_width // HEAD_WIDTH,
        context=context,
        features=features,
        quick_gelu=quick_gelu,
    )


def _count(state: Mapping[str, Tensor], prefix: str) -> int:
    numbers = {key[len(prefix) :].partition(".")[0] for key in state if key.startswith(prefix)}
    return len(numbers)


class _Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int, hidden: int, *, quick: bool) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.ParameterDict(
            {
                "in_proj_weight": torch.empty(3 * width, width),
                "in_proj_bias": torch.empty(3 * width),
                "out_proj_weight": torch.empty(width, width),
                "out_proj_bias": torch.empty(width),
            }
        )
        self.c_fc, self.c_proj = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self._heads, self._quick = heads, quick

    def forward(self, x: Tensor, *, causal: bool) -> Tensor:
        """(n, length, width) -> the same shape."""
        batch, length, _ = x.shape
        joined = F.linear(self.ln_1(x), self.attn["in_proj_weight"], self.attn["in_proj_bias"])
        q, k, v = joined.view(batch, length, 3, self._heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).reshape(x.shape)
        x = x + F.linear(mixed, self.attn["out_proj_weight"], self.attn["out_proj_bias"])
        hidden: Tensor = self.c_fc(self.ln_2(x))
        hidden = hidden * torch.sigmoid(1.702 * hidden) if self._quick else F.gelu(hidden)
        changed: Tensor = x + self.c_proj(hidden)
        return changed


class ClipTower(nn.Module):
    """Both towers; gives features of unit length."""

    def __init__(self, shape: ClipShape, state: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.shape = shape
        self.scale = float(state["logit_scale"].float().exp()) if "logit_scale" in state else 100.0
        with torch.device("meta"):
            self._build(shape, state)
        self.load_state_dict(
            {k: v for k, v in _renamed(state).items() if shape.patch or not _of_images(k)}, assign=True
        )
        self.images = ResNetImages(state, shape.vision_heads) if not shape.patch else None
        self.eval().requires_grad_(False)

    def _build(self, s: ClipShape, state: Mapping[str, Tensor]) -> None:
        def blocks(prefix: str, layers: int, width: int, heads: int) -> nn.ModuleList:
            hidden = [state[f"{prefix}{i}.mlp.c_fc.weight"].shape[0] for i in range(layers)]
            return nn.ModuleList(_Block(width, heads, each, quick=s.quick_gelu) for each in hidden)

        if s.patch:
            self._build_vit(s, blocks)
        self.tokens = nn.Embedding(state["token_embedding.weight"].shape[0], s.text_width)
        self.text_places = nn.Parameter(torch.empty(s.context, s.text_width))
        self.text = blocks("transformer.resblocks.", s.text_layers, s.text_width, s.text_heads)
        self.ln_final = nn.LayerNorm(s.text_width)
        self.text_projection = nn.Parameter(torch.empty(s.text_width, s.features))

    def _build_vit(self, s: ClipShape, blocks: Callable[[str, int, int, int], nn.ModuleList]) -> None:
        self.conv1 = nn.Conv2d(3, s.vision_width, s.patch, s.patch, bias=False)
        places = (s.image_size // s.patch) ** 2 + 1
        self.class_embedding = nn.Parameter(torch.empty(s.vision_width))
        self.vision_places = nn.Parameter(torch.empty(places, s.vision_width))
        self.ln_pre, self.ln_post = nn.LayerNorm(s.vision_width), nn.LayerNorm(s.vision_width)
        self.vision = blocks("visual.transformer.resblocks.", s.vision_layers, s.vision_width, s.vision_heads)
        self.vision_projection = nn.Parameter(torch.empty(s.vision_width, s.features))

    def encode_image(self, pixels: Tensor) -> Tensor:
        """Normalised pixels (n, 3, side, side) -> (n, features)."""
        if self.images is not None:
            return F.normalize(self.images(pixels), dim=-1)
        x = self.conv1(pixels).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_embedding.expand(len(x), 1, -1), x], dim=1) + self.vision_places
        x = self.ln_pre(x)
        for block in self.vision:
            x = block(x, causal=False)
        return F.normalize(self.ln_post(x[:, 0]) @ self.vision_projection, dim=-1)

    def encode_text(self, ids: Tensor) -> Tensor:
        """Token ids (n, length) with their end token (the largest id) -> (n, features)."""
        x = self.tokens(ids) + self.text_places[: ids.shape[1]]
        for block in self.text:
            x = block(x, causal=True)
        ends = self.ln_final(x)[torch.arange(len(ids), device=ids.device), ids.argmax(dim=1)]
        return F.normalize(ends @ self.text_projection, dim=-1)


_NAMES = {
    "visual.conv1.weight": "conv1.weight",
    "visual.class_embedding": "class_embedding",
    "visual.positional_embedding": "vision_places",
    "visual.proj": "vision_projection",
    "token_embedding.weight": "tokens.weight",
    "positional_embedding": "text_places",
    "text_projection": "text_projection",
}


def _of_images(name: str) -> bool:
    """Whether a tensor (by our name) is the image tower's."""
    return name.startswith(("conv1", "vision", "class_embedding", "ln_pre", "ln_post"))


def _renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """open_clip's names to those of `ClipTower`, in single precision; what no tower uses is left out."""
    new: dict[str, Tensor] = {}
    for key, tensor in state.items():
        name = _NAMES.get(key, "")
        if "resblocks." in key:
            tower = "vision" if key.startswith("visual.") else "text"
            rest = key.partition("resblocks.")[2].replace("mlp.", "").replace("out_proj.", "out_proj_")
            name = f"{tower}.{rest}"
        elif key.startswith(("visual.ln_", "ln_final")):
            name = key.removeprefix("visual.")
        if name:
            new[name] = tensor.float()
    return new


def from_transformers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """open_clip's layout for a model that ``transformers`` has saved (``CLIPModel``)."""
    new: dict[str, Tensor] = {}
    for tower, ours in (("vision_model.", "visual."), ("text_model.", "")):
        part = {key[len(tower) :]: tensor for key, tensor in state.items() if key.startswith(tower)}
        for key, tensor in part.items():
            name = _plain_name(key, ours)
            if name:
                new[name] = tensor
        for number in sorted({key.split(".")[2] for key in part if key.startswith("encoder.layers.")}):
            for kind in ("weight", "bias"):
                joined = [part[f"encoder.layers.{number}.self_attn.{letter}_proj.{kind}"] for letter in "qkv"]
                new[f"{ours}transformer.resblocks.{number}.attn.in_proj_{kind}"] = torch.cat(joined)
    new["visual.proj"] = state["visual_projection.weight"].T
    new["text_projection"] = state["text_projection.weight"].T
    new["logit_scale"] = state["logit_scale"]
    return new


_TRANSFORMERS_NAMES = {
    "embeddings.class_embedding": "class_embedding",
    "embeddings.patch_embedding.weight": "conv1.weight",
    "embeddings.position_embedding.weight": "positional_embedding",
    "embeddings.token_embedding.weight": "token_embedding.weight",
    "final_layer_norm.weight": "ln_final.weight",
    "final_layer_norm.bias": "ln_final.bias",
    **{
        f"{theirs}.{kind}": f"{ours}.{kind}"
        for theirs, ours in (("pre_layrnorm", "ln_pre"), ("post_layernorm", "ln_post"))
        for kind in ("weight", "bias")
    },
}
_IN_LAYER = {
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
    "self_attn.out_proj": "attn.out_proj",
}


def _plain_name(key: str, prefix: str) -> str:
    """The name of a tensor that is taken as it is; empty for parts of the joined projection and for buffers."""
    if key in _TRANSFORMERS_NAMES:
        return prefix + _TRANSFORMERS_NAMES[key]
    if not key.startswith("encoder.layers."):
        return ""
    _, _, number, rest = key.split(".", 3)
    inner, _, kind = rest.rpartition(".")
    return f"{prefix}transformer.resblocks.{number}.{_IN_LAYER[inner]}.{kind}" if inner in _IN_LAYER else ""
