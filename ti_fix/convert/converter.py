"""SD1.5 embeddings for SDXL: the dictionary of one checkpoint and the ladder over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ti_fix.convert.check import Probe, checked, tried
from ti_fix.convert.confidence import WORTHLESS
from ti_fix.convert.config import L_ONLY, MATCH, ConvertConfig
from ti_fix.convert.dictionary import calibration_of, learn
from ti_fix.convert.ladder import BY_THE_MAP, climb
from ti_fix.convert.linear import LinearMap
from ti_fix.convert.matching import Matched, MatchEvent
from ti_fix.convert.outputs import OutputMatcher
from ti_fix.convert.result import Conversion, Row, is_for, noted, sentence
from ti_fix.convert.tables import tables_of
from ti_fix.embedding import CLIP_G, CLIP_L, T5_XXL, Embedding, Finding, Vocabulary
from ti_fix.errors import WrongUse
from ti_fix.protocols import DiffusionModel


class Converter:
    """The dictionary of one SDXL checkpoint: its two token tables, the map between them, and what that map is worth.

    Args:
        vocabulary: of the loaded model.
        cache: folder in which what is learned is kept by the tables' hash; None keeps nothing.
        model: the loaded model itself, needed for output matching; it also tries each conversion out.
        probe: the order probe of the training engine, for that trial.
        say: told before something takes seconds.

    Raises:
        TiFixError: the model is no SDXL model.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        cache: Path | None = None,
        *,
        model: DiffusionModel | None = None,
        probe: Probe | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        learned = learn(vocabulary, CLIP_L.key, CLIP_G.key, cache, say)
        self.pair = learned.pair(*tables_of(vocabulary, CLIP_L.key, CLIP_G.key))
        self.maps = learned.maps
        self.calibration = calibration_of(self.pair, learned, cache)
        self._model, self._probe = model, probe
        self._matcher: OutputMatcher | None = None

    def to_sdxl(self, embedding: Embedding, config: ConvertConfig | None = None) -> Conversion:
        """An SD1.5 embedding with a bigG half made for it; its CLIP-L half stays bit for bit.

        Raises:
            WrongUse: it is not an SD1.5 embedding, or the method needs the loaded model.
        """
        for event in self.events(embedding, config or ConvertConfig(), lambda: False):
            if isinstance(event, Conversion):
                return event
        raise AssertionError("the last event is the conversion")

    def events(
        self, embedding: Embedding, config: ConvertConfig, stop: Callable[[], bool]
    ) -> Iterator[MatchEvent | Conversion]:
        """The same with its progress; output matching takes minutes. When it is stopped the best so far counts.

        Raises:
            WrongUse: see `to_sdxl`.
        """
        embedding, findings = _usable(embedding)
        if config.method == L_ONLY:
            yield _left_only(embedding).noticed(*findings)
            return
        left = embedding.vectors[CLIP_L.key]
        method = "auto" if config.method == MATCH else config.method
        rungs = climb(left.detach().float().cpu(), self.pair, self.maps, method, worth=self.calibration.worth)
        rows = tuple(Row(method=r.method, words=r.words, confidence=self.calibration.of(r)) for r in rungs)
        vectors: Mapping[str, Tensor] = {CLIP_L.key: left, CLIP_G.key: torch.stack([rung.vector for rung in rungs])}
        if config.method == MATCH:
            for event in self._matched(vectors, config, stop):
                if isinstance(event, MatchEvent):
                    yield event
                else:
                    vectors, rows = {**vectors, **event.vectors}, _by_matching(rows, event)
                    findings.append(_told(event))
        yield self._finished(embedding, vectors, rows, config).noticed(*findings)

    def _matched(
        self, vectors: Mapping[str, Tensor], config: ConvertConfig, stop: Callable[[], bool]
    ) -> Iterator[MatchEvent | Matched]:
        if self._model is None:
            raise WrongUse("output matching needs the whole model, not its token tables alone; load it, or use auto.")
        if self._matcher is None:
            self._matcher = OutputMatcher(self._model, self.pair.ids, config.words)
        yield from self._matcher.prepare(stop)
        if stop():
            yield Matched(vectors={}, gap=1.0, steps=0)
        else:
            yield from self._matcher.match(vectors, config.steps, stop)

    def _finished(
        self, embedding: Embedding, vectors: Mapping[str, Tensor], rows: tuple[Row, ...], config: ConvertConfig
    ) -> Conversion:
        whole = noted(embedding, vectors, f"SD1.5, {config.method}")
        done = checked(Conversion(embedding=whole, rows=rows, message=sentence(rows)))
        if any(row.method in BY_THE_MAP for row in rows):
            done = done.noticed(_of_the_map(self.maps.mapping))
        return done if self._model is None else tried(done, self._model, self.pair, self._probe)


def _usable(embedding: Embedding) -> tuple[Embedding, list[Finding]]:
    """The CLIP-L half alone; a T5 part is dropped and named.

    Raises:
        WrongUse: there is nothing to convert, or the half is broken.
    """
    keys = set(embedding.vectors)
    if keys - {T5_XXL.key} != {CLIP_L.key}:
        raise WrongUse(f"{embedding.name!r} {is_for(embedding)}, not SD1.5 alone; only SD1.5 files become SDXL ones.")
    if not bool(torch.isfinite(embedding.vectors[CLIP_L.key]).all()):
        raise WrongUse(f"{embedding.name!r} holds NaN or infinite numbers; use an earlier step of its training.")
    if T5_XXL.key not in keys:
        return embedding, []
    message = "Its T5 part is dropped, as SDXL has no such encoder; the CLIP-L half is converted."
    return embedding.half((CLIP_L.key,)), [Finding(code="dropped-t5", severity="note", message=message, encoder="t5")]


def _of_the_map(mapping: LinearMap) -> Finding:
    message = (
        f"Of words that it has not seen, this checkpoint's linear map explains {max(0.0, mapping.r_squared):.0%} of "
        f"the variance in bigG; the cosine with the truth is {mapping.cosine:.2f} on average, the common part off."
    )
    return Finding(code="map", severity="note", message=message, encoder=CLIP_G.key)


def _left_only(embedding: Embedding) -> Conversion:
    rows = tuple(Row(method=L_ONLY, words=(), confidence=WORTHLESS) for _ in embedding.vectors[CLIP_L.key])
    return Conversion(
        embedding=embedding, rows=rows, message="Kept clip_l only; bigG reads the name as plain words, so expect less."
    )


def _by_matching(rows: tuple[Row, ...], event: Matched) -> tuple[Row, ...]:
    """The expectation stays that of the start: matching is not calibrated."""
    return tuple(replace(row, method=MATCH) for row in rows) if event.gap < 1 else rows


def _told(event: Matched) -> Finding:
    if event.gap >= 1:
        message = "Matching the model's outputs found nothing better than the map; that conversion stays."
    else:
        message = (
            f"In sentences that were not trained on, bigG's outputs came {1 - event.gap:.0%} nearer to what CLIP-L's "
            f"outputs ask for ({event.steps} steps)."
        )
    return Finding(code="matched", severity="note", message=message, encoder=CLIP_G.key)
