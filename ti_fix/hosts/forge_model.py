"""Forge's loaded SDXL or SD1.5 model for training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from backend import attention, memory_management
from backend.nn import unet as unet_module
from backend.text_processing import emphasis
from modules import sd_models, shared
from torch import Tensor

from ti_fix import tokenizer
from ti_fix.embedding import CLIP_G, CLIP_L, FLUX, SD15, SDXL, Family, Vocabulary
from ti_fix.errors import TiFixError, WrongUse
from ti_fix.hosts.borrow import alias, aliased, attribute, frozen, norms_apart, unusable, widened
from ti_fix.hosts.host_model import told_of
from ti_fix.hosts.kind import embedding_rows
from ti_fix.hosts.text_path import HostEncoder, TextPath
from ti_fix.protocols import Conditioning, NoiseSchedule, Sizes

ENGINES = ("text_processing_engine", "text_processing_engine_l", "text_processing_engine_g")
"""Where the host keeps the text encoders that take embeddings: the first in SD1.5, the others in SDXL."""

ROOM = 4
"""Times the memory that the host counts for making a picture of a size, kept free for a training step at that size."""


def load() -> ForgeModel:
    """The selected model, loaded if it is not; the host starts without one.

    Raises:
        WrongUse: it cannot be trained with; names the model.
        TiFixError: the host could not load it.
    """
    try:
        model, _ = sd_models.forge_model_reload()
    except (ValueError, KeyError, AttributeError, RuntimeError, OSError) as error:
        raise TiFixError(f"Forge cannot load the selected checkpoint ({error}); choose another one.") from None
    if getattr(model, "forge_objects", None) is None:
        raise TiFixError("Forge has no model loaded; choose a checkpoint, make one picture, then try again.")
    refuse(model)
    return ForgeModel(model)


def refuse(model: Any) -> None:
    """Say why this model, as it is loaded, cannot be trained with.

    Raises:
        WrongUse: in one sentence.
    """
    checkpoint = getattr(getattr(model, "sd_checkpoint_info", None), "name_for_extra", "") or "The loaded checkpoint"
    unet = getattr(model.forge_objects.unet.model, "diffusion_model", None)
    keys = {engine.embedding_key for engine in _engines(model)}
    kind = type(model).__name__.lower()
    if any(word in kind for word in (FLUX.name, "chroma", "diffusion3")) or getattr(model, "is_sd3", False):
        raise WrongUse(f"{checkpoint} is no SDXL or SD1.5 model (Flux and SD3 cannot be trained); load one.")
    if keys == {CLIP_G.key}:
        raise WrongUse(f"{checkpoint} is the SDXL refiner; load the base model to train.")
    if keys not in ({CLIP_L.key, CLIP_G.key}, {CLIP_L.key}) or unet is None:
        raise WrongUse(f"{checkpoint} is no SDXL or SD1.5 model; load one.")
    channels = getattr(unet, "in_channels", 4)
    if getattr(model, "is_inpaint", False) or channels != 4:
        raise WrongUse(f"{checkpoint} is an inpainting or editing model ({channels} channels); load a plain one.")
    predicts = getattr(model.forge_objects.unet.model.predictor, "prediction_type", "epsilon")
    if predicts not in ("epsilon", "v_prediction"):
        raise WrongUse(f"{checkpoint} predicts {predicts!r}; only epsilon and v_prediction can be trained.")
    reason = unusable([unet, model.forge_objects.clip.cond_stage_model])
    if reason:
        raise WrongUse(f"{checkpoint} cannot be trained with: {reason}; load it in 16 bits or fp8.")


def _engines(model: Any) -> list[Any]:
    return [engine for name in ENGINES if (engine := getattr(model, name, None)) is not None]


class ForgeModel:
    """A `host_model.LoadedModel`.

    Args:
        model: `sd_models.model_data.sd_model`; must stay the loaded one.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._sdxl = bool(getattr(model, "is_sdxl", False))
        self._patcher = model.forge_objects_original.unet
        self._clip = model.forge_objects_original.clip
        self._kernel = self._patcher.model
        self._area = (8, 8)
        self.text = TextPath([self._encoder(engine) for engine in _engines(model)])

    @staticmethod
    def _encoder(engine: Any) -> HostEncoder:
        return HostEncoder(
            key=engine.embedding_key,
            engine=engine,
            slot=engine.embeddings,
            database=engine.embeddings,
            width=CLIP_G.width if engine.embedding_key == CLIP_G.key else CLIP_L.width,
            device=lambda: torch.device(memory_management.text_encoder_device()),
            pooled=bool(engine.return_pooled),
        )

    @property
    def family(self) -> Family:
        return SDXL if self._sdxl else SD15

    @property
    def schedule(self) -> NoiseSchedule:
        """By the predictor; with zero terminal SNR the host rescales its sigmas alone."""
        sigmas = alias(self._kernel.predictor.sigmas).float().cpu()
        return NoiseSchedule(
            alphas_cumprod=1 / (sigmas.double().square() + 1).float(),
            prediction_type=self._kernel.predictor.prediction_type,
        )

    @property
    def unet(self) -> Any:
        return self._kernel.diffusion_model

    @property
    def moves(self) -> bool:
        """Whether layers wait in main memory: their copies on the card must not be kept until the backward pass."""
        return any(hasattr(part, "prev_parameters_manual_cast") for part in self._kernel.modules())

    @property
    def described(self) -> Sequence[str]:
        return told_of(self._model)

    def vocabulary(self) -> Vocabulary:
        """The token tables."""
        tables = {}
        for engine in _engines(self._model):
            rows = embedding_rows(engine.text_encoder)
            if rows is not None:
                tables[engine.embedding_key] = alias(rows)
        return Vocabulary(tables=tables, tokenize=tokenizer.encode)

    def ensure_loaded(self) -> None:
        """See `LoadedModel`."""
        if sd_models.model_data.sd_model is not self._model:
            raise TiFixError("Forge has loaded another model meanwhile; start again with that one.")

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        """Base weights without LoRAs, on the device, as ordinary tensors; plain attention; norms with own inputs."""
        self.ensure_loaded()
        self._place()
        modules = [self._kernel, self._clip.cond_stage_model]
        with ExitStack() as stack:
            stack.enter_context(aliased(modules))
            stack.enter_context(frozen(modules))
            stack.enter_context(attribute(unet_module, "attention_function", attention.attention_pytorch))
            stack.enter_context(norms_apart(self.unet))
            for engine in _engines(self._model):
                skip = int(getattr(shared.opts, "CLIP_stop_at_last_layers", 1))
                stack.enter_context(attribute(engine, "clip_skip", skip))
                chosen = emphasis.get_current_option(shared.opts.emphasis)()
                stack.enter_context(attribute(engine, "emphasis", chosen))
            yield

    def _place(self) -> None:
        """Base weights to the device, as the host loads them, with room for a step; all else away from it.

        Moving is done in inference mode, as the host does it: its weights are inference tensors.
        """
        with torch.inference_mode():
            wanted = [self._clip.patcher, self._patcher]
            height, width = self._area
            device = memory_management.get_torch_device()
            on_card = not memory_management.is_device_cpu(device)
            room = ROOM * self._patcher.memory_required((1, 4, height, width)) if on_card else 0
            memory_management.load_models_gpu(wanted, hard_memory_preservation=int(room))
            if on_card:
                keep = [memory_management.LoadedModel(each) for each in wanted]
                memory_management.free_memory(1e30, device, keep_loaded=keep)

    @contextmanager
    def with_text(self) -> Iterator[None]:
        """The encoders stay where `borrowed` has put them."""
        yield

    def size_features(self, sizes: Sequence[Sizes]) -> Tensor | None:
        """By the host's own embedder."""
        if not self._sdxl:
            return None
        numbers = torch.tensor([[*s.original, *s.crop, *s.target] for s in sizes], dtype=torch.float32)
        features: Tensor = self._model.embedder(numbers.flatten())
        return features.reshape(len(sizes), -1)

    def predict(self, noisy: Tensor, timesteps: Tensor, conditioning: Conditioning) -> Tensor:
        """By the UNet itself, with options of its own: the host's default for them is one object for all calls."""
        like = next(self.unet.parameters())
        device = like.device if like.is_meta else torch.device(self._patcher.load_device)
        kind = self._kernel.computation_dtype
        vector = conditioning.vector
        output: Tensor = self.unet(
            noisy.to(device, kind),
            timesteps.to(device).float(),
            context=conditioning.context.to(device, kind),
            y=None if vector is None else vector.to(device, kind),
            transformer_options={},
        )
        return output.float()

    def encode_images(self, pixels: Tensor, precision: str = "") -> Tensor:
        """The mean of the posterior, by the host's own VAE, which it brings to the device and tiles if it must."""
        vae = self._model.forge_objects_original.vae
        options = {**vae.patcher.model_options, "model_vae_regulation": lambda posterior: posterior.mode()}
        wider = _wider(vae, getattr(torch, precision)) if precision else nullcontext()
        with attribute(vae.patcher, "model_options", options), wider, torch.inference_mode():
            samples = vae.encode(pixels.movedim(1, -1) * 0.5 + 0.5)
            latents = vae.first_stage_model.process_in(samples)
        self._area = max(self._area, (latents.shape[-2], latents.shape[-1]), key=lambda size: size[0] * size[1])
        with torch.inference_mode(False):
            return torch.empty(latents.shape).copy_(latents).to(pixels)


@contextmanager
def _wider(vae: Any, kind: torch.dtype) -> Iterator[None]:
    """While open, the VAE encodes in another precision: its weights are widened where the host has placed them."""
    network = vae.first_stage_model
    encode = network.encode

    def wide(*given: Any) -> Any:
        with widened([network], kind):
            return encode(*given)

    with attribute(network, "encode", wide), attribute(vae, "vae_dtype", kind):
        yield
