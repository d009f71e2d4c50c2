"""Between checkpoints: what can vectors undo of a fine-tuning? ``benchmarks/realign.py [--quick] [--json]``

The text encoders of the small SDXL are trained on from captions; copies between the old and the new weights are
fine-tunings of smaller strengths. For each: how far the weights moved; how far the readings of words are apart, in
spreads of the outputs over words, and how much of that (squared) is the same for every word; what the move closes of
the gap of embeddings near words, in sentences that only judge; and what any vectors could close: the least-squares
solution of the linearised encoders, in the very sentences that it is fitted to. Intervals are 95 % bootstrap over
embeddings. Figure: the share that the move closes with "outputs" at the full strength.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from convert_words import PICTURES, words_of
from harness import Figure, arguments, close, run_benchmark
from ti_fix.convert.config import KEEPS
from ti_fix.convert.matching import Matched, Vectors, read_outputs, sentences
from ti_fix.convert.realign import realign
from ti_fix.convert.tables import TablePair
from ti_fix.embedding import CLIP_G, CLIP_L, Embedding
from ti_fix.hosts.standalone import StandaloneModel, parts_of_small
from ti_fix.small import captions, latents, load, scenes
from ti_fix.small.generate import Painter
from ti_fix.small.models import SmallModel

GOAL = 0.80
RATE = 2e-4
"""Of the fine-tuning; Adam."""

STEP = 1e-3
"""Of the central differences, in lengths of a row."""

DAMPING = 1e-4
"""Of the least squares, in mean squares of the derivatives."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Sizes of a measurement."""

    tuning: int = 60
    strengths: tuple[float, ...] = (0.1, 0.3, 1.0)
    words: int = 64
    embeddings: int = 8
    bound: int = 3  # embeddings for which the best vectors are sought
    steps: int = 150


FULL = Plan()
QUICK = Plan(tuning=4, strengths=(1.0,), words=8, embeddings=2, bound=1, steps=10)


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


def between(model: SmallModel, tuned: SmallModel, strength: float) -> SmallModel:
    """Text encoders that went so much of the way."""
    encoders = {key: copy.deepcopy(encoder) for key, encoder in model.text_encoders.items()}
    with torch.no_grad():
        for key, encoder in encoders.items():
            for mine, theirs in zip(encoder.parameters(), tuned.text_encoders[key].parameters(), strict=True):
                mine.lerp_(theirs, strength)
    return replace(model, text_encoders=encoders)


def weight_change(model: SmallModel, tuned: SmallModel) -> float:
    """Mean relative change of the encoders' inner matrices."""
    changes = [
        float((one - other).norm() / one.norm())
        for key, encoder in model.text_encoders.items()
        for (name, one), other in zip(encoder.named_parameters(), tuned.text_encoders[key].parameters(), strict=True)
        if one.ndim == 2 and "embedding" not in name
    ]
    return float(np.mean(changes))


def vectors_of(pair: TablePair, word: Tensor) -> dict[str, Tensor]:
    """A word's rows as an embedding of one vector."""
    return {CLIP_L.key: pair.source_rows(word[None]), CLIP_G.key: pair.target_rows(word[None])}


@torch.no_grad()
def read(model: StandaloneModel, vectors: Vectors, judge: bool = True) -> dict[str, Tensor]:
    """What the encoders say in the sentences that judge, or in those that train."""
    return dict(read_outputs(model, sentences(judge), vectors, whole=True))


def gap_of_words(old: StandaloneModel, new: StandaloneModel, pair: TablePair, words: Tensor) -> tuple[float, float]:
    """How far words' readings are apart, in spreads over words, and the share of it that all words have in common."""
    said = [[read(model, vectors_of(pair, word)) for word in words] for model in (old, new)]
    apart, common = [], []
    for key in said[0][0]:
        before, after = (torch.stack([each[key] for each in model]) for model in said)
        spread = before.var(0).mean()
        apart.append(float((after - before).square().mean() / spread))
        common.append(float((after - before).mean(0).square().mean() / spread))
    return float(np.mean(apart)) ** 0.5, float(np.sum(common) / np.sum(apart))


def embeddings_of(pair: TablePair, words: Tensor) -> Iterator[dict[str, Tensor]]:
    """Words with noise of 0.3 lengths."""
    noise = torch.Generator().manual_seed(6)
    for word in words:
        yield {
            key: row + 0.3 * row.norm() * torch.randn(row.shape, generator=noise) / row.numel() ** 0.5
            for key, row in vectors_of(pair, word).items()
        }


def closed(old: StandaloneModel, new: StandaloneModel, vectors: Vectors, keep: str, steps: int) -> tuple[float, float]:
    """How far two readings are apart, and the share of it that the move closes."""
    *_, last = realign(Embedding(name="xq", vectors=vectors), old, new, steps, lambda: False, keep)
    assert isinstance(last, Matched)
    return last.apart, 1 - last.gap


def closable(old: StandaloneModel, new: StandaloneModel, vectors: Vectors) -> float:
    """The share of the gap of the outputs that the best vectors close in the very sentences that they are fitted to."""
    wanted = read(old, vectors, judge=False)
    scale = {key: 1 / block.var(0).mean().sqrt() for key, block in wanted.items()}

    def flat(given: Vectors) -> Tensor:
        return torch.cat([(block * scale[key]).flatten() for key, block in read(new, given, judge=False).items()])

    gap = torch.cat([(block * scale[key]).flatten() for key, block in wanted.items()]) - flat(vectors)
    columns = []
    for key, row in vectors.items():
        step = STEP * row.norm()
        for unit in torch.eye(row.numel()):
            up, down = (flat({**vectors, key: row + sign * step * unit.view_as(row)}) for sign in (1, -1))
            columns.append((up - down) / (2 * STEP))
    slopes = torch.stack(columns, dim=1).double()
    square = slopes.T @ slopes
    square += DAMPING * square.diagonal().mean() * torch.eye(len(square)).double()
    left = gap.double() - slopes @ torch.linalg.solve(square, slopes.T @ gap.double())
    return 1 - float(left.norm() / gap.norm())


def spoken(values: list[float]) -> str:
    """Mean and interval."""
    chance = np.random.default_rng(0)
    means = np.array(values)[chance.integers(0, len(values), (2000, len(values)))].mean(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return f"{np.mean(values):.2f} ({low:.2f} to {high:.2f})"


def measure(plan: Plan) -> float:
    """Print a line for each strength; the figure."""
    model = load("sdxl")
    pair, tuned = words_of(model, PICTURES), fine_tuned(model, plan.tuning)
    chosen = torch.randperm(len(pair.ids), generator=torch.Generator().manual_seed(5))
    words, others = chosen[: plan.embeddings], chosen[plan.embeddings : plan.embeddings + plan.words]
    figure = 0.0
    print(
        "| weights moved | words apart | common to all | "
        + " | ".join(f"{keep}: apart | closed" for keep in KEEPS)
        + " | closable |\n"
        + "|---" * (4 + 2 * len(KEEPS))
        + "|"
    )
    for strength in plan.strengths:
        copy_ = between(model, tuned, strength)
        old, new = (StandaloneModel(parts_of_small(each)) for each in (model, copy_))
        apart, common = gap_of_words(old, new, pair, others)
        cells = [f"{weight_change(model, copy_):.2%}", f"{apart:.2f}", f"{common:.2f}"]
        for keep in KEEPS:
            found = [closed(old, new, vectors, keep, plan.steps) for vectors in embeddings_of(pair, words)]
            cells += [f"{np.mean([each[0] for each in found]):.3f}", spoken([each[1] for each in found])]
            figure = float(np.mean([each[1] for each in found])) if keep == "outputs" else figure
        cells.append(spoken([closable(old, new, each) for each in embeddings_of(pair, words[: plan.bound])]))
        print(f"| {' | '.join(cells)} |", flush=True)
    return figure


def main() -> None:
    """Measure and print."""
    flags, start = arguments(__doc__ or ""), time.time()
    plan = QUICK if flags.quick else FULL
    figure = measure(plan)
    print(f"{time.time() - start:.0f} s")
    close(
        Figure(
            name="realign",
            figure=figure,
            unit="of the gap of the outputs closed by the move",
            better="higher",
            goal=GOAL,
            n=plan.embeddings,
        ),
        flags,
    )


if __name__ == "__main__":
    run_benchmark(main)
