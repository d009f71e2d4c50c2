"""A WebUI's loaded model as the core asks for it (`ti_fix.protocols.DiffusionModel`), whichever WebUI it is.

The weights are borrowed when text is first encoded and given back before the host does anything of its own with them
(making a picture, encoding one, moving modules), so that a preview runs on the host's model as it always was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from ti_fix.embedding import Family, Vocabulary
from ti_fix.hosts.second_pass import in_two_passes
from ti_fix.hosts.text_path import TextPath
from ti_fix.protocols import Conditioning, NoiseSchedule, Sizes

LARGE = 200_000_000
"""Weights of a UNet from which memory counts more than a second pass through the text encoders."""


class LoadedModel(Protocol):
    """What differs between the WebUIs; `a1111_model` and `forge_model` have one each.

    Attributes:
        family, schedule: see `DiffusionModel`.
        unet: the UNet.
        text: the text encoders.
        moves: whether the host takes the text encoders off the graphics card while the UNet works.
        described: what is written about the checkpoint.
    """

    @property
    def family(self) -> Family: ...
    @property
    def schedule(self) -> NoiseSchedule: ...
    @property
    def unet(self) -> Any: ...
    @property
    def text(self) -> TextPath: ...
    @property
    def moves(self) -> bool: ...
    @property
    def described(self) -> Sequence[str]: ...

    def vocabulary(self) -> Vocabulary:
        """The token tables as ordinary tensors on the same memory."""

    def ensure_loaded(self) -> None:
        """Nothing, while the host has this model loaded.

        Raises:
            TiFixError: it has loaded another one meanwhile.
        """

    def borrowed(self) -> AbstractContextManager[None]:
        """While open, base weights are where they work, take part in autograd, and ask for no gradient.

        Raises:
            TiFixError: the host has loaded another model meanwhile.
        """

    def with_text(self) -> AbstractContextManager[None]:
        """While open, the text encoders are on the device and in the precision that the host runs them in."""

    def size_features(self, sizes: Sequence[Sizes]) -> Tensor | None:
        """(batch, width) features of the six size numbers; None where the family has none."""

    def predict(self, noisy: Tensor, timesteps: Tensor, conditioning: Conditioning) -> Tensor:
        """The UNet's raw output."""

    def encode_images(self, pixels: Tensor, precision: str = "") -> Tensor:
        """Scaled latents by the host's own VAE, the mean of the posterior; not borrowed.

        Args:
            pixels: (batch, 3, height, width) in -1…1.
            precision: ``bfloat16`` or ``float32``; empty for the one that it is loaded in.
        """


def told_of(model: Any) -> tuple[str, ...]:
    """What a WebUI knows of its loaded checkpoint: file name, and the texts in its header (titles, merge recipes)."""
    about = getattr(model, "sd_checkpoint_info", None)
    header = dict(getattr(about, "metadata", None) or {})
    texts = (str(text) for key, text in header.items() if "thumbnail" not in key)
    return (str(getattr(about, "name", "")), *texts)


class HostModel:
    """See the module.

    Args:
        loaded: the model.
        two_passes: whether the text encoders run again in the backward pass; by default where memory counts.
    """

    def __init__(self, loaded: LoadedModel, *, two_passes: bool | None = None) -> None:
        self._loaded = loaded
        self._two_passes = two_passes
        self._open = 0
        self._borrowed = ExitStack()
        self._taken = False

    @property
    def family(self) -> Family:
        return self._loaded.family

    @property
    def schedule(self) -> NoiseSchedule:
        return self._loaded.schedule

    @property
    def unet(self) -> Any:
        return self._loaded.unet

    @property
    def text(self) -> TextPath:
        """The text encoders, for a host that makes pictures with vectors of ours."""
        return self._loaded.text

    @property
    def two_passes(self) -> bool:
        """Whether the text encoders run again in the backward pass."""
        if self._two_passes is None:
            large = sum(p.numel() for p in self.unet.parameters()) >= LARGE
            self._two_passes = large or self._loaded.moves
        return self._two_passes

    @property
    def described(self) -> Sequence[str]:
        """What is written about the checkpoint; see `protocols.Described`."""
        return self._loaded.described

    def vocabulary(self) -> Vocabulary:
        """The token tables themselves, with the tokenizer they belong to."""
        return self._loaded.vocabulary()

    @contextmanager
    def trainable(self) -> Iterator[None]:
        """While open, the weights take part in autograd whenever they are needed; at the end all is given back."""
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            if not self._open:
                self.give_back()

    def ensure_loaded(self) -> None:
        """See `LoadedModel`."""
        self._loaded.ensure_loaded()

    def give_back(self) -> None:
        """Put everything back as the host knows it; what is needed next is borrowed again."""
        self._taken = False
        self._borrowed.close()

    @contextmanager
    def _working(self) -> Iterator[None]:
        if not self._taken:
            self._borrowed.enter_context(self._loaded.borrowed())
            self._taken = True
        try:
            yield
        finally:
            if not self._open:
                self.give_back()

    def encode_images(self, pixels: Tensor) -> Tensor:
        """Pixels (batch, 3, height, width) in -1…1 -> scaled latents (batch, 4, height / 8, width / 8)."""
        self.give_back()
        return self._loaded.encode_images(pixels)

    def encode_images_in(self, pixels: Tensor, precision: str) -> Tensor:
        """`encode_images` with the VAE in ``bfloat16`` or ``float32`` for this call; its weights are not touched."""
        self.give_back()
        return self._loaded.encode_images(pixels, precision)

    def encode_prompts(
        self, prompts: Sequence[str], tensors: Mapping[str, Mapping[str, Tensor]], sizes: Sequence[Sizes]
    ) -> Conditioning:
        """The host's own encode path, differentiable in the tensors.

        Raises:
            WrongUse: vectors of another width than the model's.
        """
        places = [(trigger, key) for trigger, blocks in tensors.items() for key in blocks]
        leaves = [tensors[trigger][key] for trigger, key in places]

        def encode(values: Sequence[Tensor]) -> tuple[Tensor, ...]:
            filled: dict[str, dict[str, Tensor]] = {trigger: {} for trigger in tensors}
            for (trigger, key), value in zip(places, values, strict=True):
                filled[trigger][key] = value
            with self._working(), self._loaded.with_text():
                context, pooled = self._loaded.text.encode(prompts, filled)
            return (context,) if pooled is None else (context, pooled)

        with self._working():
            learning = torch.is_grad_enabled() and any(leaf.requires_grad for leaf in leaves)
            outputs = in_two_passes(encode, leaves) if learning and self.two_passes else encode(leaves)
            features = self._loaded.size_features(sizes)
        context, *pooled = outputs
        if features is None or not pooled:
            return Conditioning(context=context)
        return Conditioning(context=context, vector=torch.cat([pooled[0], features.to(pooled[0])], dim=-1))

    def predict(self, noisy: Tensor, timesteps: Tensor, conditioning: Conditioning) -> Tensor:
        """The UNet's raw output, in the type and on the device of `noisy`."""
        with self._working():
            return self._loaded.predict(noisy, timesteps, conditioning).to(noisy)
