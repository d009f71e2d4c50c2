"""Pictures and captions of the text towers, and random batches of them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ti_fix.small import captions
from ti_fix.small.vocabulary import BOS, EOS, VOCABULARY, tokenizer


def pixels(pictures: NDArray[np.uint8]) -> Tensor:
    """uint8 (n, h, w, 3) -> float (n, 3, h, w) in -1..1."""
    x = torch.from_numpy(np.ascontiguousarray(pictures)).permute(0, 3, 1, 2).float() / 127.5 - 1
    return x.contiguous(memory_format=torch.channels_last)


def padded(token_lists: list[list[int]], pad: int, limit: int = 77) -> Tensor:
    """Token lists without special tokens -> (n, longest) ids with BOS, EOS and padding."""
    rows = [[BOS, *t[: limit - 2], EOS] for t in token_lists]
    longest = max(map(len, rows))
    return torch.tensor([r + [pad] * (longest - len(r)) for r in rows])


class Library:
    """Pictures and tokenised captions, and random batches of them."""

    def __init__(self, work: Path) -> None:
        data = np.load(work / "pictures.npz")
        texts = json.loads((work / "captions.json").read_text())
        self.pictures, self.owner, self.scenes, self.tests = (
            data["pictures"],
            data["owner"],
            data["scenes"],
            data["tests"],
        )
        self.items, self.test_pairs = texts["items"], [tuple(p) for p in texts["tests"]]
        tok = tokenizer("clip_l")

        def tokens(lines: list[str]) -> list[list[int]]:
            return tok(lines, add_special_tokens=False, truncation=True, max_length=75)["input_ids"]

        self.item_tokens = [tokens(i["captions"]) for i in self.items]
        self.scene_tokens = [tokens(list(c)) for c in texts["scenes"]]
        self.filler_tokens = tokens(list(captions.FILLERS))
        self.views: dict[int, list[int]] = {}
        for index, item in enumerate(self.owner.tolist()):
            self.views.setdefault(item, []).append(index)
        trained = [i for i, item in enumerate(self.items) if not item["held_out"]]
        by_key: dict[str, list[int]] = {}
        for i in trained:
            if self.items[i]["style"] != "clipart":
                by_key.setdefault(self.items[i]["key"], []).append(i)
        self.emoji, self.clipart = list(by_key.values()), [i for i in trained if self.items[i]["style"] == "clipart"]
        self.picture_count = torch.zeros(VOCABULARY)  # distinct training pictures behind each token
        for lists in [self.item_tokens[i] for i in trained] + self.scene_tokens:
            self.picture_count[sorted({t for line in lists for t in line})] += 1
        special = torch.tensor([0, BOS, EOS] + [t for line in self.filler_tokens for t in line])
        self.used = torch.unique(torch.cat([torch.where(self.picture_count > 0)[0], special]))

    def batch(self, size: int, rng: random.Random, scene_share: float) -> tuple[list[list[int]], list[int], list[int]]:
        """Token lists, indices of item pictures and indices of scenes (captions in that order)."""
        emoji = int(size * 0.55 * (1 - scene_share))
        clipart = int(size * 0.45 * (1 - scene_share))
        chosen = [rng.choice(group) for group in rng.sample(self.emoji, emoji)] + rng.sample(self.clipart, clipart)
        scenes_ = rng.sample(range(len(self.scene_tokens)), size - len(chosen))
        lists = [rng.choice(self.item_tokens[i]) for i in chosen] + [rng.choice(self.scene_tokens[i]) for i in scenes_]
        return lists, [rng.choice(self.views[i]) for i in chosen], scenes_

    def stretched(self, tokens: list[int], rng: random.Random) -> list[int]:
        """A caption moved and lengthened by filler words, up to 75 tokens."""
        room = rng.randint(0, 75 - min(len(tokens), 75))
        before, after = rng.randint(0, room), 0
        after = room - before
        return [*self._filler(before, rng), *tokens[:75], *self._filler(after, rng)]

    def _filler(self, length: int, rng: random.Random) -> list[int]:
        out: list[int] = []
        while len(out) < length:
            out += rng.choice(self.filler_tokens)
        return out[:length]
