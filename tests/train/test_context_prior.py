"""The prior on the other words: which places it reads, what it costs, and that it holds them."""

from __future__ import annotations

import pytest
import torch

from tests.train.making import TRIGGER, config, done, model, pictures, run
from ti_fix.protocols import Sizes
from ti_fix.train.context_prior import ContextPrior

SIZE = Sizes(original=(64, 64), target=(64, 64))
PROMPT = f"a photo of {TRIGGER} on a beach"


@torch.no_grad()
def encode(prompts, vectors):
    return model().encode_prompts(prompts, {TRIGGER: vectors}, [SIZE] * len(prompts)).context


@pytest.fixture
def start():
    vocabulary = model().vocabulary()
    ids = vocabulary.tokenize("red tower")
    return {key: table[ids].clone() for key, table in vocabulary.tables.items()}


@pytest.fixture
def prior(start):
    return ContextPrior(encode, model().vocabulary().tokenize, TRIGGER, start)


def test_it_reads_the_places_behind_the_vectors(prior):
    # start token, a photo of (1 to 3), two vectors (4, 5), on a beach (6 to 8)
    assert prior.places(PROMPT) == [6, 7, 8]
    assert prior.places(f"{TRIGGER} and {TRIGGER}, red") == [3, 6, 7]
    for prompt in (f"({TRIGGER}:1.2) red", f"{TRIGGER} BREAK red", "no name here", "sea " * 80 + TRIGGER):
        assert prior.places(prompt) == []


def test_it_is_zero_for_the_start_and_grows_with_the_distance(prior, start):
    values = []
    for scale in (1.0, 2.0, 20.0):
        vectors = {key: scale * block for key, block in start.items()}
        values.append(float(prior([PROMPT, TRIGGER], encode([PROMPT, TRIGGER], vectors))))
    assert values[0] == pytest.approx(0, abs=1e-6) and values[0] < values[1] < values[2]


def test_by_hand(prior, start):
    vectors = {key: block + 0.1 for key, block in start.items()}
    now, before = encode([PROMPT], vectors)[0], encode([PROMPT], start)[0]
    cosine = [float(torch.dot(now[i], before[i]) / now[i].norm() / before[i].norm()) for i in (6, 7, 8)]
    assert float(prior([PROMPT], now[None])) == pytest.approx(1 - sum(cosine) / 3, abs=1e-6)


def test_a_run_with_it_stays_nearer(prior):
    data, settings = pictures(1, [PROMPT]), {"steps": 8, "learning_rate": "5e-2", "batch_size": 1}
    drift = [
        float(
            prior(
                [PROMPT], encode([PROMPT], done(run(config(context_prior=weight, **settings), data)).embedding.vectors)
            )
        )
        for weight in (0.0, 50.0)
    ]
    assert drift[1] < 0.5 * drift[0]
