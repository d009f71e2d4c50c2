"""A stand-in for the host, and folders with files of every state."""

from __future__ import annotations

from dataclasses import replace

import safetensors.torch
import torch
from torch.nn.functional import pad

from ti_fix.embedding import SDXL


class StandIn:
    """The names that a page asks of a host."""

    name = "stand-in"

    def __init__(self, *folders, loras=(), used=frozenset(), credentials=(), exposed=False):
        self.embedding_folders = list(folders)
        self.lora_folders = list(loras)
        self.used, self.credentials, self.is_exposed = used, list(credentials), exposed
        self.model = SDXL
        self.words = None
        self.refreshed = 0
        self.trainer = None
        self.text, self.seen = None, None

    def family(self):
        return self.model

    def loading(self):
        return False

    def text_model(self):
        return self.text

    def extra_rows(self):
        return []

    def seen_at_load(self):
        return self.seen

    def environment(self):
        return [("torch", torch.__version__)]

    def vocabulary(self):
        return self.words

    def refresh_embeddings(self):
        self.refreshed += 1

    def used_in_last_image(self):
        return self.used

    def run(self, work):
        return work()

    def interrupted(self):
        return False

    def picture_size(self):
        return 64

    def training_host(self):
        return self.trainer

    def fit(self, embedding):
        return embedding

    publish = fit
    clip_folders = ()
    captioners = ()

    def judge(self):
        return None

    def exposed(self):
        return self.is_exposed

    def page_exposed(self):
        return self.is_exposed

    def api_credentials(self):
        return self.credentials


def vectors(rows, seed=0):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 768, generator=random) * 0.0134, torch.randn(rows, 1280, generator=random) * 0.0163


def save(path, tensors):
    path.parent.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file({k: v.contiguous() for k, v in tensors.items()}, path)
    return path


def fill(root):
    """One file of each state, and a pair."""
    left, right = vectors(3)
    many = vectors(80)
    save(root / "ready-xq.safetensors", {"clip_l": left, "clip_g": right})
    save(root / "sub" / "swapped-xq.safetensors", {"clip_l": right, "clip_g": left})
    save(root / "old-xq.safetensors", {"emb_params": left})
    save(root / "broken-xq.safetensors", {"clip_l": left, "clip_g": right * float("nan")})
    save(root / "a(b)xq.safetensors", {"clip_l": left, "clip_g": right})
    save(root / "long-xq.safetensors", {"clip_l": many[0], "clip_g": many[1]})
    save(root / "learned_embeds.safetensors", {"<my-toy>": left})
    save(root / "learned_embeds_2.safetensors", {"<my-toy>": right})
    return root


STATES = {
    "ready-xq": "load",
    "swapped-xq": "repair",
    "old-xq": "convert",
    "broken-xq": "reject",
    "a(b)xq": "warn",
    "long-xq": "reject",
    "my-toy": "repair",
}


def save_lora(path):
    left, right = vectors(2)
    bundled = {"bundle_emb.hero-xq.clip_l": left, "bundle_emb.hero-xq.clip_g": right}
    return save(path, {"lora_unet_mid.lora_down.weight": left.clone(), **bundled})


def widened(embedding):
    """The tiny model's vectors at the widths of files."""
    widths = {"clip_l": 768, "clip_g": 1280}
    blocks = {key: pad(block, (0, widths[key] - block.shape[1])) for key, block in embedding.vectors.items()}
    return replace(embedding, vectors=blocks)
