"""Honest files of every layout, the reported broken ones, and the attacks: what the fuzz starts from."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from tests.cases import folder
from tests.formats import attacks
from tests.formats import picture_maker as make

PICTURES = Path(__file__).parents[1] / "data" / "pictures"
LARGEST = 300_000
"""Bytes of the files that are taken; larger ones only take longer."""


def layouts() -> dict[str, Any]:
    """Trees of tensors, one for each layout that a tool has written."""
    random = torch.Generator().manual_seed(1)
    left, right, both, second = (torch.randn(2, n, generator=random) * 0.02 for n in (768, 1280, 2048, 1024))
    return {
        "sdxl": {"clip_l": left, "clip_g": right},
        "sdxl half": {"clip_l": left.half(), "clip_g": right.bfloat16()},
        "uneven": {"clip_l": left, "clip_g": right[:1]},
        "swapped": {"clip_l": right, "clip_g": left},
        "transposed": {"clip_l": left.T.contiguous(), "clip_g": right.T.contiguous()},
        "3-D": {"clip_l": left[None], "clip_g": right[None]},
        "concatenated": {"emb_params": both},
        "flat": {"emb_params": left.reshape(-1)},
        "sd1": {"emb_params": left},
        "sd2": {"emb_params": second},
        "pair half": {"<cat>": right[0]},
        "numbered": {"<s0>": left[0], "<s1>": left[1]},
        "several": {"<cat>": left[0], "<dog>": left[1]},
        "pti": {"text_encoders_0": left, "text_encoders_1": right},
        "outputs": {"clip_l": left, "clip_g": right, "clip_l_out": left.clone(), "clip_g_out": right.clone()},
        "lora bundle": {
            "lora_unet_x.lora_down.weight": left.clone(),
            "bundle_emb.hero.clip_l": left,
            "bundle_emb.hero.clip_g": right,
        },
        "zeros": {"clip_l": torch.zeros(2, 768), "clip_g": right},
        "NaN": {"clip_l": left / 0, "clip_g": right},
        "80 rows": {"clip_l": torch.randn(80, 768), "clip_g": torch.randn(80, 1280)},
        "sd3": {"clip_l": left, "clip_g": right, "t5xxl": torch.randn(1, 4096)},
        "fp8": {"clip_l": left.to(torch.float8_e4m3fn), "clip_g": right.to(torch.float8_e5m2)},
        "doubles": {"clip_l": left.double(), "clip_g": right.double()},
    }


def trees() -> dict[str, Any]:
    """What only pickles can hold."""
    flat = layouts()
    left, right = flat["sdxl"].values()
    webui = {
        "string_to_token": {"*": 265},
        "name": "hero",
        "step": 500,
        "sd_checkpoint": "x",
        "sd_checkpoint_name": None,
    }
    parameters = torch.nn.ParameterDict({"*": torch.nn.Parameter(left.clone())})
    return {
        "webui": {**webui, "string_to_param": {"*": left}},
        "webui parameters": {**webui, "string_to_param": parameters},
        "webui sdxl": {**webui, "string_to_param": {"clip_l": left, "clip_g": right}},
        "nested": {
            "state_dict": {"embedding": [{"clip_l": left}, {"clip_g": right}]},
            "optimizer": {"state": {0: left}},
        },
        "bare": left,
        "list": [left, right],
        "views": {"clip_l": left.T.contiguous().T, "clip_g": right[:1].expand(2, 1280)},
        "module": torch.nn.Embedding(2, 768),
        "numpy": {"clip_l": left.numpy(), "clip_g": right.numpy()},
    }


def saved(tree: Any, *, new: bool) -> bytes:
    out = io.BytesIO()
    torch.save(tree, out, _use_new_zipfile_serialization=new)
    return out.getvalue()


def _pictures() -> dict[str, bytes]:
    vectors = make.vectors(2)
    text = make.text_of(make.a1111(vectors))
    chunks = {"tEXt": b"tEXt", "zTXt": b"zTXt", "iTXt": b"iTXt", "iTXz": b"iTXt"}
    found = {
        f"{name}.png": make.png_with_chunk(kind, make.text_chunk(text, name.encode())) for name, kind in chunks.items()
    }
    pixels = make.pixels_with(make.a1111(make.vectors(1)), 24, 40)
    found["pixels.png"] = make.saved(pixels)
    found["pixels.webp"] = make.saved(pixels, "WEBP", lossless=True)
    found["photo.png"] = make.saved(make.photo(32, 32))
    return found | {path.name: path.read_bytes() for path in sorted(PICTURES.iterdir())}


def corpus() -> list[tuple[str, bytes]]:
    """(name, content) of honest files, of reported broken ones, and of attacks, in a fixed order."""
    found: dict[str, bytes] = {}
    for name, tensors in layouts().items():
        found[f"{name}.safetensors"] = safetensors.torch.save(tensors, {"modelspec.title": name, "ss_steps": "500"})
    for name, tree in {**layouts(), **trees()}.items():
        found[f"{name}.pt"] = saved(tree, new=True)
        found[f"{name} legacy.pt"] = saved(tree, new=False)
    for protocol in (2, 4, 5):
        found[f"numpy {protocol}.pt"] = pickle.dumps(trees()["numpy"], protocol=protocol)
        found[f"plain {protocol}.pt"] = pickle.dumps({"<cat>": torch.ones(768)}, protocol=protocol)
    found |= _pictures()
    reported = sorted(path for path in (folder() / "handover").rglob("*") if path.is_file())
    found |= {
        f"{i} {path.name}": path.read_bytes() for i, path in enumerate(reported) if path.stat().st_size <= LARGEST
    }
    for name, body in attacks.code("canary").items():
        found[f"{name}.pt"] = attacks.zipped(attacks.HEAD + body + b".")
    return list(found.items())
