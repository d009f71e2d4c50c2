"""A judge: pictures and texts to features of unit length, and how pictures are brought into its form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ti_fix.evaluate.clip_tower import ClipTower
from ti_fix.evaluate.dino_tower import DinoTower
from ti_fix.evaluate.texts import batch_of, joined

BATCH = 32
CLIP_MEAN, CLIP_DEVIATION = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
IMAGENET_MEAN, IMAGENET_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RESAMPLING = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocessing:
    """How a picture becomes a judge's input.

    Attributes:
        size: side of the square input in pixels.
        resize: length that the short side is brought to before the middle is cut out.
        mean, deviation: of the three channels, on a scale of 0…1.
        resampling: ``bicubic`` or ``bilinear``.
    """

    size: int
    resize: int
    mean: tuple[float, float, float] = CLIP_MEAN
    deviation: tuple[float, float, float] = CLIP_DEVIATION
    resampling: str = "bicubic"

    def __str__(self) -> str:
        return f"{self.resampling} to {self.resize}, middle {self.size} x {self.size}"

    def pixels(self, pictures: Sequence[Image.Image]) -> Tensor:
        """Pictures of any size and mode -> (n, 3, size, size)."""
        cut = np.stack([np.asarray(self._cut(picture)) for picture in pictures])
        values = torch.from_numpy(cut).permute(0, 3, 1, 2).float() / 255
        mean, deviation = (torch.tensor(v)[:, None, None] for v in (self.mean, self.deviation))
        return (values - mean) / deviation

    def _cut(self, picture: Image.Image) -> Image.Image:
        """The rounding is torchvision's, which open_clip uses."""
        plain = picture.convert("RGB")
        width, height = plain.size
        short, long = self.resize, int(self.resize * max(width, height) / min(width, height))
        target = (short, long) if width <= height else (long, short)
        if target != plain.size:
            plain = plain.resize(target, RESAMPLING[self.resampling])
        left, top = round((target[0] - self.size) / 2.0), round((target[1] - self.size) / 2.0)
        return plain.crop((left, top, left + self.size, top + self.size))


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneFacts:
    """What must be said beside every score.

    Attributes:
        name: architecture and weights, or the file's name.
        preprocessing: in words.
        fingerprint: of the weights; scores with different ones are never compared.
        independent: False for the model that SDXL and SD1.5 take their own text encoder from.
    """

    name: str
    preprocessing: str
    fingerprint: str
    independent: bool = True


class Backbone(Protocol):
    """A judge of pictures and texts."""

    @property
    def facts(self) -> BackboneFacts: ...
    @property
    def scale(self) -> float:
        """What cosines are multiplied with before a softmax."""

    def pictures(self, pictures: Sequence[Image.Image]) -> Tensor:
        """Features (n, width) of unit length, float32 on the CPU."""

    def texts(self, texts: Sequence[str]) -> Tensor:
        """Features (n, width) of unit length, float32 on the CPU; long texts in parts."""


class PictureJudge(Protocol):
    """A judge of pictures alone (DINO)."""

    @property
    def facts(self) -> BackboneFacts: ...

    def pictures(self, pictures: Sequence[Image.Image]) -> Tensor:
        """Features (n, width) of unit length, float32 on the CPU."""


class ClipBackbone:
    """A `Backbone` over a `ClipTower`."""

    def __init__(
        self, tower: ClipTower, facts: BackboneFacts, preprocessing: Preprocessing, *, device: str = "cpu"
    ) -> None:
        self._tower = tower.to(device)
        self.facts, self.scale = facts, tower.scale
        self._preprocessing, self._device = preprocessing, device

    def pictures(self, pictures: Sequence[Image.Image]) -> Tensor:
        """See `Backbone`."""
        return _in_batches(pictures, self._preprocessing, self._tower.encode_image, self._device)

    @torch.no_grad()
    def texts(self, texts: Sequence[str]) -> Tensor:
        """See `Backbone`."""
        ids, owners, lengths = batch_of(list(texts), self._tower.shape.context)
        features = [self._tower.encode_text(rows.to(self._device)) for rows in _batches(ids)]
        return joined(torch.cat(features).cpu(), owners, lengths, len(texts))


class OpenClipBackbone:
    """A `Backbone` over a model that open_clip has made: any of its architectures."""

    def __init__(self, model: Any, tokenizer: Any, facts: BackboneFacts, preprocessing: Preprocessing) -> None:
        self._model, self._tokenizer, self._preprocessing = model.eval(), tokenizer, preprocessing
        self._device = str(next(model.parameters()).device)
        self.facts, self.scale = facts, float(model.logit_scale.detach().exp())

    def pictures(self, pictures: Sequence[Image.Image]) -> Tensor:
        """See `Backbone`."""
        return _in_batches(
            pictures, self._preprocessing, lambda p: self._model.encode_image(p, normalize=True), self._device
        )

    @torch.no_grad()
    def texts(self, texts: Sequence[str]) -> Tensor:
        """See `Backbone`; CLIP's tokens in parts, other tokenizers' texts cut as open_clip cuts them."""
        context = int(getattr(self._model, "context_length", 77))
        if type(self._tokenizer).__name__ == "HFTokenizer":
            features: Tensor = self._model.encode_text(self._tokenizer(list(texts)).to(self._device), normalize=True)
            return features.float().cpu()
        ids, owners, lengths = batch_of(list(texts), context)
        found = [self._model.encode_text(rows.to(self._device), normalize=True) for rows in _batches(ids)]
        return joined(torch.cat(found).float().cpu(), owners, lengths, len(texts))


class DinoJudge:
    """A `PictureJudge` over a `DinoTower`."""

    def __init__(
        self, tower: DinoTower, facts: BackboneFacts, preprocessing: Preprocessing, *, device: str = "cpu"
    ) -> None:
        self._tower, self.facts = tower, facts
        self._preprocessing, self._device = preprocessing, device

    def pictures(self, pictures: Sequence[Image.Image]) -> Tensor:
        """See `PictureJudge`."""
        return _in_batches(pictures, self._preprocessing, self._tower.encode_image, self._device)


def _batches(ids: Tensor) -> list[Tensor]:
    return [ids[i : i + BATCH] for i in range(0, len(ids), BATCH)]


@torch.no_grad()
def _in_batches(pictures: Sequence[Image.Image], preprocessing: Preprocessing, encode: Any, device: str) -> Tensor:
    groups = [pictures[i : i + BATCH] for i in range(0, len(pictures), BATCH)]
    return torch.cat([encode(preprocessing.pixels(group).to(device)).float().cpu() for group in groups])
