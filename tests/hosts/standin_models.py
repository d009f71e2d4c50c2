"""Models as the two WebUIs hold them, around the networks of `standin_networks`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from tests.hosts.standin_databases import WIDTHS
from tests.hosts.standin_networks import CrossAttention, Engine, UNet, Vae, lively, sinusoid

SIGMAS = torch.linspace(0.03, 14.6, 1000)


class Sizes(nn.Module):
    """The embedder of one pair of size numbers."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self.input_key = key

    def forward(self, numbers: Tensor) -> Tensor:
        return sinusoid(numbers.flatten(), 256).reshape(len(numbers), -1)


SIZE_KEYS = ("original_size_as_tuple", "crop_coords_top_left", "target_size_as_tuple")


class A1111(nn.Module):
    """A model as `shared.sd_model` is: everything below one module, weights that ask for gradients."""

    lowvram = False
    parameterization = "eps"
    is_sd3 = False
    scale_factor = 0.5

    def __init__(self, engines: list[Engine], family: str, attention: type[CrossAttention]) -> None:
        super().__init__()
        self.kind, self.all = family, engines
        context = sum(WIDTHS[e.embedding_key] for e in engines)
        adm = 1280 + 6 * 256 if family == "sdxl" else None
        self.model = nn.Module()
        self.model.diffusion_model = UNet(context, adm, in_place=False, attention=attention)
        self.model.forward = self._wrapped  # type: ignore[method-assign]
        self.first_stage_model = Vae().requires_grad_(False)
        self.alphas_cumprod_original = 1 / (SIGMAS.square() + 1)
        self.alphas_cumprod = self.alphas_cumprod_original * 0.5  # as a sampling option leaves it
        if family == "sdxl":
            self.conditioner = nn.Module()
            self.conditioner.embedders = nn.ModuleList([*engines, *map(Sizes, SIZE_KEYS)])
            self.conditioner.tokenize = engines[0].tokenize
            self.conditioner.forward = lambda *_: None  # type: ignore[method-assign]
            self.cond_stage_model = self.conditioner
        else:
            self.cond_stage_model = engines[0]

    def _wrapped(self, x: Tensor, t: Tensor, cond: dict[str, Any]) -> Tensor:
        context = cond["crossattn"] if self.kind == "sdxl" else cond["c_crossattn"][0]
        answer: Tensor = self.model.diffusion_model(x, t, context, cond.get("vector"))
        return answer

    def apply_model(self, x: Tensor, t: Tensor, cond: dict[str, Any]) -> Tensor:
        """Casts the entries of the dictionary that it is given, in place."""
        for key, value in cond.items():
            cond[key] = [v.float() for v in value] if isinstance(value, list) else value.float()
        answer: Tensor = self.model(x, t, cond)
        return answer

    def condition(self, prompt: str, size: tuple[int, int]) -> dict[str, Any]:
        """Through the engines' outermost calls, as for a picture."""
        states = [engine([prompt]) for engine in self.all]
        context = torch.cat([each for each, _ in states], dim=-1)
        if self.kind != "sdxl":
            return {"c_crossattn": [context]}
        numbers = torch.tensor([[*size], [0, 0], [*size]], dtype=torch.float32)
        return {"crossattn": context, "vector": torch.cat([states[-1][1], sinusoid(numbers, 256).reshape(1, -1)], 1)}

    def denoise(self, x: Tensor, t: Tensor, cond: dict[str, Any]) -> Tensor:
        """One call of the UNet."""
        return self.apply_model(x, t, dict(cond))

    def decode(self, latents: Tensor) -> Tensor:
        """Latents to pixels in -1…1."""
        return self.first_stage_model.decode(latents)

    def set_medvram(self, moved: list[str]) -> None:
        """Only the module that was called last can compute: the others have another precision, as on another device."""
        self.lowvram = True
        parts = {"text": self.cond_stage_model, "unet": self.model, "vae": self.first_stage_model}
        resident: list[str] = []

        def bring(name: str) -> None:
            if resident == [name]:
                return
            for other, part in parts.items():
                for layer in part.modules():
                    if isinstance(layer, (nn.Linear, nn.Conv2d)):  # a token table would take memory
                        layer.to(torch.float32 if other == name else torch.float64)
            resident[:] = [name]
            moved.append(name)

        hooked = parts if self.kind == "sdxl" else {**parts, "text": self.all[0].wrapped}
        for name, part in hooked.items():
            part.register_forward_pre_hook(lambda _module, _args, name=name: bring(name))


class ForgeEngine:
    """A model as Forge's is: no module, patchers around networks whose weights are inference tensors."""

    def __init__(self, webui: Any, engines: list[Engine], family: str, checkpoint: str, seed: int) -> None:
        self.kind, self.all, self.baked, self.is_inpaint = family, engines, False, False
        self.is_sdxl, self.webui = family == "sdxl", webui
        context = sum(WIDTHS[e.embedding_key] for e in engines)
        unet = UNet(context, 1280 + 6 * 256 if self.is_sdxl else None, in_place=True, attention=attention_of(webui))
        kernel = nn.Module()
        kernel.diffusion_model, kernel.predictor = unet, nn.Module()
        kernel.computation_dtype = torch.float32
        kernel.predictor.register_buffer("sigmas", SIGMAS.clone())
        kernel.predictor.prediction_type = "epsilon"
        lively(kernel, seed)
        clip = nn.Module()
        for engine in engines:
            setattr(clip, engine.embedding_key, engine.text_encoder)
        names = {"clip_l": "text_processing_engine_l", "clip_g": "text_processing_engine_g"}
        for engine in engines:
            setattr(self, names[engine.embedding_key] if self.is_sdxl else "text_processing_engine", engine)
        self.forge_objects = self.forge_objects_original = SimpleNamespace(
            unet=SimpleNamespace(model=kernel, load_device=torch.device("cpu")),
            clip=SimpleNamespace(cond_stage_model=clip, patcher=SimpleNamespace()),
            vae=ForgeVae(),
        )
        self.sd_checkpoint_info = SimpleNamespace(filename=checkpoint, name_for_extra=checkpoint)

    def embedder(self, numbers: Tensor) -> Tensor:
        """Features of size numbers."""
        return sinusoid(numbers, 256)

    def condition(self, prompt: str, size: tuple[int, int]) -> dict[str, Any]:
        """Through the engines' outermost calls, as for a picture."""
        states = [engine([prompt]) for engine in self.all]
        context = torch.cat([each for each, _ in states], dim=-1)
        if not self.is_sdxl:
            return {"context": context}
        numbers = torch.tensor([*size, 0.0, 0.0, *size])
        return {"context": context, "y": torch.cat([states[-1][1], self.embedder(numbers).reshape(1, -1)], 1)}

    def denoise(self, x: Tensor, t: Tensor, cond: dict[str, Any]) -> Tensor:
        """One call of the UNet."""
        answer: Tensor = self.forge_objects.unet.model.diffusion_model(x, t.float(), **cond)
        return answer

    def decode(self, latents: Tensor) -> Tensor:
        """Latents to pixels in -1…1."""
        return self.forge_objects.vae.first_stage_model.decode(latents)


def attention_of(webui: Any) -> type[CrossAttention]:
    """Attention by the function that the host's module holds at the moment of use."""

    class Attention(CrossAttention):
        def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            answer: Tensor = webui.modules["backend.nn.unet"].attention_function(q, k, v)
            return answer

    return Attention


class ForgeVae:
    """Draws from the posterior unless told otherwise."""

    def __init__(self) -> None:
        self.first_stage_model = Vae()
        self.first_stage_model.process_in = lambda latents: latents * 0.5
        self.patcher = SimpleNamespace(model_options={"transformer_options": {}})
        self.vae_dtype = torch.float32

    def encode(self, pixels: Tensor) -> Tensor:
        """Pixels (batch, height, width, 3) in 0…1."""
        inputs = (pixels.movedim(-1, 1) * 2 - 1).to(self.vae_dtype)
        return self.first_stage_model.encode(inputs, self.patcher.model_options.get("model_vae_regulation")).float()
