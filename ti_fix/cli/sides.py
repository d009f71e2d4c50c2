"""What ``ti-fix evaluate`` compares: the embedding, its class word, nothing, other files, earlier steps."""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ti_fix import tokenizer
from ti_fix.cli.output import existing
from ti_fix.cli.standalone import open_host, widths_of
from ti_fix.cli.subject import SubjectFinder
from ti_fix.embedding import Embedding
from ti_fix.errors import WrongUse
from ti_fix.evaluate import Candidate, EvalConfig, as_stored, default_candidates, plots
from ti_fix.evaluate.probes import Encode
from ti_fix.formats import read
from ti_fix.protocols import ImageRequest, Sizes
from ti_fix.repair import clean, scan

NEIGHBOURS = 6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sides:
    """What is compared and what makes its pictures.

    Attributes:
        candidates: the first is the one in question.
        generate: the host's.
        finder: makes the pictures and finds the subject in them.
        encode: the text encoders with a side's embeddings in them.
        figures: heading -> PNG, for the report.
    """

    candidates: list[Candidate]
    generate: Callable[[ImageRequest], Any]
    encode: Callable[[Candidate], Encode]
    finder: SubjectFinder
    figures: dict[str, bytes] = field(default_factory=dict)


def sides_of(arguments: argparse.Namespace, config: EvalConfig) -> Sides:
    """The sides that the arguments ask for.

    Raises:
        WrongUse: something is missing, or a file holds no embedding for this model.
    """
    if not arguments.path or not arguments.model:
        raise WrongUse("name an embedding and a model (--model), or finished pictures (--pictures).")
    host = open_host(arguments)
    family = host.model().family
    embedding = usable(arguments.path, family)
    name = embedding.name
    candidates = default_candidates(name, embedding, config.class_word, negative=config.negative)
    candidates += [_other(path, family) for path in arguments.against]
    if arguments.as_stored:
        stored = as_stored(read(Path(arguments.path)).embedding, embedding)
        plain = Candidate(label="as stored (cannot be loaded: its name is plain text)", word=name)
        candidates.insert(1, stored or plain)
    if arguments.original:
        candidates.append(_original(arguments))
    figures: dict[str, bytes] = {}
    if arguments.run_folder:
        steps = steps_of(Path(arguments.run_folder), family)
        candidates = [replace(candidates[0], step=None), *steps, *candidates[1:]]
        figures = run_figures(Path(arguments.run_folder), [*steps, candidates[0]], host.model().vocabulary())
    fit = widths_of(arguments.model).fit
    return Sides(
        candidates=candidates,
        finder=SubjectFinder(host, fit, config.class_word or name),
        generate=host.generate,
        encode=lambda side: encoder_of(host.model(), side, fit),
        figures=figures,
    )


def usable(path: str, family: Any) -> Embedding:
    """The embedding of a file, repaired where it has to be.

    Raises:
        WrongUse: it holds none for this family.
    """
    judged = scan(existing([path]), family=family)
    found = [each for one in judged for each in clean(one) if each.family == family]
    if not found:
        reason = next((f.message for one in judged for f in one.result.findings if f.severity == "error"), "")
        raise WrongUse(f"{path} holds no embedding for {family.title}. {reason}".strip())
    return found[0]


def _other(path: str, family: Any) -> Candidate:
    found = usable(path, family)
    return Candidate(label=f"{found.name} ({Path(path).name})", word=found.name, embeddings=(found,))


def _original(arguments: argparse.Namespace) -> Candidate:
    if not arguments.original_model:
        raise WrongUse("--original needs --original-model: the model that the original was made for.")
    other = argparse.Namespace(**{**vars(arguments), "model": arguments.original_model})
    host = open_host(other)
    found = usable(arguments.original, host.model().family)
    return Candidate(
        label=f"original on {Path(arguments.original_model).name}",
        word=found.name,
        embeddings=(found,),
        generate=host.generate,
    )


def steps_of(folder: Path, family: Any) -> list[Candidate]:
    """The embeddings that a run has kept, by step.

    Raises:
        WrongUse: there are none.
    """
    pattern = re.compile(r".+-(\d+)\.safetensors")
    found = sorted((int(m[1]), p) for p in folder.glob("*.safetensors") if (m := pattern.fullmatch(p.name)))
    if not found:
        raise WrongUse(
            f"{folder} holds no embeddings of steps (NAME-100.safetensors); give the run's .training folder."
        )
    sides = []
    for step, path in found:
        embedding = usable(str(path), family)
        sides.append(Candidate(label=f"step {step}", word=embedding.name, embeddings=(embedding,), step=step))
    return sides


def encoder_of(model: Any, side: Candidate, fit: Callable[[Embedding], Embedding]) -> Encode:
    """Prompts to context, with a side's embeddings in them."""
    vectors: Mapping[str, Mapping[str, Tensor]] = {e.name: e.vectors for e in map(fit, side.embeddings)}
    size = Sizes(original=(1024, 1024), target=(1024, 1024))

    def encode(prompts: Sequence[str]) -> Tensor:
        context: Tensor = model.encode_prompts(list(prompts), vectors, [size] * len(prompts)).context
        return context

    return encode


def run_figures(folder: Path, sides: Sequence[Candidate], vocabulary: Any) -> dict[str, bytes]:
    """Training curves, and the way of the vector among its neighbours."""
    if not plots.available():
        return {}
    figures = {}
    log = folder / "log.csv"
    if log.is_file():
        with log.open(newline="", encoding="utf-8") as file:
            rows = [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]
        figures["Training"] = plots.training(rows)
    for key, table in vocabulary.tables.items():
        steps = [
            (side.label, side.embeddings[0].vectors[key][0]) for side in sides if key in side.embeddings[0].vectors
        ]
        if len(steps) > 1 and steps[0][1].shape[0] == table.shape[1]:
            words = _neighbours(steps[-1][1], table, vocabulary.trained)
            figures[f"Way of the first vector ({key})"] = plots.way(steps, words, key)
    return figures


def _neighbours(vector: Tensor, table: Tensor, trained: Tensor | None) -> list[tuple[str, Tensor]]:
    """The words whose rows are nearest by cosine."""
    rows = table.detach().float().cpu()
    cosines = torch.nn.functional.cosine_similarity(rows, vector.float()[None])
    if trained is not None:
        cosines[: len(trained)][~trained] = -1
    best = cosines.topk(NEIGHBOURS).indices.tolist()
    return [(tokenizer.decode([i]).strip() or str(i), rows[i]) for i in best]
