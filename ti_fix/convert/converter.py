"""Embeddings for the other family: SD1.5 to SDXL by the ladder, SDXL to SD1.5 by leaving the bigG half out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from ti_fix.convert.confidence import CERTAIN, Calibration, Confidence, calibrate
from ti_fix.convert.ladder import METHODS, climb
from ti_fix.convert.linear import LinearMap, fit
from ti_fix.convert.tables import TablePair
from ti_fix.embedding import CLIP_G, CLIP_L, SD15, SDXL, Embedding, Family, Finding, Vocabulary
from ti_fix.errors import TiFixError, WrongUse
from ti_fix.formats.safetensors_file import read
from ti_fix.formats.source import Source
from ti_fix.formats.write import to_bytes, write_bytes
from ti_fix.options import option

L_ONLY = "l_only"


@dataclass(frozen=True, kw_only=True)
class ConvertConfig:
    """How to convert."""

    method: str = option(
        "auto",
        "Method",
        "auto takes the first that holds for each vector: a word of the vocabulary, a sum of words, the linear map",
        choices=(*METHODS, L_ONLY),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """How one vector was converted.

    Attributes:
        method: the rung that made it.
        words: token ids that it rests on, the weightiest first.
        confidence: what to expect of it.
    """

    method: str
    words: tuple[int, ...]
    confidence: Confidence


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Conversion:
    """A converted embedding.

    Attributes:
        embedding: for the other family, under the same name.
        rows: one a vector.
        message: one plain sentence about the whole.
        findings: what the user should know besides.
    """

    embedding: Embedding
    rows: tuple[Row, ...]
    message: str
    findings: tuple[Finding, ...] = ()


class Converter:
    """The dictionary of one SDXL checkpoint: its two token tables, the map between them, and what that map is worth.

    Args:
        vocabulary: of the loaded model.
        cache: folder in which the map and its calibration are kept by the tables' hash; None keeps nothing.

    Raises:
        TiFixError: the model is no SDXL model.
    """

    def __init__(self, vocabulary: Vocabulary, cache: Path | None = None) -> None:
        self.pair = TablePair.of(vocabulary, CLIP_L.key, CLIP_G.key)
        self.mapping, self.calibration = _fitted(self.pair, cache)

    def to_sdxl(self, embedding: Embedding, config: ConvertConfig | None = None) -> Conversion:
        """An SD1.5 embedding with a bigG half made for it; its CLIP-L half stays bit for bit.

        Raises:
            WrongUse: it is not an SD1.5 embedding.
        """
        config = config or ConvertConfig()
        if set(embedding.vectors) != {CLIP_L.key}:
            raise WrongUse(f"{embedding.name!r} {_is(embedding)}, not SD1.5 alone; only SD1.5 files become SDXL ones.")
        left = embedding.vectors[CLIP_L.key]
        if not bool(torch.isfinite(left).all()):
            raise WrongUse(f"{embedding.name!r} holds NaN or infinite numbers; use an earlier step of its training.")
        if config.method == L_ONLY:
            return _left_only(embedding)
        rungs = climb(left, self.pair, self.mapping, config.method)
        right = torch.stack([rung.vector for rung in rungs])
        rows = tuple(Row(method=r.method, words=r.words, confidence=self.calibration.of(r)) for r in rungs)
        return _checked(
            Conversion(
                embedding=_noted(embedding, {CLIP_L.key: left, CLIP_G.key: right}, f"SD1.5, {config.method}"),
                rows=rows,
                message=_sentence(rows),
            )
        )


def to_sd15(embedding: Embedding) -> Conversion:
    """The CLIP-L half of an SDXL embedding, bit for bit; SD1.5 has the same encoder.

    Args:
        embedding: with a CLIP-L half; T5 and bigG parts are dropped.

    Raises:
        WrongUse: there is no CLIP-L half.
    """
    if CLIP_L.key not in embedding.vectors:
        raise WrongUse(
            f"{embedding.name!r} {_is(embedding)}: it has no CLIP-L half, which is all that SD1.5 could use."
        )
    dropped = [key for key in embedding.vectors if key != CLIP_L.key]
    left = embedding.vectors[CLIP_L.key]
    rows = tuple(Row(method="kept", words=(), confidence=CERTAIN) for _ in left)
    return _checked(
        Conversion(
            embedding=_noted(embedding, {CLIP_L.key: left}, "SDXL, clip_l kept"),
            rows=rows,
            message=f"Kept clip_l as it is and dropped {' and '.join(dropped) or 'nothing'}; what the dropped part "
            "added to pictures is lost.",
        )
    )


def _fitted(pair: TablePair, cache: Path | None) -> tuple[LinearMap, Calibration]:
    kept = cache / f"map-{pair.key}.safetensors" if cache else None
    if kept is not None and kept.is_file():
        try:
            return _unpack(safetensors.torch.load(kept.read_bytes()))
        except (KeyError, OSError, safetensors.SafetensorError):
            pass  # a damaged cache is made anew
    mapping, calibration = fit(pair), calibrate(pair)
    if kept is not None:
        write_bytes(kept, safetensors.torch.save(_pack(mapping, calibration)), overwrite=True)
    return mapping, calibration


def _pack(mapping: LinearMap, calibration: Calibration) -> dict[str, Tensor]:
    return {
        "weight": mapping.weight,
        "source_mean": mapping.source_mean,
        "target_mean": mapping.target_mean,
        "figures": torch.tensor([mapping.penalty, mapping.r_squared, mapping.cosine], dtype=torch.float64),
        "score_weights": calibration.weights,
        "scores": calibration.scores,
        "outcomes": calibration.outcomes,
        "expected": calibration.expected,
    }


def _unpack(kept: dict[str, Tensor]) -> tuple[LinearMap, Calibration]:
    penalty, r_squared, cosine = kept["figures"].tolist()
    mapping = LinearMap(
        weight=kept["weight"],
        source_mean=kept["source_mean"],
        target_mean=kept["target_mean"],
        penalty=penalty,
        r_squared=r_squared,
        cosine=cosine,
    )
    calibration = Calibration(
        weights=kept["score_weights"], scores=kept["scores"], outcomes=kept["outcomes"], expected=kept["expected"]
    )
    return mapping, calibration


def _left_only(embedding: Embedding) -> Conversion:
    rows = tuple(
        Row(method=L_ONLY, words=(), confidence=Confidence(expected=0.0, low=0.0, high=0.0))
        for _ in embedding.vectors[CLIP_L.key]
    )
    return Conversion(
        embedding=embedding, rows=rows, message="Kept clip_l only; bigG reads the name as plain words, so expect less."
    )


def _noted(embedding: Embedding, vectors: dict[str, Tensor], how: str) -> Embedding:
    """The new vectors, with a line in the metadata that says where they come from."""
    return replace(embedding, vectors=vectors, metadata={**embedding.metadata, "ti_fix.converted_from": how})


def _sentence(rows: tuple[Row, ...]) -> str:
    counts = {m: sum(r.method == m for r in rows) for m in dict.fromkeys(r.method for r in rows)}
    names = {
        "vocabulary": "as words of the vocabulary",
        "sparse": "as sums of words",
        "linear": "by the map between the two encoders",
        "sparse+linear": "by words and the map together",
    }
    how = ", ".join(f"{count} {names[method]}" for method, count in counts.items())
    expected = [r.confidence for r in rows]
    mean, low = (sum(getattr(c, f) for c in expected) / len(expected) for f in ("expected", "low"))
    mean, low = mean + 0.0, low + 0.0
    quality = (
        "as good as exact"
        if mean > 0.98
        else "good"
        if mean > 0.7
        else "fair"
        if mean > 0.4
        else "poor, better not used"
    )
    return (
        f"Converted {len(rows)} vectors: {how}. Expected likeness {mean:.2f} ({quality}; four of five at "
        f"{low:.2f} or better)."
    )


def _is(embedding: Embedding) -> str:
    family: Family | None = embedding.family
    return (
        f"is made for {family.title}" if family else f"has vectors for {' and '.join(embedding.vectors) or 'nothing'}"
    )


def _checked(conversion: Conversion) -> Conversion:
    """What every conversion must hold: equal rows, finite numbers, a file that reads back.

    Raises:
        TiFixError: it does not; nothing is returned that would break pictures.
    """
    vectors = conversion.embedding.vectors
    even = len({block.shape[0] for block in vectors.values()}) == 1
    finite = all(bool(torch.isfinite(block).all()) for block in vectors.values())
    family = SDXL if CLIP_G.key in vectors else SD15
    if not even or not finite or not read(Source(to_bytes(conversion.embedding, family=family))).tree:
        raise TiFixError(f"the conversion of {conversion.embedding.name!r} came out unusable; keep the original.")
    return conversion
