"""Probes against encoders whose manners are known, and against the tiny model's own."""

from __future__ import annotations

import pytest
import torch

from ti_fix.evaluate.probes import conditioning_change, probe

WIDTH = 16
TABLE: dict[str, torch.Tensor] = {}


def vector(name: str) -> torch.Tensor:
    seed = sum(ord(c) * 31**i for i, c in enumerate(name)) % 2**31
    return TABLE.setdefault(name, torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed)))


def encode(loud: float):
    """A state is its word (as loud as asked), its place and a little of what came before, in a layer norm."""

    def states(texts):
        rows = torch.zeros(len(texts), 77, WIDTH)
        for row, text in enumerate(texts):
            words = ["<start>", *text.split(), "<end>"] + ["<end>"] * 77
            before = torch.zeros(WIDTH)
            for place, word in enumerate(words[:77]):
                scale = loud if word == "myword" else 1.0
                state = scale * vector(word) + vector(f"place{place}") + 0.3 * before
                rows[row, place] = torch.nn.functional.layer_norm(state, (WIDTH,))
                before = 0.9 * before + 0.1 * rows[row, place]
        return rows

    return states


def test_a_loud_vector_loses_its_place_and_its_surroundings():
    quiet, loud = probe(encode(1.0), "myword"), probe(encode(500.0), "myword")
    assert quiet.order > 0.1 and loud.order < quiet.order / 100
    assert loud.context < quiet.context / 10


def test_an_encoder_without_places_moves_nothing():
    same = lambda texts: torch.ones(len(texts), 77, 4)  # noqa: E731
    found = probe(same, "x")
    assert (found.order, found.context, found.later) == pytest.approx((0, 0, 0), abs=1e-6)


def test_the_change_of_a_conditioning():
    assert conditioning_change(encode(1), "a b", "a b") == 0
    assert conditioning_change(encode(1), "a c", "a b") > 0
