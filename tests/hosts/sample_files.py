"""Embedding files as people have them, whole and broken, written with the standard library alone."""

from __future__ import annotations

import functools
import json
import random
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Block = list[list[float]]
NORMS = {768: 0.37, 1280: 0.58, 1024: 0.4}
"""Typical length of a vector by its width, so that pictures change but stay sane."""

TORCH_FILE = "cktorch.pt"

LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4665c\nsize 12345\n"


def block(rows: int, width: int, seed: object) -> Block:
    """Rows of made-up vectors."""
    draw = random.Random(f"{seed} {width}")
    return [[draw.gauss(0, NORMS[width] / width**0.5) for _ in range(width)] for _ in range(rows)]


def write(path: Path, tensors: dict[str, Block | list[float]]) -> Path:
    """A safetensors file (float32)."""
    header: dict[str, object] = {}
    data = b""
    for name, values in tensors.items():
        flat = [x for row in values for x in (row if isinstance(row, list) else [row])]
        shape = [len(values), len(values[0])] if isinstance(values[0], list) else [len(values)]
        packed = struct.pack(f"<{len(flat)}f", *flat)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    head = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(head)) + head + data)
    return path


def pair(seed: object, rows: int = 2) -> dict[str, Block | list[float]]:
    """The plain SDXL form."""
    return {"clip_l": block(rows, 768, seed), "clip_g": block(rows, 1280, seed)}


@dataclass(frozen=True)
class Sample:
    """One file or pair of files, and what the WebUI must make of it.

    Attributes:
        trigger: the word for prompts.
        label: what infotext says of it under SDXL; empty: a healthy file; None: it must stay plain text.
        says: words that the console must hold about a file that cannot be used.
        sd15: the label under SD1.5; None: plain text there.
    """

    trigger: str
    label: str | None
    says: str = ""
    sd15: str | None = "clip_l half"
    files: dict[str, dict[str, Block | list[float]] | str] = field(default_factory=dict)


@functools.cache
def samples() -> list[Sample]:
    """Every kind of file that the check puts into the folder."""
    nan = pair("nan")
    nan["clip_g"][0][3] = float("nan")  # type: ignore[index]
    lora = {
        "lora_unet_middle_block_1_transformer_blocks_0_attn2_to_k.lora_down.weight": block(4, 768, 1),
        "lora_unet_middle_block_1_transformer_blocks_0_attn2_to_k.lora_up.weight": block(4, 768, 2),
    }
    renamed = {"text_encoders_0": block(2, 768, "r"), "text_encoders_1": block(2, 1280, "r")}
    swapped = {"clip_l": block(2, 1280, "s"), "clip_g": block(2, 768, "s")}
    uneven = {"clip_l": block(1, 768, "u"), "clip_g": block(3, 1280, "u")}
    flat = {"clip_l": block(1, 768, "f")[0], "clip_g": block(1, 1280, "f")[0]}
    halves = [{"clip_l": block(2, 768, "p")}, {"clip_g": block(2, 1280, "p")}]
    return [
        Sample("ckhealthy", "", files={"ckhealthy.safetensors": pair("h")}),
        Sample("ckrenamed", "repaired", files={"ckrenamed.safetensors": renamed}),
        Sample("ckswapped", "repaired", files={"ckswapped.safetensors": swapped}),
        Sample("ckuneven", "repaired", files={"ckuneven.safetensors": uneven}),
        Sample("ckpti", "repaired", files={"ckpti.pti": pair("pti")}),
        Sample(
            "ckpair_clip_l",
            "repaired",
            files={f"ckpair_clip_{key}.safetensors": half for key, half in zip("lg", halves, strict=True)},
        ),
        Sample("ckflat", "repaired", files={"ckflat.safetensors": flat}),
        Sample("cksub", "repaired", files={"sub/deeper/cksub.safetensors": extra("sub")}),
        Sample("cktorch", "opened"),  # the WebUI's own torch writes it
        Sample("cksd15", "converted", sd15="", files={"cksd15.safetensors": {"emb_params": block(2, 768, "15")}}),
        Sample("castle-ti", "converted", sd15="", files={"castle.safetensors": {"emb_params": block(2, 768, "c")}}),
        Sample("cknan", None, "NaN", sd15=None, files={"cknan.safetensors": nan}),
        Sample("cklfs", None, "Git LFS", sd15=None, files={"cklfs.safetensors": LFS}),
        Sample("cklora", None, "LoRA", sd15=None, files={"cklora.safetensors": lora}),
        Sample("ckempty", None, sd15=None, files={"ckempty.pt": ""}),
    ]


def put(folder: Path, wanted: list[Sample]) -> None:
    """Write the files of these samples into a folder."""
    for sample in wanted:
        for name, content in sample.files.items():
            if isinstance(content, str):
                (folder / name).write_text(content, encoding="utf-8")
            else:
                write(folder / name, content)


def extra(seed: object) -> dict[str, Block | list[float]]:
    """The plain form with one tensor too many."""
    return {**pair(seed), "note": block(1, 1024, 1)}


def bundle(path: Path) -> None:
    """A LoRA without weights of its own that carries the embedding ``ckbundled``."""
    tensors = pair("bundle")
    write(path, {f"bundle_emb.ckbundled.{key}": values for key, values in tensors.items()})


LORA_LAYER = "middle_block.1.transformer_blocks.0.attn2.to_k"


def lora(path: Path, checkpoint: Path) -> None:
    """A LoRA of rank 4 on one layer that every SDXL checkpoint has, in that checkpoint's own sizes."""
    outputs, inputs = header(checkpoint)[f"model.diffusion_model.{LORA_LAYER}.weight"]["shape"]
    name = "lora_unet_" + LORA_LAYER.replace(".", "_")
    draw = random.Random("lora")
    rows = {"lora_down": (4, inputs, inputs**-0.5), "lora_up": (outputs, 4, 1.0)}
    tensors = {
        f"{name}.{part}.weight": [[draw.gauss(0, scale) for _ in range(width)] for _ in range(count)]
        for part, (count, width, scale) in rows.items()
    }
    write(path, tensors)  # type: ignore[arg-type]


def header(checkpoint: Path) -> dict[str, Any]:
    """The header of a safetensors file: name -> dtype and shape; empty where it is none."""
    with checkpoint.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        text = stream.read(length) if length < 50_000_000 else b"{}"
    found: dict[str, Any] = json.loads(text)
    return found


def family_of(checkpoint: Path) -> str | None:
    """``sdxl`` or ``sd15`` by the names in a checkpoint's header, None for anything else."""
    names = list(header(checkpoint))
    if any(name.startswith("conditioner.embedders.1.") for name in names):
        return "sdxl" if any(name.startswith("conditioner.embedders.0.") for name in names) else None
    return "sd15" if any(name.startswith("cond_stage_model.transformer.") for name in names) else None
