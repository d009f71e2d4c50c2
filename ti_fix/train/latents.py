"""Encoded pictures, kept so that the VAE works once per view; bounded in memory, on disk if asked."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ti_fix.errors import TiFixError
from ti_fix.formats.write import write_bytes
from ti_fix.protocols import DiffusionModel
from ti_fix.train.buckets import View
from ti_fix.train.config import TrainConfig
from ti_fix.train.dataset import Sample
from ti_fix.train.pictures import open_picture, to_pixels, to_weights


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Encoded:
    """A view as the UNet sees it.

    Attributes:
        latents: (1, 4, height / 8, width / 8), float32 on the CPU.
        weights: (1, 1, height / 8, width / 8) of the places, None where all count alike.
    """

    latents: Tensor
    weights: Tensor | None


PRECISIONS = ("bfloat16", "float32")
"""What the VAE is tried in, one after the other, where it answers with NaN."""


class Encoder:
    """The model's VAE, in the first precision in which its answers are finite.

    SDXL's own VAE overflows in half precision. Once a wider one was needed it is used for all that follows.

    Attributes:
        precision: the one that was needed, empty as long as the model's own will do.
    """

    def __init__(self, model: DiffusionModel) -> None:
        self._model, self.precision = model, ""

    def __call__(self, pixels: Tensor, what: str) -> Tensor:
        """Pixels (1, 3, height, width) -> latents, float32 on the CPU.

        Raises:
            TiFixError: they are not finite in any precision; `what` names the picture.
        """
        wider = getattr(self._model, "encode_images_in", None)  # `protocols.WidensImages`
        tried = ("", *PRECISIONS) if wider is not None else ("",)
        for precision in tried[tried.index(self.precision) :]:
            latents = wider(pixels, precision) if wider and precision else self._model.encode_images(pixels)
            latents = latents.float().cpu()
            if bool(latents.isfinite().all()):
                self.precision = precision
                return latents
        raise TiFixError(
            f"The VAE turns {what} into NaN{', also in float32' if wider else ''}; load "
            f"{'another VAE' if wider else 'a VAE that works in half precision, or run it in full precision'}."
        )


def fingerprint(encode: Encoder) -> str:
    """A name for the model's VAE: a hash of how it encodes a fixed picture, rounded so that machines agree.

    So two checkpoints with one VAE share a cache, and another VAE never reads it.
    """
    ramp = torch.linspace(-1, 1, 64)
    probe = torch.stack([ramp.expand(64, 64), ramp[:, None].expand(64, 64), ramp.flip(0).expand(64, 64)])[None]
    latents = encode(probe, "a test picture")
    return hashlib.sha256(repr((latents * 32).round().int().tolist()).encode()).hexdigest()[:16]


class LatentCache:
    """Encodes views and keeps the results.

    Args:
        model: inside `trainable()`.
        samples: what the views are cut from.
        folder: where the disk cache lies, None without one.
    """

    def __init__(
        self, config: TrainConfig, model: DiffusionModel, samples: Sequence[Sample], folder: Path | None = None
    ) -> None:
        self._config, self._samples, self._folder = config, samples, folder
        self._encoder = Encoder(model)
        self._vae = fingerprint(self._encoder)
        self._kept: OrderedDict[str, Encoded] = OrderedDict()
        self._bytes = 0

    @property
    def precision(self) -> str:
        """What the VAE had to be widened to, empty where it was not."""
        return self._encoder.precision

    @property
    def bytes(self) -> int:
        """Memory that the kept latents take."""
        return self._bytes

    def get(self, view: View) -> Encoded:
        """The view, encoded now or before.

        Raises:
            TiFixError: the picture cannot be read any more, or the VAE answers with NaN.
        """
        key = self.key(view)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        encoded = self._from_disk(key)
        if encoded is None:
            encoded = self._encode(view)
            self._to_disk(key, encoded)
        self._keep(key, encoded)
        return encoded

    def weighted(self, view: View) -> bool:
        """Whether places of this picture can count differently."""
        return self._samples[view.picture].mask is not None or self._config.alpha == "weight"

    def key(self, view: View) -> str:
        """Hash over VAE, picture, crop and what the pixels are made with."""
        made = self._samples[view.picture].key, view.resized, view.crop, view.target, view.mirrored
        settings = self._config.alpha, self._config.background, self._config.mask_floor
        return hashlib.sha256(repr((self._vae, made, settings)).encode()).hexdigest()

    def _encode(self, view: View) -> Encoded:
        sample = self._samples[view.picture]
        picture = open_picture(
            sample.source, mask=sample.mask, alpha=self._config.alpha, background=self._config.background
        )
        latents = self._encoder(to_pixels(view.cut(picture.image)), sample.name)
        weights = None
        if picture.weight is not None:
            pixels = to_weights(view.cut(picture.weight), self._config.mask_floor)
            weights = torch.nn.functional.adaptive_avg_pool2d(pixels, (latents.shape[-2], latents.shape[-1]))
        return Encoded(latents=latents, weights=weights)

    def _keep(self, key: str, encoded: Encoded) -> None:
        self._kept[key] = encoded
        self._bytes += _size(encoded)
        while self._bytes > self._config.cache_mb * 1_000_000 and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= _size(oldest)

    def _from_disk(self, key: str) -> Encoded | None:
        if self._folder is None:
            return None
        try:
            tensors = load((self._folder / f"{key}.latents").read_bytes())
            return Encoded(latents=tensors["latents"], weights=tensors.get("weights"))
        except (OSError, SafetensorError, KeyError):  # not there, or not whole
            return None

    def _to_disk(self, key: str, encoded: Encoded) -> None:
        if self._folder is None:
            return
        tensors = {"latents": encoded.latents}
        if encoded.weights is not None:
            tensors["weights"] = encoded.weights
        write_bytes(self._folder / f"{key}.latents", save(tensors), overwrite=True)


def _size(encoded: Encoded) -> int:
    blocks = [encoded.latents] + ([encoded.weights] if encoded.weights is not None else [])
    return sum(block.numel() * block.element_size() for block in blocks)
