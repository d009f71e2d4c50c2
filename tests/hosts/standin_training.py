"""Stand-ins for the two WebUIs with a model that computes: what training borrows, and what it must give back.

They have the traps of docs/hosts.md: weights that ask for gradients or are inference tensors, LoRAs left in the
weights, in-place additions, attention without a backward pass, modules that leave when another is called, prompt caches
without the vectors, infotext that grows at each call, a queue lock that is not re-entrant.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from tests.hosts.standin import StandIn, install
from tests.hosts.standin_databases import FAMILIES, WIDTHS
from tests.hosts.standin_networks import (
    CrossAttention,
    Engine,
    ForgeVae,
    Text,
    UNet,
    Vae,
    lively,
    sinusoid,
    unlearnable_attention,
)

SIGMAS = torch.linspace(0.03, 14.6, 1000)


class TrainingStandIn(StandIn):
    """A `StandIn` whose model computes.

    Attributes:
        infotext: what the next picture will say of embeddings.
        moved: names of modules in the order in which ``--medvram`` brought them.
    """

    def __init__(self, kind: str, data: Path) -> None:
        self.infotext: dict[str, str] = {}
        self.moved: list[str] = []
        super().__init__(kind, data)
        self.slot = SimpleNamespace(fixes=None, extra_generation_params={})

    def _make_modules(self) -> dict[str, ModuleType]:
        made = super()._make_modules()
        names = ["modules.devices", "modules.sd_unet", "modules.sd_hijack_optimizations", "sgm", "sgm.modules"]
        names += ["sgm.modules.attention", "networks"]
        if self.kind == "forge":
            names = ["backend.attention", "backend.memory_management", "backend.nn", "backend.nn.unet"]
            names += ["backend.text_processing.emphasis"]
        for name in names:
            made.setdefault(name, ModuleType(name))
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(made[parent], child, made[name])
            made[name].__path__ = []  # type: ignore[attr-defined]
            made[name].__spec__ = SimpleNamespace(name=name, submodule_search_locations=[])  # type: ignore[assignment]
        self._fill_processing(made)
        (self._fill_forge if self.kind == "forge" else self._fill_a1111)(made)
        return made

    def _fill_processing(self, made: dict[str, ModuleType]) -> None:
        shared, processing = made["modules.shared"], made["modules.processing"]
        state = State()
        vars(shared).update(state=state, loaded_hypernetworks=[])
        shared.opts.data.update(CLIP_stop_at_last_layers=1, emphasis="Original")
        base = type("Processing", (), {"cached_c": [None, None], "cached_uc": [None, None]})
        kept = {"cached_hr_c": [None, None], "cached_hr_uc": [None, None], "close": lambda _: None}
        kept["__init__"] = lambda p, **given: vars(p).update(given)
        vars(processing).update(
            StableDiffusionProcessing=base,
            StableDiffusionProcessingTxt2Img=type("Txt2Img", (base,), kept),
            process_images=self.process_images,
        )

    def _fill_a1111(self, made: dict[str, ModuleType]) -> None:
        class Attention(CrossAttention):
            def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
                told = x if context is None else context
                return unlearnable_attention(self.to_q(x), self.to_k(told), self.to_v(told))

        def plain(attention: Any, x: Tensor, context: Tensor | None = None) -> Tensor:
            return CrossAttention.forward(attention, x, context)

        Attention.__name__ = "CrossAttention"
        made["sgm.modules.attention"].CrossAttention = Attention  # type: ignore[attr-defined]
        made["modules.sd_hijack_optimizations"].scaled_dot_product_attention_forward = plain  # type: ignore[attr-defined]
        made["modules.sd_unet"].current_unet_option = None  # type: ignore[attr-defined]
        vars(made["modules.devices"]).update(device=torch.device("cpu"), torch_gc=lambda: None, autocast=nullcontext)
        made["networks"].loaded_networks = []  # type: ignore[attr-defined]
        made["networks"].load_networks = self.load_networks  # type: ignore[attr-defined]
        made["modules.sd_models"].reload_model_weights = lambda: self.model  # type: ignore[attr-defined]
        vars(made["modules.shared"]).update(sd_model=None)

    def _fill_forge(self, made: dict[str, ModuleType]) -> None:
        made["backend.attention"].attention_pytorch = torch.nn.functional.scaled_dot_product_attention  # type: ignore[attr-defined]
        made["backend.nn.unet"].attention_function = unlearnable_attention  # type: ignore[attr-defined]
        made["backend.text_processing.emphasis"].get_current_option = lambda name: lambda: name  # type: ignore[attr-defined]
        vars(made["backend.memory_management"]).update(
            get_torch_device=lambda: torch.device("cpu"),
            is_device_cpu=lambda device: device.type == "cpu",
            text_encoder_device=lambda: torch.device("cpu"),
            load_models_gpu=self.load_models_gpu,
        )
        made["modules.sd_models"].forge_model_reload = self.forge_model_reload  # type: ignore[attr-defined]
        vars(made["modules.shared"]).update(sd_model=None)

    # models

    def switch(self, family: str, **how: Any) -> None:
        """Load a model; A1111's former one goes to ``meta``, as the host sends it to the trash."""
        before = self.model
        super().switch(family, **how)
        self.modules["modules.shared"].sd_model = self.model  # type: ignore[attr-defined]
        if self.kind == "a1111" and before is not None and before is not self.model:
            before.to("meta")

    def _a1111_model(self, family: str, checkpoint: str) -> Any:
        seed = sum(checkpoint.encode())
        torch.manual_seed(seed)
        keys = FAMILIES[family]
        engines = []
        for number, key in enumerate(keys):
            encoder = Text(key, seed + number, self.slot).requires_grad_(False)
            engines.append(Engine(key, encoder, self.slot, lambda: self.database, self.infotext))
        model = A1111(engines, family, self.modules["sgm.modules.attention"].CrossAttention)  # type: ignore[attr-defined]
        model.sd_checkpoint_info = SimpleNamespace(filename=checkpoint, name_for_extra=checkpoint)
        return lively(model, seed)

    def _forge_model(self, family: str, checkpoint: str) -> Any:
        self.modules["modules.sd_models"].model_data.sd_model = None
        seed = sum(checkpoint.encode())
        torch.manual_seed(seed)
        width = sum(WIDTHS[key] for key in FAMILIES[family])
        engines = []
        for number, key in enumerate(FAMILIES[family]):
            database = self.modules["backend.text_processing.textual_inversion"].EmbeddingDatabase(width)
            database.add_embedding_dir(str(self.folder))
            database.load_textual_inversion_embeddings()
            database.fixes = None
            engines.append(Engine(key, Text(key, seed + number, database), database, database, self.infotext))
        return ForgeEngine(self, engines, family, checkpoint, seed)

    def forge_model_reload(self) -> tuple[Any, bool]:
        """Load the selected model where none is."""
        if self.model is None:
            self.switch("sdxl")
        return self.model, False

    # LoRAs

    def lora_weights(self) -> list[nn.Parameter]:
        """Those that a LoRA changes."""
        model = self.model.forge_objects_original.unet.model if self.kind == "forge" else self.model.model
        return [block.attn2.to_k.weight for block in model.diffusion_model.spatial.transformer_blocks]

    def bake_lora(self) -> None:
        """As after a picture that used one: it stays in the weights."""
        with torch.inference_mode(self.kind == "forge"), torch.no_grad():
            for weight in self.lora_weights():
                weight.add_(0.25)
        if self.kind == "forge":
            self.model.baked = True
        else:
            self.modules["networks"].loaded_networks.append("lora")

    def _unbake(self) -> None:
        with torch.inference_mode(self.kind == "forge"), torch.no_grad():
            for weight in self.lora_weights():
                weight.sub_(0.25)

    def load_networks(self, names: list[str]) -> None:
        """A1111's."""
        loaded = self.modules["networks"].loaded_networks
        if loaded and not names:
            self._unbake()
        loaded[:] = names

    def load_models_gpu(self, models: list[Any], hard_memory_preservation: int = 0) -> None:
        """Forge's: brings the base weights back where a LoRA was merged; only in inference mode may it move any."""
        assert torch.is_inference_mode_enabled()
        if self.model.baked:
            self._unbake()
            self.model.baked = False

    # pictures

    def process_images(self, p: Any) -> Any:
        """One picture: prompts through caches that know no vectors, a few steps, the VAE; nobody waits for the lock."""
        assert self.modules["modules.call_queue"].queue_lock.locked(), "model work without the queue"
        shared = self.modules["modules.shared"]
        if shared.state.interrupted:
            return SimpleNamespace(images=[])
        cache = self.modules["modules.processing"].StableDiffusionProcessing.cached_c
        with torch.inference_mode(self.kind == "forge"), torch.no_grad():
            if cache[0] != p.prompt:
                cache[:] = [p.prompt, self.model.condition(p.prompt, (p.height, p.width))]
            x = torch.randn(1, 4, p.height // 8, p.width // 8, generator=torch.Generator().manual_seed(p.seed))
            for step in range(p.steps):
                x = x - 0.3 * self.model.denoise(x, torch.tensor([900 - 200 * step]), cache[1])
            pixels = self.model.decode(x)
        array = ((pixels[0].clone().permute(1, 2, 0) + 1) * 127.5).clamp(0, 255).byte().numpy()
        return SimpleNamespace(images=[Image.fromarray(array)])


class State:
    """`shared.state`."""

    def __init__(self) -> None:
        self.interrupted = self.stopping_generation = False
        self.job, self.job_count, self.jobs = "", 0, []

    def begin(self, job: str) -> None:
        """Forgets an interrupt of before."""
        self.interrupted, self.job, self.job_count = False, job, -1
        self.jobs.append(job)

    def end(self) -> None:
        """The page shows no job any more."""
        self.job, self.job_count = "", 0


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

    def __init__(self, webui: TrainingStandIn, engines: list[Engine], family: str, checkpoint: str, seed: int) -> None:
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


def attention_of(webui: TrainingStandIn) -> type[CrossAttention]:
    """Attention by the function that the host's module holds at the moment of use."""

    class Attention(CrossAttention):
        def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            answer: Tensor = webui.modules["backend.nn.unet"].attention_function(q, k, v)
            return answer

    return Attention


def started(kind: str, family: str, data: Path, monkeypatch: Any) -> tuple[TrainingStandIn, Any]:
    """A stand-in, its model loaded (Forge: none before it is asked for), and our host in it as training sees it."""
    webui = TrainingStandIn(kind, data / f"{kind}-{family}")
    host = install(webui, monkeypatch).install(lambda embedding, vocabulary: embedding)
    if (kind, family) != ("forge", "sdxl"):
        webui.switch(family)
    return webui, host.training_host()
