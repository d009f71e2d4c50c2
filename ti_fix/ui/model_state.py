"""What the Model page and the API say of the loaded model, as plain values."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ti_fix.align import align
from ti_fix.align.rebind import published_model
from ti_fix.embedding import MAX_VECTORS, SDXL, Embedding
from ti_fix.errors import WrongUse
from ti_fix.jobs import Progress
from ti_fix.text_model import TextModel
from ti_fix.ui.desk import Desk

if TYPE_CHECKING:  # the WebUI waits for this module at its start; what the buttons need is imported when one is pressed
    from ti_fix.align.tokens import TokenView

MAX_PROMPT = 20_000
"""Characters of a prompt that is taken apart."""

MAX_STEPS = 500

NO_MODEL = "No model is loaded yet. Choose a checkpoint and make a picture, then look again."


def environment(desk: Desk) -> list[tuple[str, str]]:
    """Names and values of what the model runs on."""
    return [*desk.host.environment()]


def report(desk: Desk, *, full: bool = False) -> dict[str, Any] | None:
    """What `align` says of the loaded model; None while none is loaded.

    Args:
        desk: knows the host.
        full: with the checks that read whole tables and run the encoders.
    """
    model = desk.host.text_model()
    if model is None:
        return None
    started = time.perf_counter()
    found = desk.host.run(lambda: align(model)) if full else align(model, quick=True)
    milliseconds = 1000 * (time.perf_counter() - started)
    seen = desk.host.seen_at_load()
    told = found.as_dict()
    return {
        **told,
        "checks": _with_mended(told["checks"], seen),
        "full": full,
        "milliseconds": round(milliseconds, 1),
        "at_load": {"milliseconds": round(seen.milliseconds, 1), "lines": list(seen.lines)} if seen else None,
    }


def _with_mended(checks: list[dict[str, Any]], seen: Any) -> list[dict[str, Any]]:
    """The checks; those that were repaired at load as they were found then, marked ``mended``."""
    before = {(o.code, o.place or None): {**o.as_dict(), "mended": True} for o in seen.mended} if seen else {}
    return [*before.values(), *(c for c in checks if (c["code"], c["place"]) not in before)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thorough:
    """The last event of a thorough look.

    Attributes:
        report: see `report`.
        strategies: see `strategies`; empty where it was stopped before.
    """

    report: dict[str, Any]
    strategies: dict[str, list[dict[str, Any]]]


def thorough_events(desk: Desk, stop: threading.Event) -> Iterator[Progress | Thorough]:
    """All checks, then the strategies side by side.

    Raises:
        WrongUse: no model is loaded.
    """
    yield Progress(done=0, total=2, note="tables, tokenizers, encoders")
    found = report(desk, full=True)
    if found is None:
        raise WrongUse(NO_MODEL)
    yield Progress(done=1, total=2, note="ways to put an embedding in")
    measured = {} if stop.is_set() else strategies(desk)
    yield Thorough(report=found, strategies=measured)


def strategies(desk: Desk) -> dict[str, list[dict[str, Any]]]:
    """Encoder key -> how each way to put an embedding in did.

    Raises:
        WrongUse: no model is loaded.
    """
    from ti_fix.align.strategies import measure

    model = desk.host.text_model()
    if model is None:
        raise WrongUse(NO_MODEL)
    keys = {e.place: e.spec.key for e in model.encoders}
    found = desk.host.run(lambda: measure(model))
    return {keys[place]: [m.as_dict() for m in each] for place, each in found.items()}


def tokens(desk: Desk, prompt: str, steps: int) -> TokenView:
    """A prompt taken apart, for the loaded model, or for SDXL's published tokenizers.

    Raises:
        WrongUse: the prompt is longer than is taken apart here, or an embedding than one chunk.
    """
    from ti_fix.align.tokens import view

    if len(prompt) > MAX_PROMPT:
        raise WrongUse(f"The prompt has {len(prompt):,} characters; up to {MAX_PROMPT:,} are taken apart here.")
    model = desk.host.text_model() or published_model(desk.host.family() or SDXL)
    return view(model, prompt, _embeddings(desk, model), steps=min(max(1, steps), MAX_STEPS))


def _embeddings(desk: Desk, model: TextModel) -> dict[str, Embedding]:
    """Trigger -> embedding: the model's own extra rows, and every usable file; only how many rows counts here."""
    found = {each.name: each for each in desk.host.extra_rows()}
    keys = [e.spec.key for e in model.encoders]
    for entry in desk.library.refreshed():
        rows = {key: shape[0] for key, shape in (entry.about["encoders"] or {}).items()}
        if entry.verdict == "convert" and rows:  # the half that it lacks is made when it is used
            rows = dict.fromkeys(keys, max(rows.values()))
        if entry.verdict == "reject" or not set(keys) & set(rows) or max(rows.values()) > MAX_VECTORS:
            continue
        shaped = Embedding(name=entry.trigger, vectors={key: torch.zeros(count, 1) for key, count in rows.items()})
        for name in (entry.trigger, *entry.judged.aliases):
            found.setdefault(name, shaped)
    return found
