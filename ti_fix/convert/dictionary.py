"""What is learned once of a checkpoint and kept on disk: which ids are words, how to find them, the map, its worth."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import safetensors.torch
import torch
from torch import Tensor

from ti_fix.convert.confidence import Calibration, calibrate
from ti_fix.convert.linear import LeftOut, LinearMap, Moments, fit
from ti_fix.convert.local import LocalMap
from ti_fix.convert.tables import FACTS, Index, TablePair, key_of, tables_of
from ti_fix.embedding import Vocabulary
from ti_fix.errors import TiFixError
from ti_fix.formats.write import write_bytes

T = TypeVar("T")

SHORT_WIDTH = 64
"""Numbers in the short form of a word."""

ROUNDS = 8
"""Of the subspace iteration; the axes need not be exact, they only shorten the search."""

KEPT = 16
"""Files in the cache folder at most; the oldest go."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Learned:
    """All about one checkpoint's tables besides the tables themselves, so that none of them is kept alive.

    Attributes:
        key: hash of the tables.
        facts: see `TablePair.facts`.
        index: finds near words.
        left_out: the linear map, and what it would be without each word.
        maps: the linear map, and what it misses around.
    """

    key: str
    facts: Mapping[str, Tensor]
    index: Index
    left_out: LeftOut
    maps: LocalMap

    def pair(self, left: Tensor, right: Tensor) -> TablePair:
        """The words over the tables that this was learned from."""
        return TablePair.known(left, right, self.facts, self.index)


def learn(
    vocabulary: Vocabulary, source: str, target: str, cache: Path | None, say: Callable[[str], None] = lambda _: None
) -> Learned:
    """Learn a checkpoint's dictionary, or take it from the cache.

    Args:
        vocabulary: of the loaded model.
        source: key of the encoder that embeddings have vectors for.
        target: key of the one that they lack.
        cache: folder to keep it in, None keeps nothing; one that cannot be written is done without.
        say: told when it takes seconds, before it does.

    Raises:
        TiFixError: the model has no such pair of encoders, or no usable words.
    """
    key = key_of(*tables_of(vocabulary, source, target), vocabulary.trained)
    path = cache / f"map-{key}.safetensors" if cache else None
    known = _kept(path, lambda tensors: _unpack(key, tensors))
    if known is None:
        say("Learning how the text encoders of this checkpoint correspond; this takes seconds, once a checkpoint.")
        known = _learn(vocabulary, source, target, key)
        _keep(path, _pack(known))
    return known


def calibration_of(pair: TablePair, learned: Learned, cache: Path | None) -> Calibration:
    """What the map is worth, calibrated or from the cache."""
    path = cache / f"worth-{learned.key}.safetensors" if cache else None
    known = _kept(path, lambda tensors: Calibration(**tensors))
    if known is None:
        known = calibrate(pair, learned.left_out, learned.maps)
        _keep(path, {name: getattr(known, name) for name in Calibration.__dataclass_fields__})
    return known


def _learn(vocabulary: Vocabulary, source: str, target: str, key: str) -> Learned:
    pair = TablePair.of(vocabulary, source, target)
    moments = Moments.of(pair)
    left_out = LeftOut.of(fit(pair, moments=moments), moments)
    axes = _main_axes(moments.covariance)
    short = torch.cat([pair.meanings(rows.cpu()) @ axes for rows, _ in pair.blocks()])
    index = Index(axes=axes, short=short)
    maps = LocalMap.of(replace(pair, index=index), left_out)
    return Learned(key=key, facts=pair.facts, index=index, left_out=left_out, maps=maps)


def _main_axes(covariance: Tensor) -> Tensor:
    """Orthonormal axes along which words differ most, by subspace iteration; (width, `SHORT_WIDTH` at most)."""
    width = len(covariance)
    random = torch.Generator().manual_seed(0)
    axes = torch.randn(width, min(SHORT_WIDTH, width), generator=random, dtype=torch.float64)
    for _ in range(ROUNDS):
        axes, _ = torch.linalg.qr(covariance @ axes)
    return axes.float()


def _kept(path: Path | None, unpack: Callable[[dict[str, Tensor]], T]) -> T | None:
    """From the cache; what is missing or damaged there is None, and made anew."""
    if path is None:
        return None
    with contextlib.suppress(KeyError, TypeError, ValueError, OSError, safetensors.SafetensorError):
        return unpack(safetensors.torch.load(path.read_bytes()))
    return None


def _keep(path: Path | None, tensors: dict[str, Tensor]) -> None:
    if path is None:
        return
    with contextlib.suppress(TiFixError, OSError):  # a folder that cannot be written costs time, nothing else
        write_bytes(path, safetensors.torch.save({k: v.contiguous() for k, v in tensors.items()}), overwrite=True)
        files = sorted(path.parent.glob("*.safetensors"), key=lambda each: each.stat().st_mtime)
        for each in files[:-KEPT]:
            each.unlink()


def _pack(learned: Learned) -> dict[str, Tensor]:
    mapping, maps = learned.left_out.mapping, learned.maps
    return {
        **learned.facts,
        "axes": learned.index.axes,
        "short": learned.index.short.half(),
        "inverse": learned.left_out.inverse,
        "leverage": maps.leverage,
        "around": torch.tensor([maps.share, maps.sharpness], dtype=torch.float64),
        "weight": mapping.weight,
        "source_mean": mapping.source_mean,
        "target_mean": mapping.target_mean,
        "figures": torch.tensor([mapping.penalty, mapping.r_squared, mapping.cosine], dtype=torch.float64),
    }


def _unpack(key: str, kept: dict[str, Tensor]) -> Learned:
    penalty, r_squared, cosine = kept["figures"].tolist()
    mapping = LinearMap(
        weight=kept["weight"],
        source_mean=kept["source_mean"],
        target_mean=kept["target_mean"],
        penalty=penalty,
        r_squared=r_squared,
        cosine=cosine,
    )
    share, sharpness = kept["around"].tolist()
    index = Index(axes=kept["axes"], short=kept["short"].float())
    return Learned(
        key=key,
        facts={name: kept[name] for name in FACTS},
        index=index,
        left_out=LeftOut(mapping=mapping, inverse=kept["inverse"]),
        maps=LocalMap(mapping=mapping, leverage=kept["leverage"], share=share, sharpness=sharpness),
    )
