"""The standalone host: SDXL and SD1.5 models held by diffusers and transformers, without a WebUI."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from PIL import Image
from torch import Tensor

from ti_fix.embedding import SD15, SDXL, Embedding, Family, Vocabulary
from ti_fix.errors import WrongUse
from ti_fix.hosts.standalone_prompt import split_prompt
from ti_fix.hosts.standalone_sample import joined, noise_schedule, sample, starting_noise, to_images
from ti_fix.hosts.standalone_text import TextEncoder
from ti_fix.protocols import Conditioning, ImageRequest, NoiseSchedule, Sizes
from ti_fix.tokenizer import encode

T = TypeVar("T")


class ModelParts(Protocol):
    """What a model is made of: `ti_fix.hosts.standalone_load.Parts`, or one of the small models.

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

    def vocabulary(self) -> Vocabulary:
        return Vocabulary(tables={e.spec.key: e.table.detach() for e in self._encoders}, tokenize=encode)

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
        batch = [split_prompt(prompt, rows, encode) for prompt in prompts]
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
        unet = self._parts.unet
        inputs = noisy.to(unet.device, unet.dtype), timesteps.to(unet.device)
        context = conditioning.context.to(unet.dtype)
        with _added(unet, conditioning.vector) as added:
            output: Tensor = unet(*inputs, context, added_cond_kwargs=added).sample
        return output.to(noisy)

    def _size_features(self, sizes: Sequence[Sizes]) -> Tensor:
        """Sinusoidal features of the six size numbers, (batch, 6 * 256) (arXiv 2307.01952, section 2.2)."""
        numbers = torch.tensor([[*s.original, *s.crop, *s.target] for s in sizes], dtype=torch.float32)
        unet = self._parts.unet
        features: Tensor = unet.add_time_proj(numbers.flatten().to(unet.device))
        return features.reshape(len(sizes), -1)


@contextmanager
def _added(unet: Any, vector: Tensor | None) -> Iterator[dict[str, Tensor] | None]:
    """While open, the UNet's second embedding layer reads `vector` as it stands.

    diffusers wants pooled text and raw sizes apart and joins them itself; the core hands over the joined vector, as
    the hosts do.
    """
    if vector is None:
        yield None
        return
    handle = unet.add_embedding.register_forward_pre_hook(lambda _module, _args: (vector.to(unet.dtype),))
    try:
        yield {"text_embeds": vector, "time_ids": vector.new_zeros(len(vector), 6)}
    finally:
        handle.remove()


class StandaloneHost:
    """A `ti_fix.protocols.Host` around one `StandaloneModel`.

    Args:
        model: the loaded model.
        embedding_folders: folders whose embeddings prompts may call.
        read_folder: reads one of these folders.
        fit: makes an embedding fit the model (the small models fold published widths); the default changes nothing.
    """

    name = "standalone"

    def __init__(
        self,
        model: StandaloneModel,
        *,
        embedding_folders: Sequence[Path] = (),
        read_folder: Callable[[Path], Iterable[Embedding]] = lambda folder: (),
        fit: Callable[[Embedding], Embedding] = lambda embedding: embedding,
    ) -> None:
        self._model = model
        self._folders = tuple(embedding_folders)
        self._read_folder = read_folder
        self._fit = fit
        self._lock = threading.RLock()
        self._known: dict[str, Mapping[str, Tensor]] = {}
        self.refresh_embeddings()

    @property
    def embedding_folders(self) -> Sequence[Path]:
        return self._folders

    def model(self) -> StandaloneModel:
        return self._model

    def run(self, work: Callable[[], T]) -> T:
        with self._lock:
            return work()

    def interrupted(self) -> bool:
        """Never: there is no stop button here but the caller's own."""
        return False

    def refresh_embeddings(self) -> None:
        found = (self._fit(e) for folder in self._folders for e in self._read_folder(folder))
        self._known = {e.name: e.vectors for e in found}

    def generate(self, request: ImageRequest) -> Image.Image:
        return self.generate_many([request])[0]

    @torch.no_grad()
    def generate_many(self, requests: Sequence[ImageRequest]) -> list[Image.Image]:
        """Pictures in the order of the requests; those that agree in size, steps and guidance share a batch.

        Raises:
            WrongUse: a size that the model cannot make.
        """
        groups: dict[tuple[Any, ...], list[tuple[int, Conditioning, Conditioning]]] = {}
        for place, request in enumerate(requests):
            wanted, unwanted = self._condition(request)
            shared = (request.width, request.height, request.steps, request.cfg_scale)
            key = (*shared, wanted.context.shape, unwanted.context.shape)
            groups.setdefault(key, []).append((place, wanted, unwanted))
        images: dict[int, Image.Image] = {}
        for (width, height, steps, cfg_scale, *_), group in groups.items():
            places, wanteds, unwanteds = zip(*group)
            latents = sample(
                self._model.predict,
                self._model.scheduler_config,
                starting_noise([requests[p].seed for p in places], height, width, self._model.latent_scale),
                joined(wanteds),
                joined(unwanteds),
                steps=steps,
                cfg_scale=cfg_scale,
            )
            images.update(zip(places, to_images(self._model.decode_latents(latents))))
        return [images[place] for place in range(len(requests))]

    def _condition(self, request: ImageRequest) -> tuple[Conditioning, Conditioning]:
        """What the UNet is told for the prompt and for the negative prompt, a batch of one each."""
        vectors = {**self._known, **{e.name: e.vectors for e in map(self._fit, request.embeddings)}}
        size = request.height, request.width
        sizes = [Sizes(original=size, target=size)]
        wanted = self._model.encode_prompts([request.prompt], vectors, sizes)
        unwanted = self._model.encode_prompts([request.negative_prompt], vectors, sizes)
        if self._model.family == SDXL and not request.negative_prompt:
            unwanted = self._model.without_text(unwanted)
        return wanted, unwanted
