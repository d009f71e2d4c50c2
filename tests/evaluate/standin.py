"""A judge and a painter whose answers are known: pictures are flat colours, features their red, green and blue."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image, ImageFilter

from ti_fix.embedding import Embedding
from ti_fix.evaluate import BackboneFacts

COLOURS = {
    "red": (230, 20, 20),
    "green": (20, 200, 20),
    "blue": (20, 20, 230),
    "yellow": (220, 220, 20),
    "purple": (200, 20, 220),
}
EMBEDDING = Embedding(name="myred", vectors={"clip_l": torch.ones(1, 4)})


def flat(rgb, seed=0) -> Image.Image:
    """A picture of one colour with a little noise."""
    noise = np.random.RandomState(seed).randint(-9, 10, (16, 16, 3))
    return Image.fromarray((np.array(rgb) + noise).clip(0, 255).astype(np.uint8))


class Judge:
    """Features: colour of the middle, and how much the picture varies (“sharp”)."""

    def __init__(self, name="stand-in", independent=True):
        self.facts = BackboneFacts(name=name, preprocessing="none", fingerprint=name, independent=independent)
        self.scale = 30.0
        self.asked = []

    def pictures(self, pictures):
        rows = []
        for picture in pictures:
            values = np.asarray(picture.convert("RGB"), dtype=np.float32)
            rows.append([*(values.mean((0, 1)) / 255), values.std(axis=(0, 1)).mean() / 20])
        return torch.nn.functional.normalize(torch.tensor(rows), dim=-1)

    def texts(self, texts):
        self.asked += texts
        rows = []
        for text in texts:
            words = text.lower().replace(".", "").split()
            found = [COLOURS[w] for w in words if w in COLOURS] or [(120, 120, 120)]
            sharp = 0.6 if "good" in words else 0.0
            rows.append([*(np.mean(found, axis=0) / 255), sharp])
        return torch.nn.functional.normalize(torch.tensor(rows, dtype=torch.float32), dim=-1)


def paint(request) -> Image.Image:
    """“myred” and “red” give red, another colour word its colour, nothing gives green."""
    prompt = request.prompt.replace("myred", "red")
    word = next((w for w in COLOURS if w in prompt), "green")
    image = flat(COLOURS[word], request.seed)
    return image.filter(ImageFilter.GaussianBlur(3)) if "blurry" in request.negative_prompt else image
