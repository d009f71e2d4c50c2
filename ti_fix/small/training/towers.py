"""Train one text tower (L or G) contrastively against pictures, each with an image network of its own.

``python -m ti_fix.small.training.towers L --work DIR``; resumable, progress is counted in CPU seconds. The two towers
share captions and pictures but neither weights, seeds nor order, so their token tables are related only through
what the words mean. Stage 1 trains text and image networks together, stage 2 the text alone on frozen features.
"""

from __future__ import annotations

import argparse
import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModelWithProjection

from ti_fix.small import scenes
from ti_fix.small.training import report
from ti_fix.small.training.checkpoint import Pacer, load_checkpoint, save_checkpoint
from ti_fix.small.training.library import Library, padded, pixels
from ti_fix.small.vocabulary import BOS, EOS, VOCABULARY, tokenizer

WIDTH = 64
SHORT = 24  # tokens of an ordinary training caption
LONG_SHARE = 0.12  # share of batches whose captions are stretched up to 77 tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class TowerKind:
    """Everything in which the two towers differ."""

    activation: str
    pad: int
    layers: int
    copies: int  # expanded width = 64 * copies
    real_length: float  # mean token-row length of the real encoder
    image_channels: tuple[int, int, int]
    image_kernel: int
    seed: int
    rate: float
    scene_share: float
    seconds: float  # CPU seconds

    @property
    def row_length(self) -> float:
        """Length of a small row whose ``copies``-fold repetition has the real length."""
        return self.real_length / math.sqrt(self.copies)


KINDS = {
    "L": TowerKind(
        activation="quick_gelu",
        pad=EOS,
        layers=2,
        copies=12,
        real_length=0.37,
        image_channels=(32, 64, 96),
        image_kernel=5,
        seed=101,
        rate=1.5e-3,
        scene_share=0.35,
        seconds=380,
    ),
    "G": TowerKind(
        activation="gelu",
        pad=0,
        layers=3,
        copies=20,
        real_length=0.58,
        image_channels=(40, 72, 80),
        image_kernel=3,
        seed=202,
        rate=1.2e-3,
        scene_share=0.45,
        seconds=500,
    ),
}
JOINT_SHARE = 0.55  # of the time in stage 1
TABLE_RATE = 1e-3
TIED_LOSS = 0.15  # weight of the next-token loss: gives rows the real tables' common vector


class ImageNet(nn.Module):
    """Small convolutional network, (n, 3, 32, 32) -> (n, 64)."""

    def __init__(self, channels: tuple[int, int, int], kernel: int) -> None:
        super().__init__()
        a, b, c = channels
        self.stem = nn.Sequential(
            nn.Conv2d(3, a, kernel, 2, kernel // 2),
            nn.GroupNorm(8, a),
            nn.GELU(),
            nn.Conv2d(a, b, 3, 2, 1),
            nn.GroupNorm(8, b),
            nn.GELU(),
        )
        self.residual = nn.Sequential(nn.Conv2d(b, b, 3, 1, 1), nn.GroupNorm(8, b), nn.GELU())
        self.head = nn.Sequential(
            nn.Conv2d(b, c, 3, 2, 1),
            nn.GroupNorm(8, c),
            nn.GELU(),
            nn.Flatten(),
            nn.Linear(16 * c, 192),
            nn.GELU(),
            nn.Linear(192, WIDTH),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Pixels in -1..1 -> features."""
        x = self.stem(x)
        return self.head(x + self.residual(x))


class UsedRows(nn.Module):
    """Token table that holds only the rows that captions use, and trainable ``extra`` rows for invented names."""

    def __init__(
        self, used: Tensor, rows: Tensor, extra_ids: Tensor | None = None, extra: Tensor | None = None
    ) -> None:
        super().__init__()
        lookup = torch.zeros(VOCABULARY, dtype=torch.long)
        lookup[used] = torch.arange(len(used))
        self.weight = nn.Parameter(rows.clone())
        self.extra: nn.Parameter | None = None
        if extra_ids is not None and extra is not None:
            lookup[extra_ids] = len(used) + torch.arange(len(extra_ids))
            self.extra = nn.Parameter(extra.clone())
            self.register_buffer("extra_ids", extra_ids, persistent=False)
        self.register_buffer("lookup", lookup, persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Ids of any shape -> rows, one more axis."""
        weight = self.weight if self.extra is None else torch.cat([self.weight, self.extra])
        return F.embedding(self.lookup[ids], weight)


def text_config(kind: TowerKind) -> CLIPTextConfig:
    """The tower's architecture: the real encoder's with 64 channels and one head."""
    return CLIPTextConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=kind.layers,
        num_attention_heads=1,
        hidden_act=kind.activation,
        projection_dim=WIDTH,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=kind.pad,
        max_position_embeddings=77,
    )


class Trainer:
    """One tower, its image network and the optimiser state."""

    def __init__(self, name: str, work: Path, seconds: float | None = None) -> None:
        self.name, self.kind, self.work = name, KINDS[name], work
        self.seconds = seconds or self.kind.seconds
        self.library = Library(work)
        kind, seed = self.kind, self.kind.seed
        torch.manual_seed(seed)
        self.rng = random.Random(seed)
        generator = torch.Generator().manual_seed(seed + 1)
        used = self.library.used
        rows = torch.randn(len(used), WIDTH, generator=generator) * (0.05 * kind.row_length / math.sqrt(WIDTH))
        self.text = CLIPTextModelWithProjection(text_config(kind))
        self.table = UsedRows(used, rows)
        self.text.set_input_embeddings(self.table)
        self.positions = next(p for n, p in self.text.named_parameters() if "position_embedding" in n)
        self.positions.data.mul_(0.2 * kind.row_length / math.sqrt(WIDTH) / 0.02)
        self.image = ImageNet(kind.image_channels, kind.image_kernel).to(memory_format=torch.channels_last)
        self.scale = nn.Parameter(torch.tensor(math.log(14.0)))
        self.tied_scale = nn.Parameter(torch.tensor(math.log(60.0)))
        tables = [self.table.weight, self.positions]
        self.body = [p for p in self.text.parameters() if all(p is not t for t in tables)]
        self.optimiser = torch.optim.AdamW(
            [
                {"params": tables, "lr": TABLE_RATE, "weight_decay": 0.0, "betas": (0.9, 0.99)},
                {"params": self.body, "lr": kind.rate, "weight_decay": 0.02, "betas": (0.9, 0.98)},
                {"params": list(self.image.parameters()), "lr": kind.rate, "weight_decay": 0.05, "betas": (0.9, 0.98)},
                {"params": [self.scale, self.tied_scale], "lr": 2e-3, "weight_decay": 0.0},
            ],
            fused=True,
        )
        self.rates = [g["lr"] for g in self.optimiser.param_groups]
        self.step, self.spent = 0, 0.0
        self.features: tuple[Tensor, Tensor] | None = None
        self.path = work / f"tower_{name}.ckpt"
        state = load_checkpoint(self.path)
        if state:
            self._restore(state)

    def _modules(self) -> dict[str, Any]:
        return {"text": self.text, "image": self.image, "optimiser": self.optimiser}

    def _restore(self, state: dict[str, Any]) -> None:
        for key, module in self._modules().items():
            module.load_state_dict(state[key])
        self.scale.data.copy_(state["scale"])
        self.tied_scale.data.copy_(state["tied_scale"])
        self.step, self.spent = state["step"], state["spent"]
        self.rng.seed(self.kind.seed * 1000 + self.step)

    def save(self) -> None:
        """Write the resumable checkpoint."""
        state = {k: m.state_dict() for k, m in self._modules().items()}
        extra = {
            "scale": self.scale.data,
            "tied_scale": self.tied_scale.data,
            "step": self.step,
            "spent": self.spent,
            "used": self.library.used,
            "picture_count": self.library.picture_count[self.library.used],
        }
        save_checkpoint(self.path, state | extra)

    def _freeze_images(self) -> tuple[Tensor, Tensor]:
        self.image.eval()
        with torch.no_grad():
            parts = [
                torch.cat([F.normalize(self.image(pixels(a[i : i + 256])), dim=-1) for i in range(0, len(a), 256)])
                for a in (self.library.pictures, self.library.scenes)
            ]
        return parts[0], parts[1]

    def _image_features(self, items: list[int], scene_ids: list[int]) -> Tensor:
        if self.features is not None:
            return torch.cat([self.features[0][items], self.features[1][scene_ids]])
        x = pixels(np.concatenate([self.library.pictures[items], self.library.scenes[scene_ids]]))
        x = torch.roll(x, (self.rng.randint(-2, 2), self.rng.randint(-2, 2)), (2, 3))
        x = x * self.rng.uniform(0.9, 1.1) + 0.03 * torch.randn(1)
        return F.normalize(self.image(x), dim=-1)

    def _tied_loss(self, hidden: Tensor, ids: Tensor) -> Tensor:
        """Next-token loss against the token table itself, on 384 random positions."""
        inside = (torch.cumsum((ids == EOS).int(), 1)[:, :-1] == 0).flatten().nonzero()[:, 0]
        inside = inside[torch.randperm(len(inside))[:384]]
        state = F.normalize(hidden[:, :-1].flatten(0, 1)[inside], dim=-1)
        logits = self.tied_scale.exp() * state @ (self.table.weight / self.kind.row_length).T * 0.1
        return F.cross_entropy(logits, self.table.lookup[ids[:, 1:].flatten()[inside]])

    def train_step(self) -> float:
        """One optimiser step; returns the contrastive loss."""
        progress = min(self.spent / self.seconds, 1.0)
        if progress >= JOINT_SHARE and self.features is None:
            self.features = self._freeze_images()
        warm = min(1.0, (self.step + 1) / 60)
        for group, rate in zip(self.optimiser.param_groups, self.rates, strict=True):
            group["lr"] = rate * warm * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))
        long = self.rng.random() < LONG_SHARE
        size = 128 if long else 256 if self.features is None else 512
        lists, items, scene_ids = self.library.batch(size, self.rng, self.kind.scene_share)
        if long:
            lists = [self.library.stretched(t, self.rng) for t in lists]
        ids = padded(lists, self.kind.pad, 77 if long else SHORT)
        output = self.text(input_ids=ids)
        text = F.normalize(output.text_embeds, dim=-1)
        logits = self.scale.exp().clamp(max=100) * self._image_features(items, scene_ids) @ text.T
        target = torch.arange(len(ids))
        contrast = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
        loss = contrast + TIED_LOSS * self._tied_loss(output.last_hidden_state, ids)
        self.optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.body + list(self.image.parameters()), 1.0)
        self.optimiser.step()
        with torch.no_grad():
            for table in (self.table.weight, self.positions):
                table.mul_((1.1 * self.kind.row_length / table.norm(dim=1, keepdim=True)).clamp(max=1))
        self.step += 1
        return contrast.item()

    def run(self) -> None:
        """Train until the CPU budget is spent, then print the measurements and keep the checkpoint."""
        pacer, losses = Pacer(self.spent), []
        while self.spent < self.seconds:
            losses.append(self.train_step())
            self.spent = pacer.tick()
            if self.step % 50 == 0:
                norm = self.table.weight.norm(dim=1).mean().item()
                report(
                    self.step,
                    f"stage {1 + (self.features is not None)} loss {np.mean(losses[-50:]):.3f} "
                    f"row {norm:.4f} cpu {self.spent:.0f} s",
                )
            if pacer.due():
                self.save()
                pacer.leave_if_asked()
        self.save()
        report(self.name, evaluate(self.text, self.image, self.library, self.kind.pad))


@torch.no_grad()
def evaluate(text: nn.Module, image: nn.Module, library: Library, pad: int) -> dict[str, float]:
    """Zero-shot accuracies: 64 colour-shape pairs (trained, held out), a never-seen emoji style, held-out clip art."""
    text.eval()
    image.eval()
    tok = tokenizer("clip_l")

    def encode(lines: list[str]) -> Tensor:
        ids = tok(lines, add_special_tokens=False)["input_ids"]
        parts = [text(input_ids=padded(ids[i : i + 256], pad, SHORT)).text_embeds for i in range(0, len(ids), 256)]
        return F.normalize(torch.cat(parts), dim=-1)

    def see(pictures: NDArray[np.uint8]) -> Tensor:
        parts = [image(pixels(pictures[i : i + 256])) for i in range(0, len(pictures), 256)]
        return F.normalize(torch.cat(parts), dim=-1)

    pairs = [(c, s) for c in scenes.COLOURS for s in scenes.SHAPES]
    templates = ("a {} {}", "a picture of a {} {}", "{} {}")
    classes = F.normalize(torch.stack([encode([t.format(*p) for p in pairs]) for t in templates]).sum(0), dim=-1)
    guess = (see(library.tests) @ classes.T).argmax(1).tolist()
    right = np.array([pairs[g] == t for g, t in zip(guess, library.test_pairs, strict=True)])
    held = np.array([t in scenes.HELD_OUT_PAIRS for t in library.test_pairs])
    out = {"pairs": float(right[~held].mean()), "pairs_held_out": float(right[held].mean())}
    for style in ("noto", "clipart"):
        chosen = [i for i, item in enumerate(library.items) if item["style"] == style and item["held_out"]]
        lines = [", ".join([library.items[i]["name"], *library.items[i]["keywords"][:4]]) for i in chosen]
        scores = see(library.pictures[[library.views[i][0] for i in chosen]]) @ encode(lines).T
        rank = (scores > scores.diag()[:, None]).sum(1)
        out |= {f"{style}_top1": float((rank < 1).float().mean()), f"{style}_top10": float((rank < 10).float().mean())}
    text.train()
    image.train()
    return {k: round(v, 4) for k, v in out.items()}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seconds", type=float, help="CPU seconds instead of the standard budget")
    args = parser.parse_args()
    torch.set_num_threads(1)
    Trainer(args.kind, args.work, args.seconds).run()


if __name__ == "__main__":
    main()
