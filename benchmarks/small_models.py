"""What the small models and their judges can do: the table of ``docs/small-models.md``.

``python benchmarks/small_models.py [--quick] [--json] [--write]``; ``--write`` puts the table into the document.
Figure: obedience of the SDXL model, the worst of its goals' quotients (1 = every goal met).
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from harness import Figure, arguments, close, run_benchmark
from ti_fix.small import captions, load, scenes
from ti_fix.small.clip import similarity
from ti_fix.small.concepts import KINDS, concepts
from ti_fix.small.generate import Painter
from ti_fix.small.judges import obedience, read
from ti_fix.small.packs import FOLDER, read_pack, token_rows
from ti_fix.small.vocabulary import tokenizer

GOALS = {"background": 0.97, "colour": 0.97, "shape": 0.90, "texture": 0.90, "both": 0.90}
DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "small-models.md"
BEGIN, END = "<!-- table: benchmarks/small_models.py --write -->", "<!-- end of table -->"
WORD_PICTURES = 6


def held_out_scene(rng: random.Random) -> captions.Described:
    """One plain object of a colour-shape pair that no model was trained on."""
    colour, shape = rng.choice(sorted(scenes.HELD_OUT_PAIRS))
    thing = scenes.Thing(shape=shape, paint=scenes.colour_paint(colour, rng), cx=0, cy=0, radius=rng.uniform(26, 36))
    return captions.compose([thing], [{"colour": colour, "shape": shape}], rng)


def obeys(painter: Painter, count: int, held_out: bool) -> dict[str, float]:
    """Obedience of generated pictures by the scene judge."""
    rng = random.Random(31 + held_out)
    described = [held_out_scene(rng) if held_out else captions.draw(rng, 0.34) for _ in range(count)]
    texts = [captions.plain_caption(d, rng) for d in described]
    return obedience(described, read(painter.paint(texts, seed=10_000)))


def judge_accuracy(count: int) -> dict[str, float]:
    """The scene judge on rendered pictures."""
    rng = random.Random(777)
    described = [captions.draw(rng, 0.4) for _ in range(count)]
    return obedience(described, read(np.stack([scenes.render(d.scene) for d in described])))


def clip_accuracy(count: int) -> float:
    """Zero-shot accuracy of the CLIP judge over the 64 colour-shape pairs."""
    rng = random.Random(5)
    pairs = [(c, s) for c in scenes.COLOURS for s in scenes.SHAPES]
    chosen = [rng.choice(pairs) for _ in range(count)]
    pictures = []
    for colour, shape in chosen:
        thing = scenes.Thing(shape=shape, paint=scenes.colour_paint(colour, rng), cx=0, cy=0, radius=32)
        pictures.append(scenes.render(captions.compose([thing], [{"colour": colour, "shape": shape}], rng).scene))
    guess = similarity(np.stack(pictures), [f"a {c} {s}" for c, s in pairs]).argmax(1).tolist()
    return float(np.mean([pairs[g] == p for g, p in zip(guess, chosen, strict=True)]))


def word_tables() -> tuple[Tensor, Tensor]:
    """Rows of the trained one-token words in both tables, double precision."""
    left, right = token_rows("clip_l"), token_rows("clip_g")
    names = tokenizer("clip_l").convert_ids_to_tokens(left.ids.tolist())
    whole = torch.tensor([n.endswith("</w>") and n[:-4].isalpha() and len(n) > 6 for n in names])
    keep = whole & (left.pictures >= WORD_PICTURES)
    return left.rows[keep].double(), right.rows[keep].double()


def ridge(x: Tensor, y: Tensor, query: Tensor, weight: float) -> Tensor:
    """Ridge regression with intercept; ``weight`` relative to the mean variance."""
    mean_x, mean_y = x.mean(0), y.mean(0)
    a, b = x - mean_x, y - mean_y
    gram = a.T @ a
    penalty = weight * gram.trace() / len(gram) * torch.eye(len(gram), dtype=x.dtype)
    return (query - mean_x) @ torch.linalg.solve(gram + penalty, a.T @ b) + mean_y


def relation() -> dict[str, float]:
    """How far G rows follow from L rows on held-out words: R2, centred cosine, neighbours; three splits."""
    x, y = word_tables()
    scores = []
    for split in range(3):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(10 + split))
        test, train = order[: len(x) // 5], order[len(x) // 5 :]
        mean = y[train].mean(0)
        truth = y[test] - mean
        found = ridge(x[train], y[train], x[test], 0.1) - mean
        shuffled = train[torch.randperm(len(train), generator=torch.Generator().manual_seed(split))]
        floor = ridge(x[train], y[shuffled], x[test], 0.1) - mean
        nearest = (
            y[train][
                (
                    F.normalize(x[test] - x[train].mean(0), dim=1) @ F.normalize(x[train] - x[train].mean(0), dim=1).T
                ).argmax(1)
            ]
            - mean
        )
        rank = _rank(found, y - mean, test)
        scores.append(
            [
                1 - float((found - truth).square().sum() / truth.square().sum()),
                _cosine(found, truth),
                _cosine(nearest, truth),
                _cosine(floor, truth),
                float((rank < 10).double().mean()),
            ]
        )
    names = ("ridge R2", "ridge cosine", "nearest word cosine", "shuffled cosine", "true word in top 10")
    common = float(x.mean(0).norm() / x.norm(dim=1).mean())
    return {"words": float(len(x)), "common share of L rows": common} | dict(
        zip(names, np.mean(scores, 0), strict=True)
    )


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(F.cosine_similarity(a, b, dim=1).mean())


def _rank(found: Tensor, everything: Tensor, place: Tensor) -> Tensor:
    scores = F.normalize(found, dim=1) @ F.normalize(everything, dim=1).T
    return (scores > scores[torch.arange(len(place)), place][:, None]).sum(1)


def concept_errors(base: Painter, twin: Painter, per_value: int) -> dict[str, tuple[float, float]]:
    """Kind -> mean error of the class word on the base model, of the invented name on the twin."""
    out = {}
    for kind in KINDS:
        pair = []
        for painter, named in ((base, False), (twin, True)):
            errors = []
            for concept in concepts(kind):
                rng = random.Random(f"table{concept.name}")
                word = concept.name if named else concept.class_word
                texts = [captions.plain_caption(concept.draw(rng, word), rng) for _ in range(per_value)]
                pixels = (painter.paint(texts, seed=500).permute(0, 2, 3, 1).numpy() + 1) * 127.5
                errors += [concept.errors(p)["error"] for p in pixels]
            pair.append(float(np.mean(errors)))
        out[kind] = (pair[0], pair[1])
    return out


def _row(name: str, scores: dict[str, float], n: int) -> str:
    cells = [f"{scores[k]:.3f}" if k in scores else "" for k in GOALS]
    return f"| {name} | {' | '.join(cells)} | {n} |"


def obedience_table(models: Sequence[str], count: int) -> tuple[list[str], float]:
    """Lines of the table, and the worst of the SDXL model's quotients of obedience and goal."""
    lines = [
        f"| obedience by the scene judge | {' | '.join(GOALS)} | pictures |",
        "|---" * (len(GOALS) + 2) + "|",
        f"| goal | {' | '.join(f'{v:.2f}' for v in GOALS.values())} | |",
        _row("the judge itself, on renders", judge_accuracy(count), count),
    ]
    worst = 0.0
    for name in models:
        painter = Painter(load(name))
        scores = obeys(painter, count, False)
        worst = min(scores[k] / g for k, g in GOALS.items() if k in scores) if name == "sdxl" else worst
        lines.append(_row(f"{name}, trained words", scores, count))
        lines.append(_row(f"{name}, held-out colour-shape pairs", obeys(painter, count // 4, True), count // 4))
    return lines, worst


def relation_table() -> list[str]:
    """What `relation` says."""
    rows = [f"| {k} | {v:.3g} |" for k, v in relation().items()]
    return ["| relation of the two token tables, held-out words | |", "|---|---|", *rows]


def concept_table() -> list[str]:
    """What `concept_errors` says of the SDXL model and its twin."""
    errors = concept_errors(Painter(load("sdxl")), Painter(load("sdxl-twin")), 25)
    rows = [f"| {kind} | {a:.3f} | {b:.3f} |" for kind, (a, b) in errors.items()]
    return ["| concept kind (error) | class word, base | name, twin |", "|---|---|---|", *rows]


def pack_table() -> list[str]:
    """Size and training of each pack."""
    lines = ["| pack | MB | training |", "|---|---|---|"]
    for path in sorted(FOLDER.glob("*.safetensors")):
        about = read_pack(path.stem)[1]
        trained = f"{about['steps']:,} steps, {about['cpu_seconds'] / 60:.0f} CPU minutes" if "steps" in about else ""
        lines.append(f"| {path.name} | {path.stat().st_size / 1e6:.2f} | {trained} |")
    return lines


def into_document(text: str) -> None:
    """Put the table into the document."""
    document = DOCUMENT.read_text()
    head, tail = document.split(BEGIN)[0], document.split(END)[1]
    DOCUMENT.write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}")


def main() -> None:
    """Measure, print the table, write it on request."""
    write = "--write" in sys.argv
    sys.argv = [a for a in sys.argv if a != "--write"]
    flags = arguments(__doc__ or "")
    start, count = time.time(), 40 if flags.quick else 800
    wanted = ("sdxl",) if flags.quick else ("sdxl", "sd15", "sdxl-v")
    lines, worst = obedience_table([n for n in wanted if (FOLDER / f"{n}.safetensors").exists()], count)
    lines += ["", f"CLIP judge, 64 colour-shape pairs zero-shot: {clip_accuracy(512):.3f} (goal 0.90, n=512)"]
    lines += ["", *relation_table()]
    if not flags.quick and (FOLDER / "sdxl-twin.safetensors").exists():
        lines += ["", *concept_table()]
    lines += ["", *pack_table()]
    text = "\n".join(lines)
    print(text, f"\n{time.time() - start:.0f} s")
    if write:
        into_document(text)
    close(
        Figure(
            name="small_models", figure=worst, unit="worst obedience over its goal", better="higher", goal=1.0, n=count
        ),
        flags,
    )


if __name__ == "__main__":
    run_benchmark(main)
