"""Conversion of words whose other half is known. ``benchmarks/convert_words.py [--quick] [--json]``

On the token tables of the small SDXL: held-out words by every rung, the confidence against the true likeness, merges of
words; and what a realignment between its text encoders and a fine-tuned copy of them recovers. Figure: Spearman's rank
correlation of confidence and true likeness on words that neither the map nor the calibration has seen (three splits).
"""

from __future__ import annotations

import copy
import random
import time
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from harness import Figure, arguments, close, run_benchmark
from ti_fix.convert.confidence import calibrate
from ti_fix.convert.config import KEEPS
from ti_fix.convert.ladder import climb
from ti_fix.convert.linear import LeftOut, Moments, fit
from ti_fix.convert.matching import Matched
from ti_fix.convert.realign import realign
from ti_fix.convert.sparse import decompose
from ti_fix.convert.tables import TablePair
from ti_fix.embedding import CLIP_G, CLIP_L, Embedding, Vocabulary
from ti_fix.hosts.standalone import StandaloneModel, parts_of_small
from ti_fix.small import captions, latents, load, scenes
from ti_fix.small.generate import Painter
from ti_fix.small.models import SmallModel

GOAL = 0.7
RATE = 2e-4
"""Of the fine-tuning of the text encoders; Adam."""

PICTURES = 6
"""A word with fewer pictures in training has rows that mean little."""


def words_of(model: SmallModel, pictures: int) -> TablePair:
    """The words with at least so many pictures."""
    tables = {key: encoder.get_input_embeddings().weight.detach() for key, encoder in model.text_encoders.items()}
    seen = model.pictures[CLIP_G.key] >= pictures
    return TablePair.of(Vocabulary(tables=tables, tokenize=lambda _: [0], trained=seen), CLIP_L.key, CLIP_G.key)


def rank_correlation(one: Tensor, other: Tensor) -> float:
    """Spearman's."""
    ranks = [values.argsort().argsort().float() for values in (one, other)]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])


def held_out(pair: TablePair, seed: int) -> dict[str, float]:
    """Mean centred cosine of each rung on a fifth of the words, and what the confidence says of it."""
    fitted, judged = pair.split(len(pair.ids) // 5, 40 + seed)
    mapping = fit(fitted)
    calibration = calibrate(fitted, LeftOut.of(mapping, Moments.of(fitted)))
    found: dict[str, float] = {"zero": 0.0}
    truth = judged.target - mapping.target_mean
    for method in ("vocabulary", "sparse", "sparse+linear", "linear", "auto"):
        rungs = climb(judged.source, fitted, mapping, method, worth=calibration.worth)
        cosines = torch.cosine_similarity(torch.stack([r.vector for r in rungs]) - mapping.target_mean, truth, dim=1)
        found[method] = float(cosines.mean())
        if method == "auto":
            told = [calibration.of(rung) for rung in rungs]
            found["rank correlation"] = rank_correlation(torch.tensor([c.expected for c in told]), cosines)
            inside = [c.low <= t <= c.high for c, t in zip(told, cosines.tolist(), strict=True)]
            found["inside the interval"] = float(np.mean(inside))
            found["expected"] = float(np.mean([c.expected for c in told]))
    return found


def merges(pair: TablePair, count: int) -> float:
    """Worst cosine of merges of 2 to 16 words, as far as the width lets them be told apart."""
    random_ = torch.Generator().manual_seed(7)
    worst = 1.0
    for k in range(count):
        words = torch.randperm(len(pair.ids), generator=random_)[: 2 + k % 3]
        weights = torch.rand(len(words), generator=random_) + 0.2
        (found,) = decompose((weights @ pair.source_rows(words))[None], pair)
        truth = weights @ pair.target_rows(words)
        worst = min(worst, float(torch.cosine_similarity(found.of(pair.target_rows(found.words)), truth, dim=0)))
    return worst


def fine_tuned(model: SmallModel, steps: int) -> SmallModel:
    """The same model after its text encoders went on learning from captions."""
    tuned = replace(model, text_encoders={k: copy.deepcopy(e) for k, e in model.text_encoders.items()})
    painter, rng = Painter(tuned), random.Random(3)
    weights = [p for e in tuned.text_encoders.values() for p in e.parameters()]
    for weight in weights:
        weight.requires_grad_(True)
    optimiser = torch.optim.Adam(weights, lr=RATE)
    torch.manual_seed(0)
    for _ in range(steps):
        described = [captions.draw(rng, 0.34) for _ in range(8)]
        pixels = torch.from_numpy(np.stack([scenes.render(d.scene) for d in described])).permute(0, 3, 1, 2).float()
        clean = latents.target(pixels / 127.5 - 1)
        times, noise = torch.randint(0, 1000, (8,)), torch.randn(clean.shape)
        alpha = painter.alphas[times][:, None, None, None]
        noisy = alpha.sqrt() * clean + (1 - alpha).sqrt() * noise
        states = painter.condition([captions.plain_caption(d, rng) for d in described])
        loss = (painter.predict(noisy, times, *states) - noise).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    for weight in weights:
        weight.requires_grad_(False)
    return tuned


def recovered(
    model: SmallModel, pair: TablePair, tuned: SmallModel, keep: str, count: int, steps: int
) -> tuple[float, float]:
    """How far two readings of embeddings near words are apart, in spreads, and the share of it that a move closes."""
    old, new = (StandaloneModel(parts_of_small(m)) for m in (model, tuned))
    random_ = torch.Generator().manual_seed(5)
    apart, shares = [], []
    for word in torch.randperm(len(pair.ids), generator=random_)[:count]:
        blocks = {CLIP_L.key: pair.source_rows(word[None]), CLIP_G.key: pair.target_rows(word[None])}
        blurred = {k: b + 0.3 * b.norm() * torch.randn(b.shape, generator=random_) / 8 for k, b in blocks.items()}
        *_, last = realign(Embedding(name="xq", vectors=blurred), old, new, steps, lambda: False, keep)
        assert isinstance(last, Matched)
        apart.append(last.apart)
        shares.append(1 - last.gap)
    return float(np.mean(apart)), float(np.mean(shares))


def main() -> None:
    """Measure and print."""
    flags = arguments(__doc__ or "")
    start, model = time.time(), load("sdxl")
    splits = 1 if flags.quick else 3
    correlations: list[float] = []
    for pictures in (PICTURES,) if flags.quick else (PICTURES, 1):
        pair = words_of(model, pictures)
        rows = [held_out(pair, seed) for seed in range(splits)]
        means = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
        print(f"{len(pair.ids)} words with {pictures} pictures or more, a fifth held out, {splits} splits")
        print("| " + " | ".join(means) + " |\n" + "|---" * len(means) + "|")
        print("| " + " | ".join(f"{value:.3f}" for value in means.values()) + " |")
        correlations = correlations or [row["rank correlation"] for row in rows]
    pair = words_of(model, PICTURES)
    print(f"merges of 2 to 4 words, worst cosine: {merges(pair, 6 if flags.quick else 60):.4f}")
    tuned = fine_tuned(model, 4 if flags.quick else 60)
    for keep in KEEPS:
        apart, closed = recovered(model, pair, tuned, keep, 2 if flags.quick else 8, 20 if flags.quick else 150)
        print(f"fine-tuned encoders, {keep}: {apart:.2f} spreads apart, the move closes {closed:.2f} of it (goal 0.80)")
    print(f"{time.time() - start:.0f} s")
    close(
        Figure(
            name="convert_words",
            figure=float(np.mean(correlations)),
            unit="rank correlation of confidence and true likeness",
            better="higher",
            goal=GOAL,
            n=splits,
        ),
        flags,
    )


if __name__ == "__main__":
    run_benchmark(main)
