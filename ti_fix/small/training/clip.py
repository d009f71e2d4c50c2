"""Train the small CLIP judge: ``python -m ti_fix.small.training.clip --work DIR`` (resumable)."""

from __future__ import annotations

import argparse
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ti_fix.small import captions, scenes
from ti_fix.small.clip import SmallClip, clip_ids, normalised
from ti_fix.small.training import report
from ti_fix.small.training.checkpoint import Pacer, load_checkpoint, save_checkpoint
from ti_fix.small.training.pictures import (
    QUALITIES,
    plain_scene,
    quality_caption,
    spoil,
)
from ti_fix.small.training.towers import UsedRows

SECONDS = 600.0  # CPU
BATCH = 64  # of mixed pictures; beside them one plain picture of each colour-shape pair
POOL = 8000
PLAIN = 0.35  # share of plain one-object scenes, held-out pairs among them: a judge may know everything
SIDE = 96
PAIRS = [(colour, shape) for colour in scenes.COLOURS for shape in scenes.SHAPES]
ARTICLES = ("a ", "a ", "one ", "the ", "a picture of a ", "")
PLAIN_FRESH, PLAIN_POOL = 12, 40  # new plain pictures a step; pictures kept of each pair


def draw(rng: random.Random) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], str]:
    """A 96-pixel picture, spoiled two times in five, and its caption."""
    if rng.random() < PLAIN:
        described = plain_scene(rng.choice(scenes.COLOURS), rng.choice(scenes.SHAPES), rng)
    else:
        described = captions.draw(rng, two=0.25)
    quality = rng.choice(tuple(QUALITIES)) if rng.random() < 0.4 else None
    text = captions.plain_caption(described, rng) if rng.random() < 0.5 else captions.caption(described, rng)
    return spoil(scenes.render(described.scene), quality, rng, SIDE), quality_caption(text, quality, rng)


def pixels(pictures: list[np.ndarray[Any, np.dtype[np.uint8]]]) -> Tensor:
    """List of uint8 pictures -> (n, 3, 96, 96) in -1..1."""
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 127.5 - 1


class Trainer:
    """The CLIP judge in training, with a renewed pool of captioned pictures."""

    def __init__(self, work: Path, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        torch.manual_seed(71)
        self.path, self.rng = work / "clip.ckpt", random.Random(71)
        self.model = SmallClip()
        sample = [draw(self.rng)[1] for _ in range(3000)] + list(captions.FILLERS)
        sample += [f"{a}{c} {s}" for a in ARTICLES for c, s in PAIRS]
        self.ids = torch.unique(clip_ids(sample).flatten())
        self.model.token_embedding = UsedRows(self.ids, torch.randn(len(self.ids), 64) * 0.02)
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(), 1e-3, weight_decay=0.02, betas=(0.9, 0.98), fused=True
        )
        self.spent, self.step = 0.0, 0
        state = load_checkpoint(self.path)
        if state:
            self.model.load_state_dict(state["model"])
            self.optimiser.load_state_dict(state["optimiser"])
            self.spent, self.step = state["spent"], state["step"]
            self.rng.seed(71_000 + self.step)
        self.pictures: list[np.ndarray[Any, np.dtype[np.uint8]]] = []
        self.texts: list[str] = []
        self.plain: list[list[tuple[np.ndarray[Any, np.dtype[np.uint8]], str]]] = [[] for _ in PAIRS]

    def save(self) -> None:
        """Write the resumable checkpoint."""
        save_checkpoint(
            self.path,
            {
                "model": self.model.state_dict(),
                "optimiser": self.optimiser.state_dict(),
                "spent": self.spent,
                "step": self.step,
                "ids": self.ids,
            },
        )

    def _plain(self) -> list[tuple[np.ndarray[Any, np.dtype[np.uint8]], str]]:
        """One plain picture of each pair with a short caption: to tell them apart takes shape and colour."""
        new = range(len(PAIRS)) if not self.plain[0] else self.rng.sample(range(len(PAIRS)), PLAIN_FRESH)
        for i in new:
            described = plain_scene(*PAIRS[i], self.rng)
            article = self.rng.choice(ARTICLES)
            text = article + " ".join(PAIRS[i])
            if self.rng.random() < 0.2:
                text = captions.plain_caption(described, self.rng)
            self.plain[i].append((spoil(scenes.render(described.scene), None, self.rng, SIDE), text))
            del self.plain[i][:-PLAIN_POOL]
        return [self.rng.choice(shown) for shown in self.plain]

    def _batch(self) -> tuple[Tensor, Tensor]:
        for _ in range(8 if self.pictures else BATCH):
            picture, text = draw(self.rng)
            if len(self.pictures) < POOL:
                self.pictures.append(picture)
                self.texts.append(text)
            else:
                i = self.rng.randrange(POOL)
                self.pictures[i], self.texts[i] = picture, text
        chosen = self.rng.sample(range(len(self.pictures)), BATCH)
        shown = [(self.pictures[i], self.texts[i]) for i in chosen] + self._plain()
        ids = clip_ids([text for _, text in shown])
        longest = int((ids.argmax(1) + 1).max())
        return normalised(pixels([picture for picture, _ in shown])), ids[:, :longest]

    def train_step(self) -> float:
        """One contrastive step."""
        progress = min(self.spent / self.seconds, 1.0)
        rate = 1.2e-3 * min(1.0, (self.step + 1) / 80) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))
        self.optimiser.param_groups[0]["lr"] = rate
        images, ids = self._batch()
        scale = self.model.logit_scale.exp().clamp(max=100)
        logits = scale * self.model.encode_image(images) @ self.model.encode_text(ids).T
        target = torch.arange(len(ids))
        loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
        self.optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.step += 1
        return loss.item()

    def run(self) -> None:
        """Train until the CPU budget is spent, then print the zero-shot accuracy."""
        pacer, losses = Pacer(self.spent), []
        while self.spent < self.seconds:
            losses.append(self.train_step())
            self.spent = pacer.tick()
            if self.step % 100 == 0:
                report(self.step, f"loss {np.mean(losses[-100:]):.3f} cpu {self.spent:.0f} s")
            if pacer.due():
                self.save()
                pacer.leave_if_asked()
        self.save()
        report(f"64 colour-shape pairs: {self.pair_accuracy():.3f}")

    @torch.no_grad()
    def pair_accuracy(self, count: int = 512) -> float:
        """Zero-shot accuracy over the 64 colour-shape pairs."""
        rng = random.Random(5)
        chosen = [rng.choice(PAIRS) for _ in range(count)]
        x = pixels([spoil(scenes.render(plain_scene(*p, rng).scene), None, rng, SIDE) for p in chosen])
        self.model.eval()
        text = self.model.encode_text(clip_ids([f"a {c} {s}" for c, s in PAIRS]))
        guess = (self.model.encode_image(normalised(x)) @ text.T).argmax(1).tolist()
        self.model.train()
        return float(np.mean([PAIRS[g] == p for g, p in zip(guess, chosen, strict=True)]))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="CPU seconds in all")
    args = parser.parse_args()
    torch.set_num_threads(1)
    Trainer(args.work, args.seconds).run()


if __name__ == "__main__":
    main()
