"""The fixed loss against the same sum written out, and where it must stand still."""

from __future__ import annotations

import pytest
import torch

from tests.train.making import TRIGGER, config, model, pictures
from ti_fix.train import loop
from ti_fix.train.initial import start_vectors, statistics
from ti_fix.train.preflight import plan
from ti_fix.train.validation import FixedLoss

CAPTIONS = [f"a {TRIGGER} at night", f"{TRIGGER}, red", "nothing"]


def made(captions, **changes):
    """The fixed loss of a run, and the vectors that it starts from."""
    settings, data = config(validation_timesteps=3, batch_size=2, **changes), pictures(len(captions), captions)
    loaded = model()
    about = statistics(loaded.vocabulary())
    start = start_vectors(settings, loaded.vocabulary(), loaded.family, about, lambda e: e)
    work = plan(settings, loaded, data, about)
    run = loop._Run(settings, loaded, data, work, start, about, None, lambda e: e)
    return FixedLoss(run._engine, work.validation), start


def by_hand(fixed, vectors):
    loaded, alphas = model(), model().schedule.alphas_cumprod
    with_name, without = {}, {}
    for batch in fixed.batches:
        for i, timestep in enumerate(batch.timesteps.tolist()):
            signal = alphas[timestep]
            noisy = signal.sqrt() * batch.latents[i : i + 1] + (1 - signal).sqrt() * batch.noise[i : i + 1]
            plain = batch.prompts[i].replace(f" {TRIGGER}", "").replace(TRIGGER, "")
            for prompt, given, found in ((batch.prompts[i], {TRIGGER: vectors}, with_name), (plain, {}, without)):
                told = loaded.encode_prompts([prompt], given, batch.sizes[i : i + 1])
                with torch.no_grad():
                    output = loaded.predict(noisy, torch.tensor([timestep]), told)
                found.setdefault(timestep, []).append(float((output - batch.noise[i]).square().mean()))
    assert len(with_name) == 3
    return sum(sum(with_name[t]) / sum(without[t]) for t in with_name) / 3


def test_it_is_the_mean_over_timesteps_of_what_is_left():
    fixed, start = made(CAPTIONS)
    longer = {key: 3 * block for key, block in start.items()}
    for vectors in (start, longer):
        assert fixed(vectors) == pytest.approx(by_hand(fixed, vectors), rel=1e-4)
    assert fixed(start) == fixed(start) != fixed(longer)


def test_it_is_one_where_no_caption_holds_the_name():
    fixed, start = made(["a house", "nothing"])
    assert fixed(start) == fixed({key: 9 * block for key, block in start.items()}) == 1


def test_two_runs_see_the_same_noise_whatever_their_rate():
    one, other = made(CAPTIONS)[0], made(CAPTIONS, learning_rate="1", start="random")[0]
    for a, b in zip(one.batches, other.batches, strict=True):
        assert torch.equal(a.noise, b.noise) and torch.equal(a.timesteps, b.timesteps) and a.prompts == b.prompts
