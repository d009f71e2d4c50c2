"""What ``ti-fix evaluate`` compares: the embedding, its class word, nothing, other files, earlier steps."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ti_fix.cli.output import existing
from ti_fix.cli.standalone import open_host, widths_of
from ti_fix.embedding import Embedding
from ti_fix.errors import WrongUse
from ti_fix.evaluate import Candidate, EvalConfig, as_stored, default_candidates
from ti_fix.evaluate.probes import Encode, encoder_of
from ti_fix.evaluate.steps import kept, run_figures, sides_of_steps
from ti_fix.formats import read
from ti_fix.protocols import ImageRequest
from ti_fix.repair import clean, scan
from ti_fix.ui.subject import SubjectFinder


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sides:
    """What is compared and what makes its pictures.

    Attributes:
        candidates: the first is the one in question.
        generate: the host's.
        finder: makes the pictures and finds the subject in them.
        encode: the text encoders with a side's embeddings in them.
        size: pixels along the side of the squares that the model is made for.
        figures: heading -> PNG, for the report.
    """

    candidates: list[Candidate]
    generate: Callable[[ImageRequest], Any]
    encode: Callable[[Candidate], Encode]
    finder: SubjectFinder
    size: int
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
        run = Path(arguments.run_folder)
        steps = sides_of_steps(kept(run), lambda path: usable(str(path), family))
        candidates = [replace(candidates[0], step=None), *steps, *candidates[1:]]
        figures = run_figures(run / "log.csv", [*steps, candidates[0]], host.model().vocabulary())
    fit = widths_of(arguments.model).fit
    return Sides(
        candidates=candidates,
        size=host.model().picture_size,
        finder=SubjectFinder(host, fit, config.class_word or name),
        generate=host.generate,
        encode=lambda side: encoder_of(host.model(), map(fit, side.embeddings)),
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
