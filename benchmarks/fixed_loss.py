"""Does the fixed loss know good vectors from bad ones? ``python benchmarks/fixed_loss.py [--quick] [--json]``.

Vectors that are good and bad to all degrees stand in for a concept that the small SDXL has no word for: words of its
kind, and mixtures of the nearest word with the others. For each the error is measured from the pixels of new pictures,
and the fixed loss is taken on five pictures of the concept, as training would. Figure: rank correlation of loss and
error (Spearman), mean over the concepts; beside it the plain mean of the loss over all timesteps, which trainers show.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import torch
from PIL import Image
from torch import Tensor

from harness import Figure, arguments, close, run_benchmark
from learn import FULL, TRIGGER, error, host, scenes, settings, texts
from ti_fix.embedding import Embedding
from ti_fix.small.concepts import Concept, concepts
from ti_fix.small.scenes import HUES, SHAPES, TEXTURES, render
from ti_fix.tokenizer import encode
from ti_fix.train import from_images
from ti_fix.train.distributed import Group
from ti_fix.train.engine import Engine
from ti_fix.train.initial import statistics as of_vocabulary
from ti_fix.train.latents import LatentCache
from ti_fix.train.objective import objective
from ti_fix.train.preflight import plan
from ti_fix.train.validation import FixedLoss

GOAL = 0.9
WORDS = {"hue": tuple(HUES), "two-tone": tuple(HUES), "texture": TEXTURES, "shape": SHAPES}
FULL_RUN = (("hue", 0), ("hue", 2), ("hue", 5), ("texture", 0), ("texture", 1), ("two-tone", 0), ("shape", 0))
QUICK_RUN = (("hue", 0),)


def candidates(concept: Concept) -> dict[str, dict[str, Tensor]]:
    """Name -> vectors: the class word, others of its kind, and mixtures."""
    tables = host("sdxl").model().vocabulary().tables

    def mixed(parts: Mapping[str, float]) -> dict[str, Tensor]:
        rows = {key: [share * table[encode(word)[0]] for word, share in parts.items()] for key, table in tables.items()}
        return {key: torch.stack(each).sum(0, keepdim=True) for key, each in rows.items()}

    own = concept.class_word
    others = [word for word in WORDS[concept.kind] if word != own][:6]
    made = {own: mixed({own: 1})} | {word: mixed({word: 1}) for word in others}
    return made | {f"{own} + {word}": mixed({own: 0.6, word: 0.4}) for word in others}


def losses(concept: Concept, made: Mapping[str, Mapping[str, Tensor]]) -> tuple[list[float], list[float]]:
    """The fixed loss and the plain one of each candidate."""
    model, config = host("sdxl").model(), settings(concept, "words", FULL)
    described = scenes(concept, TRIGGER, 5, "shown")
    images = [Image.fromarray(render(each.scene)) for each in described]
    data = from_images(images, list(texts(described, f"captions {concept.name}")))
    about = of_vocabulary(model.vocabulary())
    work = plan(config, model, data, about)
    with model.trainable():
        cache = LatentCache(config, model, data.samples)
        engine = Engine(config, model, objective(config, model.schedule), about, cache, work.prompts, work.training,
                        Group())  # fmt: skip
        fixed = FixedLoss(engine, work.validation)
        times = (torch.arange(8) + 0.5) * (engine.objective.timesteps / 8)
        plain = [engine.fixed_batch(view, times.long()) for view in work.validation]
        with torch.no_grad():
            old = [statistics.mean(float(engine.losses(b, v, plain=True).mean()) for b in plain) for v in made.values()]
        return [fixed(vectors) for vectors in made.values()], old


def correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's."""
    ranks = [[sorted(row).index(each) for each in row] for row in (list(one), list(other))]
    return statistics.correlation(*ranks)


def main() -> None:
    flags = arguments(__doc__ or "")
    found, plain = [], []
    made_pictures = 6 if flags.quick else 16
    print("| concept | candidates | errors | plain loss | fixed loss |\n|---|---|---|---|---|")
    for kind, index in QUICK_RUN if flags.quick else FULL_RUN:
        concept = concepts(kind)[index]
        made = candidates(concept)
        errors = [
            error(host("sdxl"), concept, TRIGGER, made_pictures, Embedding(name=TRIGGER, vectors=v, metadata={}))
            for v in made.values()
        ]
        ours, old = losses(concept, made)
        found.append(correlation(ours, errors))
        plain.append(correlation(old, errors))
        print(f"| {kind} {index} | {len(made)} | {min(errors):.2f} to {max(errors):.2f} | {plain[-1]:.2f} | "
              f"{found[-1]:.2f} |", flush=True)  # fmt: skip
    print(f"mean of the plain loss: {statistics.mean(plain):.2f}")
    close(
        Figure(name="fixed_loss", figure=statistics.mean(found), unit="rank correlation to the error", better="higher",
               goal=GOAL, n=len(found) * len(made)), flags)  # fmt: skip


if __name__ == "__main__":
    run_benchmark(main)
