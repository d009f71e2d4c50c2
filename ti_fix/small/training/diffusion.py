"""Train the small diffusion models: ``python -m ti_fix.small.training.diffusion NAME --work DIR`` (resumable).

``sdxl`` predicts noise (what hosts assume of a plain SDXL checkpoint), ``sd15`` shares its L tower, ``sdxl-v`` is a
v-prediction fine-tune with zero terminal SNR, ``sdxl-twin`` a fine-tune that knows the held-out concepts by names.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import UNet2DConditionModel
from torch import Tensor, nn

from ti_fix.small import captions
from ti_fix.small.captions import Described
from ti_fix.small.concepts import concepts
from ti_fix.small.schedule import alphas_cumprod
from ti_fix.small.training import report
from ti_fix.small.training.checkpoint import Pacer, load_checkpoint, save_checkpoint
from ti_fix.small.training.encoders import TextEncoder, finished_tower, token_ids
from ti_fix.small.training.muon import Muon
from ti_fix.small.training.pool import ScenePool, guide_latents

_COMMON: dict[str, Any] = {
    "sample_size": 16,
    "in_channels": 4,
    "out_channels": 4,
    "layers_per_block": 1,
    "norm_num_groups": 8,
}
UNET: dict[str, dict[str, Any]] = {
    "sdxl": _COMMON
    | {
        "block_out_channels": (64, 64, 64),
        "attention_head_dim": (2, 2, 2),
        "transformer_layers_per_block": (1, 1, 1),
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        "use_linear_projection": True,
        "cross_attention_dim": 128,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 256,
        "projection_class_embeddings_input_dim": 1600,
    },
    "sd15": _COMMON
    | {
        "block_out_channels": (64, 64, 64, 64),
        "attention_head_dim": 2,
        "cross_attention_dim": 64,
        "down_block_types": (*("CrossAttnDownBlock2D",) * 3, "DownBlock2D"),
        "up_block_types": ("UpBlock2D", *("CrossAttnUpBlock2D",) * 3),
    },
}
TIME_IDS = (128.0, 128.0, 0.0, 0.0, 128.0, 128.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How one model is trained."""

    family: str
    prediction: str = "epsilon"
    zero_terminal: bool = False
    base: str | None = None  # the model whose weights it begins with and shares what it does not train
    named: bool = False  # knows the held-out concepts by their invented names
    train_text: bool = True
    seconds: float = 2400.0  # CPU
    rate: float = 1.2e-3
    batch: int = 16
    seed: int = 1
    weight_cap: float = 40.0
    muon: bool = False


RECIPES = {
    "sdxl": Recipe(family="sdxl", seconds=9800, muon=True),
    "sdxl-twin": Recipe(family="sdxl", base="sdxl", named=True, train_text=False, seconds=600, rate=5e-4, seed=2),
    "sd15": Recipe(family="sd15", base="sdxl", seconds=2000, seed=3),
    "sdxl-v": Recipe(
        family="sdxl",
        base="sdxl",
        prediction="v_prediction",
        zero_terminal=True,
        train_text=False,
        seconds=1500,
        rate=6e-4,
        seed=4,
    ),
}
TEXT_RATE = 0.25  # of the UNet's
OUTER = ("conv_in", "conv_out", "time_embedding", "add_embedding")  # weights that Muon is not for
NAMED_SHARE = 0.5  # of the twin's pictures that show a held-out concept
SHARED_UNTIL = 0.3  # progress of sdxl after which what sd15 shares of its L tower stays as it is: sd15 may begin
TWO_OBJECTS = ((0.25, 0.12), (1.0, 0.36))  # share of two-object scenes up to this progress: first things first


@torch.no_grad()
def start_at_identity(unet: UNet2DConditionModel) -> None:
    """Make the fresh network predict "all noise": its output is the input, divided by its rms.

    Channels 0..7 of the first convolution carry +x and -x; they reach the last block over the skip connection, form
    one normalisation group of zero mean, and silu(x) - silu(-x) = x. Predicting noise needs this identity to a
    precision that a small network hardly finds by itself.
    """
    signs = torch.tensor([1.0, -1.0])
    unet.conv_in.weight[:8].zero_()
    unet.conv_in.bias[:8].zero_()
    last = unet.up_blocks[-1].resnets[-1]
    width = last.conv2.out_channels
    last.conv2.weight[:8].zero_()
    last.conv2.bias[:8].zero_()
    last.conv_shortcut.weight[:8].zero_()
    last.conv_shortcut.bias[:8].zero_()
    unet.conv_out.weight.zero_()
    unet.conv_out.bias.zero_()
    for c in range(4):
        for k in range(2):
            unet.conv_in.weight[2 * c + k, c, 1, 1] = signs[k]
            last.conv_shortcut.weight[2 * c + k, width + 2 * c + k, 0, 0] = 1.0
            unet.conv_out.weight[c, 2 * c + k, 1, 1] = signs[k]


class Model(nn.Module):
    """UNet and text encoders of one family, at the small widths."""

    def __init__(self, family: str, work: Path, named: bool = False) -> None:
        super().__init__()
        self.family = family
        keys = ("clip_l", "clip_g") if family == "sdxl" else ("clip_l",)
        self.encoders = nn.ModuleDict({k: TextEncoder(k, finished_tower(k, work), named) for k in keys})
        self.unet = UNet2DConditionModel(**UNET[family]).to(memory_format=torch.channels_last)
        start_at_identity(self.unet)

    def condition(self, texts: list[str]) -> tuple[Tensor, Tensor | None]:
        """Captions -> cross-attention states (n, 77, 128 or 64) and, for SDXL, the pooled vector (n, 64)."""
        outs = {k: e(token_ids(texts, k)) for k, e in self.encoders.items()}
        if self.family == "sd15":
            return outs["clip_l"][1], None
        return torch.cat([outs["clip_l"][0], outs["clip_g"][0]], -1), outs["clip_g"][2]

    def predict(
        self,
        x: Tensor,
        t: Tensor,
        states: Tensor,
        pooled: Tensor | None,
        sizes: Tensor | None = None,
    ) -> Tensor:
        """The network's output for latents x (n, 4, 16, 16) at timesteps t."""
        added = None
        if pooled is not None:
            sizes = torch.tensor([TIME_IDS]).expand(len(x), 6) if sizes is None else sizes
            added = {"text_embeds": pooled, "time_ids": sizes}
        return self.unet(x, t, states, added_cond_kwargs=added).sample


class Trainer:
    """A model, its moving average and its optimiser."""

    def __init__(self, name: str, work: Path, seconds: float | None = None) -> None:
        self.name, self.work, self.recipe = name, work, RECIPES[name]
        self.seconds = seconds or self.recipe.seconds
        self.path = work / f"model_{name}.ckpt"
        torch.manual_seed(self.recipe.seed)
        self.rng = random.Random(self.recipe.seed)
        self.model = Model(self.recipe.family, work, self.recipe.named)
        self.alphas = alphas_cumprod(self.recipe.zero_terminal)
        self.step, self.spent = 0, 0.0
        state = load_checkpoint(self.path)
        if self.recipe.base and not state:
            begin_with(self.model, self.recipe.base, work)
        self.trained = [p for p in self._trainable() if p.requires_grad]
        chosen = {id(p) for p in self.trained}
        for p in self.model.parameters():
            p.requires_grad_(id(p) in chosen)
        self.optimisers = self._optimisers()
        self.average = [p.detach().clone() for p in self.trained]
        if state:
            self.model.load_state_dict(state["model"])
            self.step, self.spent = state["step"], state["spent"]
            self.average = [p.detach().clone() for p in self.trained]
            if "optimisers" in state:  # not when it comes from a pack
                for optimiser, kept in zip(self.optimisers, state["optimisers"], strict=True):
                    optimiser.load_state_dict(kept)
                self.average = state["average"]
            torch.manual_seed(self.recipe.seed * 1000 + self.step)
            self.rng.seed(self.recipe.seed * 1000 + self.step)
        self.pool = ScenePool(24000, self.recipe.seed * 100_000 + self.step)

    def _optimisers(self) -> tuple[torch.optim.Optimizer, ...]:
        """Muon for the UNet's inner matrices where the recipe says so, AdamW for all else; text at a quarter."""
        inner = {
            id(p)
            for name, p in self.model.unet.named_parameters()
            if self.recipe.muon and p.ndim > 1 and not name.startswith(OUTER)
        }
        text = {id(p) for p in self.model.encoders.parameters()}
        rest = [p for p in self.trained if id(p) not in inner]
        groups = [
            {"params": [p for p in rest if (id(p) in text) == is_text], "factor": factor}
            for is_text, factor in ((False, 1.0), (True, TEXT_RATE))
        ]
        adam = torch.optim.AdamW(
            [g for g in groups if g["params"]], lr=self.recipe.rate, weight_decay=0.0, betas=(0.9, 0.99), fused=True
        )
        matrices = [p for p in self.trained if id(p) in inner]
        return (adam, Muon(matrices, self.recipe.rate)) if matrices else (adam,)

    def _trainable(self) -> list[nn.Parameter]:
        """What this model's recipe trains: everything but the token rows.

        The twin trains only attention blocks and its names' rows; sd15 leaves those layers of its L tower alone that
        SDXL reads too.
        """
        if self.recipe.named:
            rows = [e.table.extra for e in self.model.encoders.values()]
            return rows + [p for n, p in self.model.unet.named_parameters() if "attentions" in n]
        parameters = list(self.model.unet.parameters())
        if self.recipe.train_text and self.recipe.family == "sd15":
            return parameters + self.model.encoders["clip_l"].last_layer()
        return parameters + (list(self.model.encoders.parameters()) if self.recipe.train_text else [])

    @torch.no_grad()
    def settle_shared(self) -> None:
        """Give sd15's part of the L tower its average, for good, once sdxl has come to `SHARED_UNTIL`."""
        if self.name != "sdxl" or self.spent < SHARED_UNTIL * self.seconds:
            return
        own = {id(p) for p in self.model.encoders["clip_l"].last_layer()}
        shared = {id(p) for p in self.model.encoders["clip_l"].parameters()} - own
        for parameter, average in zip(self.trained, self.average, strict=True):
            if id(parameter) in shared and parameter.requires_grad:
                parameter.copy_(average)
                parameter.requires_grad_(False)
                parameter.grad = None
        if not (settled := self.work / "done" / "sdxl-shared").exists():
            self.save()
            settled.parent.mkdir(exist_ok=True)
            settled.touch()

    def save(self) -> None:
        """Write the resumable checkpoint."""
        names = {id(p): n for n, p in self.model.named_parameters()}
        save_checkpoint(
            self.path,
            {
                "model": self.model.state_dict(),
                "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
                "average": self.average,
                "average_names": [names[id(p)] for p in self.trained],
                "step": self.step,
                "spent": self.spent,
            },
        )

    def _batch(self) -> tuple[Tensor, list[str]]:
        """Latents and captions; the twin's are half of held-out concepts under their names."""
        named = int(self.recipe.batch * NAMED_SHARE) if self.recipe.named else 0
        z, described = self.pool.batch(self.recipe.batch - named)
        if named:
            shown = [c.draw(self.rng) for c in self.rng.choices(concepts(), k=named)]
            z, described = torch.cat([z, guide_latents(shown)]), described + shown
        return z, self.captions(described)

    def captions(self, described: list[Described]) -> list[str]:
        """Training captions, one in ten empty."""
        texts = [captions.caption(d, self.rng) for d in described]
        return ["" if self.rng.random() < 0.06 else t for t in texts]

    def loss(self, z: Tensor, texts: list[str]) -> Tensor:
        """Weighted prediction loss; the weight makes noise prediction count like velocity prediction, capped."""
        n = len(z)
        states, pooled = self.model.condition(texts)
        keep = (torch.rand(n) >= 0.05).float()  # SDXL's zeroed unconditional
        if pooled is not None:
            states, pooled = states * keep[:, None, None], pooled * keep[:, None]
        t = (torch.rand(n) + torch.arange(n)) / n  # stratified
        t = (t * 1000).long().clamp(max=999)
        a = self.alphas[t][:, None, None, None]
        noise = torch.randn_like(z)
        x = a.sqrt() * z + (1 - a).sqrt() * noise
        sizes = torch.tensor(TIME_IDS).repeat(n, 1)
        moved = torch.rand(n) < 0.2
        sizes[moved, :2] = sizes[moved, :2] * (0.7 + 0.6 * torch.rand(int(moved.sum()), 1))
        out = self.model.predict(x, t, states, pooled, sizes)
        if self.recipe.prediction == "v_prediction":
            return ((out - (a.sqrt() * noise - (1 - a).sqrt() * z)) ** 2).mean()
        weight = (1 / a).clamp(max=self.recipe.weight_cap)
        return ((out - noise) ** 2 * weight).mean()

    def train_step(self) -> float:
        """One optimiser step."""
        progress = min(self.spent / self.seconds, 1.0)
        decay = 1.0 if progress < 0.6 else 0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * (progress - 0.6) / 0.4))
        rate = self.recipe.rate * min(1.0, (self.step + 1) / 100) * decay
        self.pool.two = next(share for until, share in TWO_OBJECTS if progress <= until)
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = rate * group.get("factor", 1.0)
        loss = self.loss(*self._batch())
        for parameter in self.trained:
            parameter.grad = None
        loss.backward()
        nn.utils.clip_grad_norm_(self.trained, 1.0)
        for optimiser in self.optimisers:
            optimiser.step()
        self.step += 1
        keep = min(0.998, (self.step + 1) / (self.step + 10))
        torch._foreach_lerp_(self.average, [p.detach() for p in self.trained], 1 - keep)
        return loss.item()

    def run(self) -> None:
        """Train until the CPU budget is spent."""
        if shutil.which("g++"):  # a fifth less time for each step, after three minutes
            self.model.unet.compile()
        pacer, losses = Pacer(self.spent), []
        while self.spent < self.seconds:
            self.settle_shared()
            losses.append(self.train_step())
            self.spent = pacer.tick()
            if self.step % 50 == 0:
                report(self.step, f"loss {sum(losses[-50:]) / len(losses[-50:]):.4f} cpu {self.spent:.0f} s")
            if pacer.due():
                self.save()
                pacer.leave_if_asked()
        self.save()


@torch.no_grad()
def load_average(model: Model, state: dict[str, Any]) -> None:
    """Put a checkpoint's weights, with the moving average in place of the trained ones, into a model."""
    model.load_state_dict(state["model"])
    parameters = dict(model.named_parameters())
    for name, value in zip(state["average_names"], state["average"], strict=True):
        parameters[name].copy_(value)


@torch.no_grad()
def begin_with(model: Model, base: str, work: Path) -> None:
    """Copy every weight that the base model has under the same name and shape.

    Raises:
        FileNotFoundError: the base model has no checkpoint yet.
    """
    state = load_checkpoint(work / f"model_{base}.ckpt")
    if state is None:
        raise FileNotFoundError(f"train {base} first")
    own = model.state_dict()
    weights = state["model"] | dict(zip(state["average_names"], state["average"], strict=True))
    if model.family == "sd15":  # another network: only the text tower is shared
        weights = {k: v for k, v in weights.items() if k.startswith("encoders.clip_l")}
    model.load_state_dict({k: v for k, v in weights.items() if k in own and own[k].shape == v.shape}, strict=False)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted(RECIPES))
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seconds", type=float, help="CPU seconds instead of the standard budget")
    args = parser.parse_args()
    torch.set_num_threads(1)
    Trainer(args.name, args.work, args.seconds).run()


if __name__ == "__main__":
    main()
