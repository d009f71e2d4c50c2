"""Stand-ins for the two WebUIs with ti_fix hooked in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.hosts import standin
from tests.hosts.standin_training import TrainingStandIn, started
from ti_fix.align import CHECKS, AtLoad, named_rows
from ti_fix.embedding import Embedding, Vocabulary
from ti_fix.repair import folder

QUICK = tuple(check for check in CHECKS if not check.costly)
"""What does not read the stand-ins' large tables."""


def first_rows(embedding: Embedding, vocabulary: Vocabulary) -> Embedding:
    """A quick stand-in for the conversion: the other table's first rows."""
    (missing,) = {"clip_l", "clip_g"} - set(embedding.vectors)
    rows = vocabulary.tables[missing][: embedding.num_vectors].clone()
    return embedding.with_vectors({**embedding.vectors, missing: rows})


Start = Callable[..., tuple[standin.StandIn, Any]]


@pytest.fixture(params=["a1111", "forge"])
def kind(request) -> str:
    """Both kinds of WebUI, one after the other."""
    return request.param


@pytest.fixture
def start(tmp_path, monkeypatch) -> Start:
    """A function that starts a stand-in and, unless told otherwise, hooks ti_fix into it."""
    monkeypatch.setattr(folder, "REST", 0)  # look at the folder each time

    def begin(kind: str, *, hooked: bool = True) -> tuple[standin.StandIn, Any]:
        webui = standin.StandIn(kind, tmp_path / "webui")
        module = standin.install(webui, monkeypatch)
        from ti_fix.hosts.model_hook import Watch

        host = module.install(first_rows, watch=Watch(judge=AtLoad(QUICK), name=named_rows)) if hooked else None
        return webui, host

    return begin


@pytest.fixture
def begin(tmp_path, monkeypatch) -> Callable[..., tuple[TrainingStandIn, Any]]:
    """A function that starts a stand-in: (the WebUI, our host in it)."""

    def start(kind: str, family: str = "sdxl") -> tuple[TrainingStandIn, Any]:
        return started(kind, family, tmp_path, monkeypatch)

    return start


@pytest.fixture(params=["a1111", "forge"])
def both(request, begin) -> tuple[TrainingStandIn, Any]:
    """A stand-in of each kind with SDXL loaded."""
    webui, host = begin(request.param)
    host.model()
    return webui, host
