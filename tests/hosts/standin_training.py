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
from tests.hosts.standin_models import A1111, ForgeEngine
from tests.hosts.standin_networks import CrossAttention, Engine, Text, lively, unlearnable_attention


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


def started(kind: str, family: str, data: Path, monkeypatch: Any) -> tuple[TrainingStandIn, Any]:
    """A stand-in with a model loaded (Forge: none before it is asked for), and our host in it as training sees it."""
    webui = TrainingStandIn(kind, data / f"{kind}-{family}")
    module = install(webui, monkeypatch)
    host = module.install(lambda embedding, vocabulary: embedding)
    if (kind, family) != ("forge", "sdxl"):
        webui.switch(family)
    return webui, host.training_host()
