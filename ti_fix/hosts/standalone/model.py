"""SDXL and SD1.5 models held by diffusers and transformers, as the core asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import ModuleList

from ti_fix.embedding import SD15, SDXL, Family, Vocabulary
from ti_fix.errors import WrongUse
from ti_fix.hosts.environment import precisions
from ti_fix.hosts.standalone.sample import noise_schedule
from ti_fix.hosts.standalone.text import TextEncoder
from ti_fix.hosts.text_modules import encoder_of
from ti_fix.prompt import Chunk, split_prompt
from ti_fix.protocols import Conditioning, NoiseSchedule, Sizes
from ti_fix.text_model import TextModel
from ti_fix.tokenizer import encode


class ModelParts(Protocol):
    """What a model is made of: `ti_fix.hosts.standalone.load.Parts`, or one of the small models.

    Attributes:
        unet, vae: diffusers' ``UNet2DConditionModel`` and ``AutoencoderKL``.
        text_encoders: encoder key -> transformers' CLIP text model (with projection for ``clip_g``).
        scheduler_config: betas and prediction type as diffusers' ``scheduler_config.json`` has them.
    """

    @property
    def family(self) -> Family: ...
    @property
    def unet(self) -> Any: ...
    @property
    def vae(self) -> Any: ...
    @property
    def text_encoders(self) -> Mapping[str, Any]: ...
    @property
    def scheduler_config(self) -> Mapping[str, Any]: ...


class StandaloneModel:
    """A `ti_fix.protocols.DiffusionModel` over diffusers modules.

    Args:
        parts: the modules; they stay on their device and in their precision.
        clip_skip: SD1.5 only, as the WebUIs count it: 1 reads the last layer, 2 the one before.
    """

    def __init__(self, parts: ModelParts, *, clip_skip: int = 1) -> None:
        if parts.family not in (SD15, SDXL):
            raise WrongUse(f"{parts.family.title} models cannot be used here. Load an SDXL or SD1.5 model.")
        self._parts = parts
        sdxl = parts.family == SDXL
        self._encoders = tuple(
            TextEncoder(spec=s, module=parts.text_encoders[s.key], skip=2 if sdxl else clip_skip, final_norm=not sdxl)
            for s in parts.family.encoders
        )
        self._schedule = noise_schedule(parts.scheduler_config)
        self.described: Sequence[str] = getattr(parts, "described", ())

    @property
    def family(self) -> Family:
        return self._parts.family

    @property
    def schedule(self) -> NoiseSchedule:
        return self._schedule

    @property
    def unet(self) -> Any:
        return self._parts.unet

    @property
    def scheduler_config(self) -> Mapping[str, Any]:
        """Betas and prediction type, for a sampler."""
        return self._parts.scheduler_config

    @property
    def latent_scale(self) -> int:
        """Pixels per latent along each side, 8 in the published models."""
        return int(2 ** (len(self._parts.vae.config.block_out_channels) - 1))

    @property
    def picture_size(self) -> int:
        """Pixels along the side of the squares that it is made for; single-file checkpoints tell only the family."""
        told = self.unet.config.sample_size
        return int(told) * self.latent_scale if isinstance(told, int) else 512 if self.family == SD15 else 1024

    def vocabulary(self) -> Vocabulary:
        """The token tables themselves, not copies, with the tokenizer they belong to."""
        tables = {e.spec.key: e.table.detach() for e in self._encoders}
        return Vocabulary(tables=tables, tokenize=encode, trained=getattr(self._parts, "trained", None))

    def text_model(self) -> TextModel:
        """Its text side; the published tokenizer, which this host always uses, is left out."""
        return TextModel(
            name=next(iter(self.described), "loaded model"),
            family=self.family,
            encoders=tuple(
                encoder_of(e.spec.key, e.spec, e.module, layer=e.skip, final_norm=e.final_norm) for e in self._encoders
            ),
        )

    def environment(self) -> list[tuple[str, str]]:
        """Names and values: device and precisions of its weights."""
        encoders = ModuleList(e.module for e in self._encoders)
        return [("device", str(self.unet.device)), *precisions(encoders, self.unet)]

    @contextmanager
    def trainable(self) -> Iterator[None]:
        """Freeze the weights, so that gradients go to the vectors alone; flags are restored on exit."""
        modules = (self._parts.unet, self._parts.vae, *(e.module for e in self._encoders))
        parameters = [(p, p.requires_grad) for m in modules for p in m.parameters()]
        modes = [(sub, sub.training) for m in modules for sub in m.modules()]
        try:
            for parameter, _ in parameters:
                parameter.requires_grad_(False)
            for module in modules:
                module.eval()
            yield
        finally:
            for parameter, flag in parameters:
                parameter.requires_grad_(flag)
            for sub, training in modes:
                sub.training = training

    @torch.no_grad()
    def encode_images(self, pixels: Tensor) -> Tensor:
        """Pixels (batch, 3, height, width) in -1…1 -> scaled latents: the mean of the posterior, not a sample."""
        vae = self._parts.vae
        mean: Tensor = vae.encode(pixels.to(vae.device, vae.dtype)).latent_dist.mean
        latents = mean * float(vae.config.scaling_factor)
        return latents.to(pixels)

    def encode_images_in(self, pixels: Tensor, precision: str) -> Tensor:
        """`encode_images` with the VAE in another precision, bit for bit as it was afterwards.

        Args:
            pixels: as there.
            precision: ``bfloat16`` or ``float32``.
        """
        vae = self._parts.vae
        kept = {name: tensor.data for name, tensor in (*vae.named_parameters(), *vae.named_buffers())}
        try:
            torch.nn.Module.to(vae, getattr(torch, precision))  # diffusers' own warns of what is wanted here
            return self.encode_images(pixels)
        finally:
            for name, tensor in (*vae.named_parameters(), *vae.named_buffers()):
                tensor.data = kept[name]

    @torch.no_grad()
    def decode_latents(self, latents: Tensor) -> Tensor:
        """Scaled latents (batch, 4, height, width) -> pixels (batch, 3, …) in -1…1."""
        vae = self._parts.vae
        pixels: Tensor = vae.decode((latents / vae.config.scaling_factor).to(vae.device, vae.dtype)).sample
        return pixels.clamp(-1, 1).to(latents)

    def encode_prompts(
        self, prompts: Sequence[str], tensors: Mapping[str, Mapping[str, Tensor]], sizes: Sequence[Sizes]
    ) -> Conditioning:
        """Texts to conditioning by the WebUIs' rules, differentiable in the tensors.

        Raises:
            WrongUse: vectors of another width than the model's, or too many for one chunk.
        """
        rows = {trigger: max((len(b) for b in blocks.values()), default=0) for trigger, blocks in tensors.items()}
        batch = [_split(prompt, tuple(rows.items())) for prompt in prompts]
        encoded = [encoder.encode(batch, tensors) for encoder in self._encoders]
        context = torch.cat([hidden for hidden, _ in encoded], dim=-1)
        pooled = encoded[-1][1]
        if self.family != SDXL or pooled is None:
            return Conditioning(context=context)
        return Conditioning(context=context, vector=torch.cat([pooled, self._size_features(sizes).to(pooled)], dim=-1))

    def without_text(self, conditioning: Conditioning) -> Conditioning:
        """The same sizes with the text zeroed: what SDXL was trained to take for an empty (negative) prompt."""
        vector = conditioning.vector
        if vector is not None:
            sizes = 6 * self._parts.unet.config.addition_time_embed_dim
            vector = torch.cat([torch.zeros_like(vector[:, :-sizes]), vector[:, -sizes:]], dim=-1)
        return Conditioning(context=torch.zeros_like(conditioning.context), vector=vector)

    def predict(self, noisy: Tensor, timesteps: Tensor, conditioning: Conditioning) -> Tensor:
        """The UNet's raw output, in the type and on the device of `noisy`."""
        unet, like = self._parts.unet, _first_parameter(self._parts.unet)
        inputs = noisy.to(like), timesteps.to(like.device)
        context = conditioning.context.to(like)
        with _added(unet, conditioning.vector) as added:
            output: Tensor = unet(*inputs, context, added_cond_kwargs=added).sample
        return output.to(noisy)

    def _size_features(self, sizes: Sequence[Sizes]) -> Tensor:
        """Sinusoidal features of the six size numbers, (batch, 6 * 256) (arXiv 2307.01952, section 2.2)."""
        numbers = torch.tensor([[*s.original, *s.crop, *s.target] for s in sizes], dtype=torch.float32)
        unet = self._parts.unet
        features: Tensor = unet.add_time_proj(numbers.flatten().to(_first_parameter(unet).device))
        return features.reshape(len(sizes), -1)


@lru_cache(maxsize=4096)
def _split(prompt: str, rows: tuple[tuple[str, int], ...]) -> tuple[Chunk, ...]:
    """Training sends the same few captions at every step."""
    return split_prompt(prompt, dict(rows), encode)


def _first_parameter(module: Any) -> Tensor:
    """Tells device and precision; diffusers' own properties walk through all modules, which shows in every step."""
    first: Tensor = next(module.parameters())
    return first


@contextmanager
def _added(unet: Any, vector: Tensor | None) -> Iterator[dict[str, Tensor] | None]:
    """While open, the UNet's second embedding layer reads `vector` as it stands.

    diffusers wants pooled text and raw sizes apart and joins them itself; the core hands over the joined vector, as
    the hosts do.
    """
    if vector is None:
        yield None
        return
    handle = unet.add_embedding.register_forward_pre_hook(lambda _module, _args: (vector.to(_first_parameter(unet)),))
    try:
        yield {"text_embeds": vector, "time_ids": vector.new_zeros(len(vector), 6)}
    finally:
        handle.remove()
