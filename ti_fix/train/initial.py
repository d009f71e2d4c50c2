"""The vectors that a run starts from."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ti_fix.embedding import VOCABULARY_SIZE, Embedding, Family, Vocabulary
from ti_fix.errors import WrongUse
from ti_fix.formats import read
from ti_fix.train.config import TrainConfig
from ti_fix.train.random_streams import torch_stream

Fit = Callable[[Embedding], Embedding]

Vectors = dict[str, Tensor]
"""Encoder key -> (vectors, width), float32 on the CPU."""

_WEIGHTED = re.compile(r"(?P<word>.*?)\s*:\s*(?P<weight>[+-]?(?:\d+\.?\d*|\.\d+))\s*")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Statistics:
    """What ordinary rows of one encoder's token table look like.

    Attributes:
        mean: (width,) mean row.
        deviation: (width,) standard deviation of each number.
        length: mean length of a row.
        rms: root mean square of the rows' numbers.
    """

    mean: Tensor
    deviation: Tensor
    length: float
    rms: float


def statistics(vocabulary: Vocabulary) -> dict[str, Statistics]:
    """Statistics per encoder over the rows of whole words; control tokens and bytes are left out.

    Ids below 512 are bytes, the last two are start and end.
    """
    return {key: _statistics(table[512 : VOCABULARY_SIZE - 2].detach()) for key, table in vocabulary.tables.items()}


def _statistics(rows: Tensor) -> Statistics:
    """In pieces, so that a table in half precision is never copied whole."""
    total = torch.zeros(rows.shape[1], dtype=torch.float64)
    squares = torch.zeros_like(total)
    lengths = 0.0
    for piece in torch.split(rows, 4096):
        numbers = piece.to("cpu", torch.float64)
        total += numbers.sum(0)
        squares += numbers.square().sum(0)
        lengths += float(torch.linalg.vector_norm(numbers, dim=1).sum())
    mean, square = total / len(rows), squares / len(rows)
    return Statistics(
        mean=mean.float(),
        deviation=(square - mean.square()).clamp_min(0).sqrt().float(),
        length=lengths / len(rows),
        rms=float(square.mean().sqrt()),
    )


def rows_of(vocabulary: Vocabulary, text: str) -> Vectors:
    """The token rows of a text, without start, end and padding: encoder key -> (tokens, width).

    Raises:
        WrongUse: the text has no token.
    """
    ids = vocabulary.tokenize(text)
    if not ids:
        raise WrongUse(f"The start text {text!r} holds no word; write what the embedding is, such as: cat.")
    return {key: table[ids].detach().float().cpu().clone() for key, table in vocabulary.tables.items()}


def start_vectors(
    config: TrainConfig,
    vocabulary: Vocabulary,
    family: Family,
    about: Mapping[str, Statistics],
    fit: Fit = lambda embedding: embedding,
) -> Vectors:
    """The first vectors: encoder key -> (vectors, width), the same number in each encoder.

    Args:
        config: the settings.
        vocabulary: of the loaded model.
        family: of the loaded model.
        about: statistics of the vocabulary.
        fit: brings the embedding of a start file to the model's widths; the default changes nothing.

    Raises:
        WrongUse: the start text or file cannot be used.
    """
    if config.start == "file":
        vectors = _from_file(config, family, about, fit)
    else:
        vectors = _STARTS[config.start](config, vocabulary, about)
    if not config.start_noise:
        return vectors
    return {
        key: block + config.start_noise * _noise(config.seed, key, block, about[key]) for key, block in vectors.items()
    }


def _noise(seed: int, key: str, block: Tensor, about: Statistics) -> Tensor:
    """Random directions of the vocabulary's mean length, (vectors, width)."""
    noise = torch.randn(block.shape, generator=torch_stream(seed, "start noise", key))
    return noise * (about.length / math.sqrt(block.shape[1]))


def _from_words(config: TrainConfig, vocabulary: Vocabulary, _about: Mapping[str, Statistics]) -> Vectors:
    """One vector per token; the tokens repeat where there are more vectors, and the last ones are left out."""
    rows = rows_of(vocabulary, config.start_text)
    return {key: block[torch.arange(config.vectors) % len(block)] for key, block in rows.items()}


def _from_mean(config: TrainConfig, vocabulary: Vocabulary, _about: Mapping[str, Statistics]) -> Vectors:
    """The weighted mean of the words' rows, brought to their own weighted mean length.

    Each word counts once, however many tokens it has.
    """
    parts = weighted_words(config.start_text)
    total = sum(weight for _, weight in parts)
    if total <= 0:
        raise WrongUse(f"The weights of {config.start_text!r} add up to {total:g}; they must add up to more than 0.")
    found: dict[str, list[tuple[Tensor, float]]] = {}
    for word, weight in parts:
        for key, block in rows_of(vocabulary, word).items():
            found.setdefault(key, []).append((block, weight / total))
    return {key: _mean(blocks).repeat(config.vectors, 1) for key, blocks in found.items()}


def _mean(blocks: list[tuple[Tensor, float]]) -> Tensor:
    mean = torch.stack([weight * block.mean(0) for block, weight in blocks]).sum(0)
    length = sum(abs(weight) * float(torch.linalg.vector_norm(block, dim=1).mean()) for block, weight in blocks)
    scaled: Tensor = mean * (length / mean.norm().clamp_min(1e-12))
    return scaled


def weighted_words(text: str) -> list[tuple[str, float]]:
    """``bird:1 blue:.5 metal`` -> words with weights, 1 where none is given. Commas may stand between the parts.

    A part may have several words when commas are used: ``blue bird:2, metal``.
    """
    parts = text.split(",") if "," in text else text.split()
    found = []
    for part in (p.strip() for p in parts):
        match = _WEIGHTED.fullmatch(part)
        if match:
            found.append((match["word"], float(match["weight"])))
        elif part:
            found.append((part, 1.0))
    if not found:
        raise WrongUse("The start text holds no word; write words, or words with weights as bird:1 blue:.5.")
    return found


def _from_slerp(config: TrainConfig, vocabulary: Vocabulary, _about: Mapping[str, Statistics]) -> Vectors:
    parts = weighted_words(config.start_text)
    total = sum(weight for _, weight in parts)
    if len(parts) != 2 or total <= 0 or min(weight for _, weight in parts) < 0:
        raise WrongUse(
            f"slerp blends two words with weights from 0 up, such as cat:1 dog:2; got {config.start_text!r}."
        )
    share = parts[1][1] / total
    one, other = (rows_of(vocabulary, word) for word, _ in parts)
    return {key: slerp(one[key].mean(0), other[key].mean(0), share).repeat(config.vectors, 1) for key in one}


def slerp(one: Tensor, other: Tensor, share: float) -> Tensor:
    """The vector at `share` of the way from one to the other along the arc (Shoemake 1985); lengths blend linearly."""
    lengths = one.norm(), other.norm()
    a, b = one / lengths[0].clamp_min(1e-12), other / lengths[1].clamp_min(1e-12)
    angle = torch.arccos((a @ b).clamp(-1, 1))
    if angle < 1e-4:
        direction = a
    else:
        direction = (torch.sin((1 - share) * angle) * a + torch.sin(share * angle) * b) / torch.sin(angle)
    blended: Tensor = direction * torch.lerp(lengths[0], lengths[1], share)
    return blended


def _from_file(config: TrainConfig, family: Family, about: Mapping[str, Statistics], fit: Fit) -> Vectors:
    parsed = read(Path(config.start_text))
    if parsed.embedding is None:
        said = parsed.findings[0].message if parsed.findings else "it holds no embedding."
        raise WrongUse(f"The start file {config.start_text}: {said}")
    return _fitting(fit(parsed.embedding), config, family, {key: each.mean.shape[0] for key, each in about.items()})


def _fitting(embedding: Embedding, config: TrainConfig, family: Family, widths: Mapping[str, int]) -> Vectors:
    """The file's own vectors, if they are what this model takes."""
    where = f"The start file {config.start_text}"
    missing = sorted(family.keys - embedding.vectors.keys())
    if missing:
        raise WrongUse(
            f"{where} has no vectors for {' and '.join(missing)}, which {family.title} needs; convert it first."
        )
    vectors: Vectors = {}
    for key in sorted(family.keys):
        block = embedding.vectors[key]
        if block.shape[1] != widths[key]:
            raise WrongUse(f"{where}: {key} is {block.shape[1]} wide, the model's is {widths[key]}; use another file.")
        if not bool(block.isfinite().all()):
            raise WrongUse(f"{where}: {key} holds NaN or infinite values; repair it first.")
        if block.shape[0] != config.vectors:
            raise WrongUse(f"{where} has {block.shape[0]} vectors in {key}; set Vectors to {block.shape[0]} (vectors).")
        vectors[key] = block.detach().float().clone()
    return vectors


def _from_random(config: TrainConfig, _vocabulary: Vocabulary, about: Mapping[str, Statistics]) -> Vectors:
    """Numbers with the vocabulary's mean and spread, each vector brought to the mean length of its rows."""
    vectors: Vectors = {}
    for key, each in about.items():
        noise = torch.randn(config.vectors, len(each.mean), generator=torch_stream(config.seed, "start", key))
        block = each.mean + each.deviation * noise
        vectors[key] = block * (each.length / torch.linalg.vector_norm(block, dim=1, keepdim=True))
    return vectors


_STARTS: Mapping[str, Callable[[TrainConfig, Vocabulary, Mapping[str, Statistics]], Vectors]] = {
    "words": _from_words,
    "mean": _from_mean,
    "slerp": _from_slerp,
    "random": _from_random,
}
