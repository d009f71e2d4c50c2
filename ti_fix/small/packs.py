"""Packed weights of the small models: fp16 safetensors under ``ti_fix/small/packs/``.

Token tables are stored as the rows that captions used; every other row is noise from a seed, rebuilt bit for bit by
:func:`token_table`. No fit, dictionary or statistic may use the noise rows: see :class:`TokenRows`.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from ti_fix.small.vocabulary import VOCABULARY

FOLDER = Path(__file__).parent / "packs"
WIDTH = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenRows:
    """The trained part of one token table.

    ``ids`` (n,) token ids, ``rows`` (n, 64) fp16, ``pictures`` (n,) distinct training pictures behind each id.
    """

    ids: Tensor
    rows: Tensor
    pictures: Tensor
    filler_seed: int
    row_length: float


def write_pack(name: str, tensors: dict[str, Tensor], about: dict[str, Any], folder: Path = FOLDER) -> Path:
    """Write ``name.safetensors``: floats as fp16, ``about`` as JSON metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = {k: (v.detach().half() if v.is_floating_point() else v.detach()).contiguous() for k, v in tensors.items()}
    path = folder / f"{name}.safetensors"
    save_file(stored, path, metadata={"about": json.dumps(about, sort_keys=True)})
    return path


@cache
def read_pack(name: str, folder: Path = FOLDER) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors as stored (fp16) and the metadata. Callers must not write into the tensors."""
    with safe_open(folder / f"{name}.safetensors", "pt") as file:
        tensors = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118 - not a dict
        about = json.loads(file.metadata()["about"])
    return tensors, about


def part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Tensors under ``prefix.``, prefix removed, as fp32."""
    start = prefix + "."
    return {
        k[len(start) :]: v.float() if v.is_floating_point() else v for k, v in tensors.items() if k.startswith(start)
    }


def token_rows(encoder: str) -> TokenRows:
    """Trained rows of ``clip_l`` or ``clip_g``."""
    tensors, about = read_pack(f"rows_{encoder}")
    return TokenRows(
        ids=tensors["ids"].long(),
        rows=tensors["rows"],
        pictures=tensors["pictures"].long(),
        filler_seed=about["filler_seed"],
        row_length=about["row_length"],
    )


def token_table(encoder: str) -> Tensor:
    """The full (49408, 64) table in fp16: trained rows, seeded noise of the same length elsewhere."""
    known = token_rows(encoder)
    noise = np.random.RandomState(known.filler_seed).standard_normal((VOCABULARY, WIDTH))
    table = torch.from_numpy((noise * known.row_length / math.sqrt(WIDTH)).astype(np.float16))
    table[known.ids] = known.rows
    return table


def picture_counts(encoder: str) -> Tensor:
    """Distinct training pictures per token id, (49408,); 0 marks a noise row (or a special token)."""
    known = token_rows(encoder)
    counts = torch.zeros(VOCABULARY, dtype=torch.long)
    counts[known.ids] = known.pictures
    return counts
