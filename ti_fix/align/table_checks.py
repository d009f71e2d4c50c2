"""Checks of the token tables: which encoder they belong to, how many rows, what stands in them, who shares them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from ti_fix.align.check import Check, Outcome
from ti_fix.align.rebind import rebinding
from ti_fix.embedding import BY_WIDTH, VOCABULARY_SIZE
from ti_fix.text_model import Change, TextEncoder, TextModel, TokenTable


def _encoders(check: Check, model: TextModel) -> Iterator[Outcome]:
    """Whether each place holds the encoder that belongs there; small models with widths of their own pass."""
    for encoder in model.encoders:
        width, spec = encoder.table.shape[1], encoder.spec
        actual = BY_WIDTH.get(width)
        expected = f"{spec.title}, {spec.width} wide"
        if actual is None or actual == spec:
            found = f"{width} wide, a small model of its own" if actual is None else expected
            yield check.good(expected, found, encoder)
            continue
        holders = [e for e in model.encoders if e.spec == actual]
        swapped = bool(holders) and BY_WIDTH.get(holders[0].table.shape[1]) == spec
        message = f"In the place of {spec.title} lies {actual.title} ({width} wide). "
        message += (
            "The two text encoders are swapped; each is to be used as what it is."
            if swapped
            else "It is the wrong part, or the model is of another family; load the right one."
        )
        change = Change(part="spec", place=encoder.place, make=lambda e: BY_WIDTH[e.table.shape[1]])
        yield check.bad(
            "error", expected, f"{actual.title}, {width} wide", message, encoder, [change] if swapped else []
        )


EXPECTED_ROWS = f"{VOCABULARY_SIZE} rows"


def _rows(check: Check, model: TextModel) -> Iterator[Outcome]:
    """Whether tables, configs and tokenizers count the same tokens, and CLIP's; encoders without CLIP's tokens pass."""
    for encoder in model.encoders:
        if encoder.spec.bos_id is not None:
            yield _rows_of(check, encoder)


def _rows_of(check: Check, encoder: TextEncoder) -> Outcome:
    rows = encoder.table.shape[0]
    found = f"{rows} rows" + (f", {len(encoder.added)} added tokens" if encoder.added else "")
    unknown = [token for token, id_ in encoder.added.items() if id_ >= max(rows, VOCABULARY_SIZE)]
    if encoder.config.get("vocab_size", rows) != rows:
        return _miscounted(check, encoder, found)
    if encoder.cut:
        return _cut(check, encoder)
    if rows < VOCABULARY_SIZE:
        return _short(check, encoder, found)
    if unknown:
        return _beyond(check, encoder, found, unknown)
    if rows == VOCABULARY_SIZE:
        return check.good(EXPECTED_ROWS, found, encoder)
    return _longer(check, encoder, found)


def _miscounted(check: Check, encoder: TextEncoder, found: str) -> Outcome:
    claimed, rows = encoder.config["vocab_size"], encoder.table.shape[0]
    message = (
        f"The config of {encoder.spec.title} names {claimed} tokens, the table has {rows} rows; the model does not "
        "load (size mismatch). The config is to be corrected."
    )
    changes = [*(trimming(encoder) if rows > VOCABULARY_SIZE else []), _counting(encoder)]
    return check.bad("error", EXPECTED_ROWS, f"{found}, {claimed} in the config", message, encoder, changes)


def _cut(check: Check, encoder: TextEncoder) -> Outcome:
    message = (
        f"The vocabulary was extended: {encoder.cut} rows beyond the {VOCABULARY_SIZE} of CLIP, which this WebUI "
        "refuses (size mismatch). It was given the others; the extra rows are embeddings."
    )
    found = f"{encoder.table.shape[0] + encoder.cut} rows"
    return replace(check.bad("warning", EXPECTED_ROWS, found, message, encoder), repaired=EXPECTED_ROWS)


def _short(check: Check, encoder: TextEncoder, found: str) -> Outcome:
    message = (
        f"The token table has {encoder.table.shape[0]} rows; ids up to {VOCABULARY_SIZE - 1} will fail (index out of "
        "range). It is cut off or belongs to another tokenizer; load the original model."
    )
    return check.bad("error", EXPECTED_ROWS, found, message, encoder)


def _beyond(check: Check, encoder: TextEncoder, found: str, unknown: Sequence[str]) -> Outcome:
    names, highest, rows = ", ".join(map(repr, unknown[:4])), max(encoder.added.values()), encoder.table.shape[0]
    message = (
        f"The tokenizer knows added tokens ({names}) up to id {highest}, but the table has {rows} rows: a prompt with "
        "one of them fails (index out of range). The published tokenizer is to be used."
    )
    return check.bad("error", EXPECTED_ROWS, found, message, encoder, [rebinding(encoder)])


def _longer(check: Check, encoder: TextEncoder, found: str) -> Outcome:
    extended = _extended(encoder)
    if encoder.write:
        return check.bad("note", EXPECTED_ROWS, found, f"{extended} It is loaded here and works.", encoder)
    message = (
        f"{extended} WebUIs refuse such a checkpoint (size mismatch). The table is to be cut to its vocabulary; the "
        "extra rows go on as embeddings."
    )
    return check.bad("warning", EXPECTED_ROWS, found, message, encoder, trimming(encoder))


def _extended(encoder: TextEncoder) -> str:
    extra = encoder.table.shape[0] - VOCABULARY_SIZE
    names = ", ".join(repr(t) for t, i in encoder.added.items() if i >= VOCABULARY_SIZE)
    known = f" (added tokens {names})" if names else ""
    return f"The vocabulary was extended: {extra} rows beyond the {VOCABULARY_SIZE} of CLIP{known}."


def trimming(encoder: TextEncoder) -> list[Change]:
    """The changes that cut a table to CLIP's vocabulary and take the added tokens out of the tokenizer."""
    changes = [Change(part="table", place=encoder.place, make=lambda e: _first_rows(e.table))]
    changes += [_counting(encoder)] if "vocab_size" in encoder.config else []
    return [*changes, rebinding(encoder)] if encoder.tokenizer else changes


def _counting(encoder: TextEncoder) -> Change:
    """The change that makes the config name as many tokens as the table has rows."""
    return Change(part="config", place=encoder.place, make=lambda e: {**e.config, "vocab_size": e.table.shape[0]})


def _first_rows(table: TokenTable) -> TokenTable:
    rows, width = table.shape
    if rows <= VOCABULARY_SIZE:
        return table
    return TokenTable(
        shape=(VOCABULARY_SIZE, width), dtype=table.dtype, read=lambda: table.read()[:VOCABULARY_SIZE], span=table.span
    )


def _values(check: Check, model: TextModel) -> Iterator[Outcome]:
    expected = "finite rows, none zero, none twice"
    for encoder in model.encoders:
        table = encoder.table.read()
        ill, zero = _suspects(table)
        title = encoder.spec.title
        if len(ill):
            message = (
                f"{title}: {_listed(ill)} not finite (NaN or infinite); prompts with these tokens give black pictures. "
                "The rows are to be set to the mean of the others: the pictures come back, the meaning of these tokens "
                "does not; the original model has it."
            )
            make = lru_cache(maxsize=1)(lambda e: _with_mean_rows(e.table))  # asked for several times, takes long
            change = Change(part="table", place=encoder.place, make=make)
            yield check.bad("error", expected, f"{_listed(ill)} not finite", message, encoder, [change])
            continue
        twice = _repeated(table) - max(0, len(zero) - 1)
        found = _lengths_of(table)
        if len(zero):
            message = f"{title}: {_listed(zero)} zero; these tokens say nothing. Load the original model."
            yield check.bad("warning", expected, f"{_listed(zero)} zero", message, encoder)
        elif twice:
            message = (
                f"{title}: {twice} rows of the token table equal another row; these words mean the same to the "
                "encoder. The table was filled up or copied over."
            )
            yield check.bad("warning", expected, f"{twice} rows twice; {found}", message, encoder)
        else:
            yield check.good(expected, found, encoder)


def _suspects(table: Tensor) -> tuple[Tensor, Tensor]:
    """Rows that are not finite, and rows that are zero.

    One product with a random vector passes over the whole table in a tenth of the time of `isfinite`; only the rows
    where it gives nothing finite, or nothing, are looked at as they are.
    """
    values = table if table.dtype in (torch.float16, torch.bfloat16, torch.float32) else table.float()
    signs = torch.randn(values.shape[1], generator=torch.Generator().manual_seed(0)).to(values)
    product = values.detach() @ signs
    odd = (~torch.isfinite(product)).nonzero().flatten()
    still = (product == 0).nonzero().flatten()
    return odd[~torch.isfinite(values[odd]).all(dim=1)], still[~values[still].any(dim=1)]


def _lengths_of(table: Tensor) -> str:
    """Mean length of the rows and its spread, from four thousand words."""
    lengths = torch.linalg.vector_norm(table[512:4608].float(), dim=1)
    return f"length {float(lengths.mean()):.3f} ± {float(lengths.std()):.3f}"


def _listed(rows: Tensor) -> str:
    shown = ", ".join(map(str, rows[:5].tolist()))
    more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
    return f"row{'s' if len(rows) > 1 else ''} {shown}{more} {'are' if len(rows) > 1 else 'is'}"


def _with_mean_rows(table: TokenTable) -> TokenTable:
    values = table.read().detach()
    ill, _ = _suspects(values)
    if not len(ill):
        return table
    mended = values.clone()
    mended[ill] = 0
    mended[ill] = (mended.sum(dim=0, dtype=torch.float32) / (len(values) - len(ill))).to(values.dtype)
    return TokenTable.of(mended)


def _repeated(table: Tensor) -> int:
    """How many rows equal an earlier one, bit for bit."""
    whole = table.contiguous()
    step = max(1, 8 // whole.itemsize)
    if whole.shape[1] < step:
        return 0
    # the first eight bytes tell nearly all rows apart; only rows that share them are compared as a whole
    heads = whole[:, :step].contiguous().view(torch.int64).flatten()
    _, group, count = torch.unique(heads, return_inverse=True, return_counts=True)
    alike = whole[(count > 1)[group]]
    return len(alike) - len(torch.unique(_row_hashes(alike))) if len(alike) else 0


def _row_hashes(rows: Tensor) -> Tensor:
    """64-bit hash of the bits of each row: a sum of its numbers' bits times random odd ones, modulo 2 to the 64th."""
    bits = rows.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[rows.itemsize])
    random = torch.Generator().manual_seed(0)
    factors = torch.randint(-(2**62), 2**62, (bits.shape[1],), generator=random).mul(2).add(1).to(bits.device)
    parts = (bits[start : start + 4096] for start in range(0, len(bits), 4096))
    return torch.cat([(part.long() * factors).sum(dim=1) for part in parts])


def _apart(check: Check, model: TextModel) -> Iterator[Outcome]:
    spans = [(e, e.table.span) for e in model.encoders if e.table.span]
    if len(spans) < 2:
        return
    expected = "a memory of its own for each table"
    for i, (encoder, span) in enumerate(spans):
        shared = next((e for e, other in spans[:i] if other and span and _overlap(span, other)), None)
        if shared:
            message = (
                f"The token tables of {encoder.spec.title} and {shared.spec.title} lie in the same memory; a change of "
                "one changes the other. Each is to have its own."
            )
            change = Change(part="table", place=encoder.place, make=lambda e: TokenTable.of(e.table.read().clone()))
            found = f"shared with {shared.spec.title}"
            yield check.bad("error", expected, found, message, encoder, [change])
        else:
            yield check.good(expected, expected, encoder)


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


TABLE_CHECKS = (
    Check(code="encoders", title="The encoders are in their places", run=_encoders, first=True),
    Check(code="table-rows", title="Rows of the token table", run=_rows),
    Check(code="table-values", title="Numbers in the token table", run=_values, costly=True, once=True),
    Check(code="shared-tables", title="No table shares memory with another", run=_apart),
)
