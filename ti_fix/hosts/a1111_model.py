"""AUTOMATIC1111's loaded SDXL or SD1.5 model for training."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from modules import devices, sd_hijack, sd_hijack_optimizations, sd_models, sd_unet, shared
from torch import Tensor

from ti_fix import tokenizer
from ti_fix.embedding import CLIP_G, CLIP_L, SD15, SDXL, Family, Vocabulary
from ti_fix.errors import TiFixError, WrongUse
from ti_fix.hosts.borrow import attribute, called_through, frozen, unusable, widened
from ti_fix.hosts.host_model import told_of
from ti_fix.hosts.kind import embedding_rows
from ti_fix.hosts.text_path import HostEncoder, TextPath
from ti_fix.protocols import Conditioning, NoiseSchedule, Sizes

ATTENTIONS = ("ldm.modules.attention", "sgm.modules.attention")
"""Modules whose `CrossAttention` the host gives the forward function of the chosen optimisation."""


def load() -> A1111Model:
    """The selected model, loaded if it is not.

    Raises:
        WrongUse: it cannot be trained with; names the flag or the model.
        TiFixError: the host could not load it.
    """
    model = shared.sd_model
    if model is not None:
        sd_models.reload_model_weights()
        model = shared.sd_model
    if model is None:
        raise TiFixError("The WebUI has no model loaded; choose a checkpoint that works, then try again.")
    refuse(model)
    return A1111Model(model)


def refuse(model: Any) -> None:
    """Say why this model, as it is loaded, cannot be trained with.

    Raises:
        WrongUse: in one sentence.
    """
    checkpoint = getattr(getattr(model, "sd_checkpoint_info", None), "name_for_extra", "") or "The loaded checkpoint"
    if hasattr(model, "forge_objects"):
        raise WrongUse(
            "This WebUI keeps its model in ldm_patched, which ti_fix does not train in yet: use AUTOMATIC1111, Forge, "
            "or ti-fix train on the command line."
        )
    if getattr(shared.cmd_opts, "lowvram", False):
        raise WrongUse("--lowvram moves the UNet piece by piece, so nothing can be learned: start with --medvram.")
    unet = getattr(getattr(model, "model", None), "diffusion_model", None)
    encoders = {key for key, _ in _tables(model)}
    if getattr(model, "is_sd3", False) or unet is None:
        raise WrongUse(f"{checkpoint} is no SDXL or SD1.5 model (SD3, for instance, cannot be trained); load one.")
    if encoders == {CLIP_G.key}:
        raise WrongUse(f"{checkpoint} is the SDXL refiner; load the base model to train.")
    if encoders not in ({CLIP_L.key, CLIP_G.key}, {CLIP_L.key}):
        raise WrongUse(f"{checkpoint} is no SDXL or SD1.5 model; load one.")
    channels = getattr(unet, "in_channels", 4)
    if channels != 4:
        raise WrongUse(f"{checkpoint} is an inpainting or editing model ({channels} channels); load a plain one.")
    if getattr(sd_unet, "current_unet_option", None) is not None:
        label = getattr(sd_unet.current_unet_option, "label", "")
        raise WrongUse(f"SD Unet is set to {label!r}, through which nothing can be learned: set it to None.")
    reason = unusable([unet, model.cond_stage_model])
    if reason:
        raise WrongUse(f"{checkpoint} cannot be trained with: {reason}; load it again, or another one.")


class A1111Model:
    """A `host_model.LoadedModel`.

    Args:
        model: `shared.sd_model`; must stay the loaded one.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._sdxl = hasattr(model, "conditioner")
        self._stage = model.cond_stage_model
        members = self._stage.embedders if self._sdxl else [self._stage]
        wrapped = [each for each in members if hasattr(each, "process_tokens")]
        self._size_embedders = [each for each in members if not hasattr(each, "process_tokens")]
        self.text = TextPath([self._encoder(each) for each in wrapped])

    def _encoder(self, engine: Any) -> HostEncoder:
        rows = embedding_rows(engine.wrapped)
        spec = CLIP_G if rows is not None and rows.shape[1] == CLIP_G.width else CLIP_L
        return HostEncoder(
            key=spec.key,
            engine=engine,
            slot=engine.hijack,
            database=sd_hijack.model_hijack.embedding_db,
            width=spec.width,
            device=lambda: torch.device(devices.device),
            pooled=bool(getattr(engine, "return_pooled", False)),
        )

    @property
    def family(self) -> Family:
        return SDXL if self._sdxl else SD15

    @property
    def schedule(self) -> NoiseSchedule:
        """By the checkpoint, not by the sampling options, which write into `alphas_cumprod`."""
        signal = getattr(self._model, "alphas_cumprod_original", None)
        signal = self._model.alphas_cumprod if signal is None else signal
        velocity = getattr(self._model, "parameterization", "eps") == "v"
        return NoiseSchedule(
            alphas_cumprod=signal.detach().float().cpu().clone(),
            prediction_type="v_prediction" if velocity else "epsilon",
        )

    @property
    def unet(self) -> Any:
        return self._model.model.diffusion_model

    @property
    def moves(self) -> bool:
        """`--medvram`: a hook brings the module that is needed and takes the others away."""
        return bool(getattr(self._model, "lowvram", False))

    @property
    def described(self) -> Sequence[str]:
        return told_of(self._model)

    def vocabulary(self) -> Vocabulary:
        """The token tables."""
        return Vocabulary(tables=dict(_tables(self._model)), tokenize=tokenizer.encode)

    def ensure_loaded(self) -> None:
        """See `LoadedModel`."""
        if sd_models.model_data.sd_model is not self._model:
            raise TiFixError("The WebUI has loaded another model meanwhile; start again with that one.")

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        """Base weights without LoRAs and hypernetworks, frozen; plain attention; the VAE off the graphics card."""
        self.ensure_loaded()
        _without_networks()
        with ExitStack() as stack:
            stack.enter_context(frozen([self.unet, self._stage, self._model.first_stage_model]))
            for name in ATTENTIONS:
                owner = getattr(sys.modules.get(name), "CrossAttention", None)
                plain = getattr(sd_hijack_optimizations, "scaled_dot_product_attention_forward", None)
                if owner is not None and plain is not None:
                    stack.enter_context(attribute(owner, "forward", plain))
            stack.enter_context(self._vae_away())
            yield

    @contextmanager
    def _vae_away(self) -> Iterator[None]:
        """The VAE waits in main memory; with `--medvram` the host sees to that itself."""
        vae = self._model.first_stage_model
        home = next(vae.parameters()).device
        if self.moves or home.type == "cpu":
            yield
            return
        vae.to("cpu")
        devices.torch_gc()
        try:
            yield
        finally:
            vae.to(home)

    @contextmanager
    def with_text(self) -> Iterator[None]:
        """With `--medvram` SDXL's encoders come when their common parent is called."""
        if self._sdxl and self.moves:
            called_through(self._stage, lambda: None)
        with devices.autocast():
            yield

    def size_features(self, sizes: Sequence[Sizes]) -> Tensor | None:
        """By the host's own embedders, which stand behind the text encoders."""
        if not self._sdxl:
            return None
        numbers = {
            "original_size_as_tuple": [each.original for each in sizes],
            "crop_coords_top_left": [each.crop for each in sizes],
            "target_size_as_tuple": [each.target for each in sizes],
        }
        parts = [
            embedder(torch.tensor(numbers[embedder.input_key], device=devices.device, dtype=torch.float32))
            for embedder in self._size_embedders
            if embedder.input_key in numbers
        ]
        return torch.cat([part.float() for part in parts], dim=1)

    def predict(self, noisy: Tensor, timesteps: Tensor, conditioning: Conditioning) -> Tensor:
        """By the host's `apply_model`, which casts, and writes into the dictionary that it is given."""
        like = next(self.unet.parameters())
        context = conditioning.context.to(like.device)
        if self._sdxl:
            told: dict[str, Any] = {"crossattn": context}
            if conditioning.vector is not None:
                told["vector"] = conditioning.vector.to(like.device)
        else:
            told = {"c_crossattn": [context]}
        # counted on tensors without content: a hook of --medvram must not try to move such weights
        silent = attribute(self._model.model, "_forward_pre_hooks", {}) if like.is_meta else nullcontext()
        with silent, devices.autocast():
            output: Tensor = self._model.apply_model(noisy.to(like.device), timesteps.to(like.device), told)
        return output

    @torch.no_grad()
    def encode_images(self, pixels: Tensor, precision: str = "") -> Tensor:
        """The mean of the posterior; the host's own function draws from it."""
        vae = self._model.first_stage_model

        def moments() -> Tensor:  # weights are widened where the hooks have brought them
            with widened([vae], getattr(torch, precision)) if precision else nullcontext():
                found: Tensor = vae.quant_conv(vae.encoder(pixels.to(next(vae.parameters()))))
            return found

        mean, _ = called_through(vae, moments).float().chunk(2, dim=1)
        return (mean * float(self._model.scale_factor)).to(pixels)


def _without_networks() -> None:
    """LoRAs stay in the weights, and hypernetworks in the attention, after a picture that used some."""
    networks = sys.modules.get("networks")
    if getattr(networks, "loaded_networks", None):
        networks.load_networks([])  # type: ignore[union-attr]
    if getattr(shared, "loaded_hypernetworks", None):
        from modules.hypernetworks import hypernetwork

        hypernetwork.load_hypernetworks([])


def _tables(model: Any) -> Iterator[tuple[str, Tensor]]:
    stage = getattr(model, "cond_stage_model", None)
    for member in getattr(stage, "embedders", None) or [stage]:
        rows = embedding_rows(getattr(member, "wrapped", None))
        key = {CLIP_L.width: CLIP_L.key, CLIP_G.width: CLIP_G.key}.get(rows.shape[1]) if rows is not None else None
        if rows is not None and key:
            yield key, rows.detach()
