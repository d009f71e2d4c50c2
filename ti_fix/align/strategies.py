"""Three ways to get an embedding and its prompt to an encoder as they were meant, measured side by side.

Injection puts the vectors in at the token table's output. Rebinding gives the host another tokenizer, which cleans the
text and knows the trigger as ids of its own, with rows added to the table. Remapping changes the vectors, once per
file, from the token table that they were made on to the one that is loaded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from ti_fix.align.change import Applied
from ti_fix.align.rebind import published_tokenizer
from ti_fix.align.text import clean_text
from ti_fix.embedding import Embedding
from ti_fix.errors import WrongUse
from ti_fix.prompt import split_prompt
from ti_fix.text_model import Change, TextEncoder, TextModel, TokenTable

Encoded: TypeAlias = "tuple[Tensor, Tensor | None]"
"""Hidden states (77, width) and pooled state, of the first chunk."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Situation:
    """What is to be encoded, and in what.

    Attributes:
        model: a living model whose encoders can be run, written and injected into.
        place: of the encoder that is looked at.
        prompt: as a user typed it, with the trigger in it.
        embedding: it is called by its name.
        remap: rows (n, width) as they were made -> rows for the loaded model; None where both are one.
    """

    model: TextModel
    place: str
    prompt: str
    embedding: Embedding
    remap: Callable[[Tensor], Tensor] | None = None

    @property
    def encoder(self) -> TextEncoder:
        return self.model.encoder(self.place)

    @property
    def rows(self) -> Tensor:
        """The embedding's vectors for this encoder, (n, width)."""
        return self.embedding.vectors[self.encoder.spec.key]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """One way.

    Attributes:
        code: stable name.
        title: for people.
        prepared: a context; what it gives encodes the prompt, on exit everything is as it was.
        once: the preparation is done once per file rather than while the model is loaded.
    """

    code: str
    title: str
    prepared: Callable[[Situation], AbstractContextManager[Callable[[], Encoded]]]
    once: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """How one strategy did.

    Attributes:
        strategy: its code.
        prepare_ms: milliseconds to prepare it: once per file, or once per loaded model.
        prompt_ms: milliseconds per prompt beyond those of the plain encoder; 0 where it took no longer.
        fidelity: mean cosine of the hidden states to what was meant.
        pooled: the same of the pooled state; None where there is none.
        reversible: the plain encoder gives the same numbers afterwards, bit for bit.
        once: as for `Strategy`.
    """

    strategy: str
    prepare_ms: float
    prompt_ms: float
    fidelity: float
    pooled: float | None
    reversible: bool
    once: bool

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "title": next(s.title for s in STRATEGIES if s.code == self.strategy)}


@contextmanager
def _injection(situation: Situation) -> Iterator[Callable[[], Encoded]]:
    tokenizer = situation.encoder.tokenizer
    assert tokenizer is not None
    yield lambda: _encode_injected(situation, situation.prompt, tokenizer.encode, situation.rows)


@contextmanager
def _remapping(situation: Situation) -> Iterator[Callable[[], Encoded]]:
    tokenizer = situation.encoder.tokenizer
    assert tokenizer is not None
    rows = situation.remap(situation.rows) if situation.remap else situation.rows
    yield lambda: _encode_injected(situation, situation.prompt, tokenizer.encode, rows)


@contextmanager
def _rebinding(situation: Situation) -> Iterator[Callable[[], Encoded]]:
    encoder = situation.encoder
    first = encoder.table.shape[0]
    spec, encode = encoder.spec, encoder.encode
    assert encode is not None and encoder.tokenizer is not None
    changes = [
        Change(part="table", place=encoder.place, make=lambda e: _longer(e.table, situation.rows)),
        Change(part="config", place=encoder.place, make=lambda e: {**e.config, "eos_token_id": spec.eos_id}),
    ]
    text_ids, name = encoder.tokenizer.encode, situation.embedding.name

    def run() -> Encoded:
        chunk = split_prompt(clean_text(situation.prompt), {name: len(situation.rows)}, text_ids)[0]
        ids = list(chunk.padded(spec.pad_id or 0))
        for splice in chunk.splices:
            ids[splice.start : splice.start + splice.rows] = range(first, first + splice.rows)
        return _first(encode(torch.tensor([ids])))

    applied = Applied.to(situation.model, changes)
    try:
        yield run
    finally:
        applied.undo()


def _longer(table: TokenTable, rows: Tensor) -> TokenTable:
    values = table.read()
    return TokenTable.of(torch.cat([values.detach(), rows.to(values)]))


def _encode_injected(situation: Situation, prompt: str, text_ids: Callable[[str], list[int]], rows: Tensor) -> Encoded:
    encoder = situation.encoder
    if encoder.encode is None or encoder.inject is None:
        raise WrongUse(f"{encoder.place} cannot be run; load the model instead of naming its file.")
    chunk = split_prompt(prompt, {situation.embedding.name: len(rows)}, text_ids)[0]
    places = {splice.start + row: rows[row] for splice in chunk.splices for row in range(splice.rows)}
    with encoder.inject(places):
        return _first(encoder.encode(torch.tensor([chunk.padded(encoder.spec.pad_id or 0)])))


def _first(encoded: tuple[Tensor, Tensor | None]) -> Encoded:
    hidden, pooled = encoded
    return hidden[0], None if pooled is None else pooled[0]


PROBE = "a photo of tifixprobe on the grass"
PROBE_WORDS = "small red cat"


def probe(model: TextModel, place: str) -> Situation:
    """A situation whose right outcome is known: an embedding with the rows of three words of the model itself."""
    encoder = model.encoder(place)
    tokenizer = encoder.tokenizer or published_tokenizer(encoder.spec)
    rows = encoder.table.read()[tokenizer.encode(PROBE_WORDS)].detach().float().cpu()
    living = replace(
        model, encoders=tuple(replace(e, tokenizer=tokenizer) if e is encoder else e for e in model.encoders)
    )
    embedding = Embedding(name="tifixprobe", vectors={encoder.spec.key: rows})
    return Situation(model=living, place=place, prompt=PROBE, embedding=embedding)


@torch.no_grad()
def measure(model: TextModel) -> dict[str, list[Measured]]:
    """Every strategy on every encoder of a living model, by `probe`; place -> how each did.

    What is meant is what the three words themselves give in the embedding's place.
    """
    found = {}
    for encoder in model.encoders:
        if encoder.encode is None or encoder.inject is None or encoder.spec.bos_id is None:
            continue
        situation = probe(model, encoder.place)
        ids = _plain_ids(situation.encoder, PROBE.replace("tifixprobe", PROBE_WORDS))
        found[encoder.place] = compare(situation, _first(encoder.encode(torch.tensor([ids]))))
    return found


STRATEGIES = (
    Strategy(code="injection", title="Vectors put in behind the token table", prepared=_injection),
    Strategy(code="rebinding", title="Another tokenizer and rows of its own", prepared=_rebinding),
    Strategy(code="remapping", title="Vectors mapped to the loaded table", prepared=_remapping, once=True),
)


@torch.no_grad()
def compare(situation: Situation, meant: Encoded | None = None, repeats: int = 5) -> list[Measured]:
    """Measure every strategy on the spot.

    Args:
        situation: prompt, embedding and encoder.
        meant: what should come out; by default what injection gives for the cleaned prompt.
        repeats: encodings of each whose median difference in time counts.
    """
    encoder = situation.encoder
    assert encoder.tokenizer is not None and encoder.encode is not None
    encode, probe = encoder.encode, torch.tensor([_plain_ids(encoder, situation.prompt)])
    if meant is None:
        meant = _encode_injected(situation, clean_text(situation.prompt), encoder.tokenizer.encode, situation.rows)
    untouched = encode(probe)
    found = []
    for strategy in STRATEGIES:
        with ExitStack() as stack:
            started = time.perf_counter()
            run = stack.enter_context(strategy.prepared(situation))
            prepare_ms = 1000 * (time.perf_counter() - started)
            result = run()
            prompt_ms = _median_more_ms(run, lambda: encode(probe), repeats)
        again = encode(probe)
        found.append(
            Measured(
                strategy=strategy.code,
                prepare_ms=prepare_ms,
                prompt_ms=prompt_ms,
                fidelity=float(cosine_similarity(result[0], meant[0], dim=-1).mean()),
                pooled=None
                if result[1] is None or meant[1] is None
                else float(cosine_similarity(result[1], meant[1], dim=-1)),
                reversible=torch.equal(again[0], untouched[0]),
                once=strategy.once,
            )
        )
    return found


def _plain_ids(encoder: TextEncoder, prompt: str) -> list[int]:
    assert encoder.tokenizer is not None
    (first, *_) = split_prompt(prompt, {}, encoder.tokenizer.encode)
    return list(first.padded(encoder.spec.pad_id or 0))


def _median_more_ms(run: Callable[[], object], plain: Callable[[], object], repeats: int) -> float:
    """Milliseconds that one takes longer than the other; both take turns, as other work slows a computer by moments."""
    return max(0.0, median(_ms(run) - _ms(plain) for _ in range(repeats)))


def _ms(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return 1000 * (time.perf_counter() - started)
