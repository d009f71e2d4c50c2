"""What the look at each loaded model costs: tokenizers and text encoders of SDXL in their real widths.

The objects are built like the two WebUIs' (`tests/hosts/encoders_of_webuis.py`), with whole token tables. The first
look at a file reads them; later ones are what a user waits for at each switch, and the slowest of their medians is the
figure. A row that is not finite is repaired in a copy of the whole table, each time, which is printed beside it. By the
clock, as a user waits by it; the load of the machine is printed. In a WebUI itself: `python3 run.py check-host --webui
PATH --parts align`.

    .venv/bin/python benchmarks/model_load.py [--quick] [--json]
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness import Figure, arguments, close
from tests.hosts import encoders_of_webuis as webuis
from ti_fix.align import CHECKS, AtLoad
from ti_fix.hosts.text_models import text_model_of

GOAL = 100.0
"""Milliseconds."""


def sound(_: Any) -> None:
    """Nothing."""


def rounded(embeddings: Any) -> None:
    """Position ids as merges in half precision leave them."""
    embeddings.position_ids = torch.tensor([[0, *range(76)]])


def not_finite(embeddings: Any) -> None:
    """NaN in one row of the token table."""
    table = embeddings.token_embedding.wrapped
    with torch.no_grad():
        table.weight[2368, 1] = float("nan")


def looks(model: Any, damage: Callable[[Any], None], count: int) -> tuple[float, list[float]]:
    """Milliseconds of the first look at a file, and of those at each later load."""
    module = webuis.transformer(webuis.CLIP_L)
    embeddings = getattr(module, "text_model", module).embeddings
    weight = embeddings.token_embedding.wrapped.weight
    before = embeddings.position_ids, weight[2368].detach().clone()
    judge, times = AtLoad(CHECKS), []
    for _ in range(count + 1):
        embeddings.token_embedding.wrapped.weight = weight
        damage(embeddings)
        times.append(judge.loaded(text_model_of(model), model, stamp="a file").milliseconds)
        judge.give_back()
        embeddings.position_ids = before[0]
        with torch.no_grad():
            weight[2368] = before[1]
    return times[0], times[1:]


def main() -> None:
    flags = arguments(__doc__ or "")
    count = 5 if flags.quick else 30
    medians = []
    with pytest.MonkeyPatch.context() as patch:
        for name, model in (("AUTOMATIC1111", webuis.a1111_sdxl(patch)), ("Forge", webuis.forge_sdxl())):
            for damage in (sound, rounded, not_finite):
                first, later = looks(model, damage, count)
                median = statistics.median(later)
                medians += [median] if damage is not not_finite else []
                print(
                    f"{name}, {damage.__name__.replace('_', ' ')}: first {first:.0f} ms, then median {median:.1f} ms, "
                    f"worst {max(later):.0f} ms of {count}"
                )
    if hasattr(os, "getloadavg"):
        print(f"load average: {os.getloadavg()[0]:.1f}")
    figure = Figure(name="model_load", figure=max(medians), unit="ms", better="lower", goal=GOAL, n=count)
    close(figure, flags)


if __name__ == "__main__":
    main()
