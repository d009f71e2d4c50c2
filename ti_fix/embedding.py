"""The nouns of the program: `Embedding`, the encoders it speaks to, and what is wrong with it.

Sources: SDXL's two text encoders and their widths, Podell et al. 2023 (arXiv 2307.01952), section 2.1;
pad ids from the tokenizer files published with the models (CLIP-L pads with ``<|endoftext|>``, bigG with id 0).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from ti_fix.errors import printable

Severity = Literal["note", "warning", "error"]

VOCABULARY_SIZE = 49408
"""Token ids in CLIP's vocabulary, the same in every CLIP text encoder that these models use."""

MAX_VECTORS = 75
"""Vectors that fit one 77-token chunk beside its start and end tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSpec:
    """A text encoder that an embedding can speak to.

    Attributes:
        key: the name of its vectors inside a file (``clip_l``).
        width: numbers per vector.
        title: what people call it.
        pad_id, bos_id, eos_id: token ids of its tokenizer; None where it is not a CLIP tokenizer.
        max_length: tokens per chunk, start and end token included.
        typical_norm: mean length of the rows of everyday words in the published model, None where unmeasured.
    """

    key: str
    width: int
    title: str
    pad_id: int | None = None
    bos_id: int | None = 49406
    eos_id: int | None = 49407
    max_length: int = 77
    typical_norm: float | None = None


CLIP_L = EncoderSpec(key="clip_l", width=768, title="CLIP-L", pad_id=49407, typical_norm=0.37)
CLIP_G = EncoderSpec(key="clip_g", width=1280, title="OpenCLIP bigG", pad_id=0, typical_norm=0.58)
CLIP_H = EncoderSpec(key="clip_h", width=1024, title="OpenCLIP H", pad_id=0)
T5_XXL = EncoderSpec(key="t5", width=4096, title="T5-XXL", pad_id=0, bos_id=None, eos_id=1, max_length=512)

ENCODERS: Mapping[str, EncoderSpec] = MappingProxyType({e.key: e for e in (CLIP_L, CLIP_G, CLIP_H, T5_XXL)})
BY_WIDTH: Mapping[int, EncoderSpec] = MappingProxyType({e.width: e for e in ENCODERS.values()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A kind of model: which text encoders it has.

    Attributes:
        name: the word for it on the command line (``sdxl``).
        title: what people call it (``SDXL``).
        encoders: its text encoders that can take Textual Inversion vectors, in the model's own order.
        keys: the keys that a whole embedding for this family has.
    """

    name: str
    title: str
    encoders: tuple[EncoderSpec, ...]
    keys: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", frozenset(e.key for e in self.encoders))


SD15 = Family(name="sd15", title="SD1.5", encoders=(CLIP_L,))
SD2 = Family(name="sd2", title="SD 2.x", encoders=(CLIP_H,))
SDXL = Family(name="sdxl", title="SDXL", encoders=(CLIP_L, CLIP_G))
SDXL_REFINER = Family(name="sdxl-refiner", title="the SDXL refiner", encoders=(CLIP_G,))
SD3 = Family(name="sd3", title="SD3", encoders=(CLIP_L, CLIP_G, T5_XXL))
FLUX = Family(name="flux", title="Flux", encoders=(CLIP_L, T5_XXL))

FAMILIES: Mapping[str, Family] = MappingProxyType({f.name: f for f in (SD15, SD2, SDXL, SDXL_REFINER, SD3, FLUX)})
_OTHER_NAMES: Mapping[str, str] = MappingProxyType(
    {"sd1": "sd15", "sd20": "sd2", "sd21": "sd2", "sdxl1": "sdxl", "sdxl10": "sdxl", "refiner": "sdxl-refiner"}
)
_BY_KEYS: Mapping[frozenset[str], Family] = {f.keys: f for f in FAMILIES.values()}


def family_name(text: str) -> str:
    """The name of a family however it is written (``SD1.5``, ``SD XL``, ``sd 2.1``); other texts as they are."""
    plain = re.sub("[^a-z0-9]", "", text.lower())
    names = {re.sub("[^a-z0-9]", "", name): name for name in FAMILIES}
    return names.get(plain) or _OTHER_NAMES.get(plain, text)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Embedding:
    """A named set of vectors, one block per text encoder.

    It may be ill: unequal row counts, a missing encoder or NaN are findings, not exceptions, or there would be
    nothing to repair.

    Attributes:
        name: the trigger under which a prompt calls it.
        vectors: encoder key -> float32 CPU tensor of shape (rows, width).
        metadata: free text that travels with the file.
        aliases: other names of the same embedding (the name inside the file, a name without prompt syntax).

    Raises:
        ValueError: a block is not a 2-D floating-point tensor.
    """

    name: str
    vectors: Mapping[str, Tensor]
    metadata: Mapping[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key, block in self.vectors.items():
            if block.ndim != 2 or not block.is_floating_point():
                raise ValueError(f"{key} must be a 2-D float tensor, not {tuple(block.shape)} of {block.dtype}.")

    @property
    def family(self) -> Family | None:
        """The family that this set of encoders belongs to, None for a set that no model has."""
        return _BY_KEYS.get(frozenset(self.vectors))

    @property
    def num_vectors(self) -> int:
        """Rows of the longest block: how many tokens of a prompt the embedding takes."""
        return max((block.shape[0] for block in self.vectors.values()), default=0)

    def with_vectors(self, vectors: Mapping[str, Tensor]) -> Embedding:
        """The same embedding with other vectors."""
        return replace(self, vectors=vectors)

    def half(self, keys: Sequence[str] | frozenset[str]) -> Embedding:
        """Only the blocks of these encoders."""
        return self.with_vectors({k: v for k, v in self.vectors.items() if k in keys})


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing noticed about a file or a model, in plain words.

    The words are made safe to show here, because a file's own names are quoted in many of them.

    Attributes:
        code: stable name for scripts (``uneven-rows``).
        severity: ``note`` is information, ``warning`` should be read, ``error`` means unusable.
        message: one sentence or two that a user would search for.
        encoder: the encoder key concerned, if one.
        rows: the rows concerned, counted from 0.
        repaired: what was done about it, as a sentence; empty where nothing was.
    """

    code: str
    severity: Severity
    message: str
    encoder: str | None = None
    rows: tuple[int, ...] = ()
    repaired: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", printable(self.message))
        object.__setattr__(self, "repaired", printable(self.repaired))


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The token tables of a loaded model with the tokenizer they belong to.

    Attributes:
        tables: encoder key -> float tensor of shape (at least 49408, width).
        tokenize: text -> token ids without start, end and padding.
        trained: bool tensor of shape (rows,), False for rows that no training ever touched (the fillers of the small
            models); None where all count. No dictionary, fit or statistic may use the others.
    """

    tables: Mapping[str, Tensor]
    tokenize: Callable[[str], list[int]]
    trained: Tensor | None = None


def norms(block: Tensor) -> list[float]:
    """Euclidean length of each row.

    Args:
        block: float tensor of shape (rows, width).
    """
    return torch.linalg.vector_norm(block.float(), dim=1).tolist()  # type: ignore[no-any-return]
