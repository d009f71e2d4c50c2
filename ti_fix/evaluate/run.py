"""An evaluation from its first picture to its report, as an iterator of events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ti_fix.errors import WrongUse
from ti_fix.evaluate.backbone import Backbone, PictureJudge
from ti_fix.evaluate.config import Candidate, EvalConfig, check, filled
from ti_fix.evaluate.features import SECOND_JUDGE
from ti_fix.evaluate.probes import Encode, Probes, conditioning_change, probe
from ti_fix.evaluate.report import Report, Side
from ti_fix.evaluate.scoring import Scorer, estimates, reference_features
from ti_fix.evaluate.statistics import Estimate, difference
from ti_fix.evaluate.verdict import best_step, sentences
from ti_fix.protocols import ImageRequest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PictureEvent:
    """A picture was made.

    Attributes:
        label: whose.
        prompt, seed: made from.
        image: a PIL picture.
        done, total: pictures of the whole run.
    """

    label: str
    prompt: str
    seed: int
    image: Any
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringEvent:
    """The pictures of one side are being scored."""

    label: str
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReportEvent:
    """The end: what it came to."""

    report: Report


Event = PictureEvent | ScoringEvent | ReportEvent


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Material:
    """What scores are made with beside the judge.

    Attributes:
        references: pictures of what the embedding should show.
        reference_masks: where the subject is in each of them.
        dino: a second judge, of pictures alone.
        encode: gives the text encoders with a side's embeddings in them, for the probes.
        mask: where the subject is in a picture made from (side, prompt, seed); None where it is not known.
    """

    references: Sequence[Image.Image] = ()
    reference_masks: Sequence[Image.Image | None] = ()
    dino: PictureJudge | None = None
    encode: Callable[[Candidate], Encode] | None = None
    mask: Callable[[Image.Image, Candidate, str, int], Image.Image | None] | None = None


NOTHING_MORE = Material()


class Interrupted(Exception):
    """Raised by a `generate` whose picture was broken off: the run ends as by a stop, and what is there is scored."""


def evaluate(
    config: EvalConfig,
    candidates: Sequence[Candidate],
    prompts: Sequence[str],
    judge: Backbone,
    *,
    generate: Callable[[ImageRequest], Any],
    material: Material = NOTHING_MORE,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Event]:
    """Make the same pictures for every side, score them, compare the first side with each of the others.

    Args:
        config: settings.
        candidates: the first is the one in question.
        prompts: with ``[name]`` where the word of a side comes.
        judge: scores pictures against texts and references.
        generate: makes a picture from a request.
        material: references, a second judge, probes, masks.
        stop: ends the run between two pictures; what is there is scored if every side has the same pictures.

    Raises:
        WrongUse: settings, sides or prompts that cannot be evaluated, or a stop before anything could be compared.
    """
    check(config, candidates, prompts)
    plan = [(prompt, seed) for prompt in prompts for seed in range(config.seeds)]
    made = _Made(candidates)
    yield from _paint(config, candidates, plan, generate, material, made, stop)
    rounds = made.rounds
    if not rounds:
        raise WrongUse("It was stopped before each side had a picture, so there is nothing to compare.")
    known = reference_features(material.references, judge, material.dino, material.reference_masks)
    scorer = Scorer(judge=judge, config=config, references=known, dino=material.dino)
    texts = [text_of(config, prompt) for prompt, _ in plan[:rounds]]
    scores: dict[str, dict[str, Tensor]] = {}
    for number, side in enumerate(candidates):
        yield ScoringEvent(label=side.label, done=number, total=len(candidates))
        scores[side.label] = scorer.score(made.pictures[side.label][:rounds], texts, made.masks[side.label][:rounds])
    if config.negative:
        _add_changes(scores, made.pictures, candidates, judge, rounds)
    sides = [
        _side(each, made.pictures[each.label][:rounds], scores[each.label], config, material.encode)
        for each in candidates
    ]
    yield ReportEvent(report=assembled(config, sides, scores, judge, material, known.ceilings(), plan[:rounds]))


class _Made:
    """Pictures and masks by side, in the order of the plan."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self.pictures: dict[str, list[Image.Image]] = {each.label: [] for each in candidates}
        self.masks: dict[str, list[Image.Image | None]] = {each.label: [] for each in candidates}

    @property
    def rounds(self) -> int:
        """Entries of the plan that every side has."""
        return min(map(len, self.pictures.values()))

    @property
    def count(self) -> int:
        return sum(map(len, self.pictures.values()))


def _paint(
    config: EvalConfig,
    candidates: Sequence[Candidate],
    plan: Sequence[tuple[str, int]],
    generate: Callable[[ImageRequest], Any],
    material: Material,
    made: _Made,
    stop: Callable[[], bool],
) -> Iterator[PictureEvent]:
    """Side by side, so that a stop leaves pairs."""
    total = len(plan) * len(candidates)
    for prompt, seed in plan:
        for side in candidates:
            if stop():
                return
            try:
                image = (side.generate or generate)(request_of(config, side, prompt, seed))
            except Interrupted:
                return
            made.pictures[side.label].append(image)
            made.masks[side.label].append(material.mask(image, side, prompt, seed) if material.mask else None)
            yield PictureEvent(label=side.label, prompt=prompt, seed=seed, image=image, done=made.count, total=total)


def request_of(config: EvalConfig, side: Candidate, prompt: str, seed: int) -> ImageRequest:
    """What is asked of the host for one picture."""
    if config.negative:
        positive = filled(prompt, "")
        negative = ", ".join(filter(None, (side.word, config.negative_prompt)))
    else:
        positive, negative = filled(prompt, side.word), config.negative_prompt
    return ImageRequest(
        prompt=positive,
        negative_prompt=negative,
        width=config.width,
        height=config.height,
        steps=config.steps,
        cfg_scale=config.cfg_scale,
        seed=seed,
        embeddings=side.embeddings,
    )


def text_of(config: EvalConfig, prompt: str) -> str:
    """What a judge, who does not know the embedding, is told that a picture should show."""
    return filled(prompt, "" if config.negative else config.class_word)


def score_pictures(
    config: EvalConfig,
    sets: Mapping[str, Sequence[Image.Image]],
    texts: Mapping[str, Sequence[str]],
    judge: Backbone,
    material: Material = NOTHING_MORE,
) -> Iterator[Event]:
    """Score pictures that exist already; the first set is compared with the others where they are equally many.

    Args:
        config: class word, own groups, quality texts.
        sets: label -> pictures.
        texts: label -> what each picture should show; empty texts where it is not known.
        judge: see `evaluate`.
        material: see `evaluate`.
    """
    if not sets or not all(sets.values()):
        raise WrongUse("A folder has no picture in it; give folders with .png, .jpg or .webp files.")
    known = reference_features(material.references, judge, material.dino, material.reference_masks)
    scorer = Scorer(judge=judge, config=config, references=known, dino=material.dino)
    scores: dict[str, dict[str, Tensor]] = {}
    for number, (label, pictures) in enumerate(sets.items()):
        yield ScoringEvent(label=label, done=number, total=len(sets))
        scores[label] = scorer.score(pictures, texts.get(label) or [""] * len(pictures))
    sides = [
        Side(label=label, word="", step=None, pictures=tuple(pictures), scores=estimates(scores[label]), probes=None)
        for label, pictures in sets.items()
    ]
    first = next(iter(sets))
    plan = [(text, number) for number, text in enumerate(texts.get(first) or [""] * len(sets[first]))]
    yield ReportEvent(report=assembled(config, sides, scores, judge, material, known.ceilings(), plan))


def assembled(
    config: EvalConfig,
    sides: Sequence[Side],
    scores: Mapping[str, Mapping[str, Tensor]],
    judge: Backbone,
    material: Material,
    ceilings: Mapping[str, Estimate],
    plan: Sequence[tuple[str, int]],
) -> Report:
    """The report of scored sides."""
    first = sides[0]
    differences: dict[str, dict[str, Estimate]] = {}
    for other in sides[1:]:
        if len(other.pictures) == len(first.pictures):
            differences[other.label] = _differences(scores[first.label], scores[other.label])
    notes = [] if judge.facts.independent else [SECOND_JUDGE]
    if len(sides) > 1 and len(differences) < len(sides) - 1:
        notes.append("Sets with different numbers of pictures are not compared: pairs need the same prompt and seed.")
    if config.negative:
        notes.append(
            "A negative embedding has no subject to be like. What can be measured is how far it moves the pictures "
            "and the conditioning, and whether quality rises; whether the change is to your taste, only you can see."
        )
    return Report(
        config=config,
        judge=judge.facts,
        dino=None if material.dino is None else material.dino.facts,
        sides=tuple(sides),
        differences=differences,
        ceilings=dict(ceilings),
        plan=tuple(plan),
        references=len(material.references),
        sentences=tuple(sentences(first.label, differences, config)),
        best=best_step(sides),
        notes=tuple(notes),
    )


def _differences(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> dict[str, Estimate]:
    found = {name: difference(values, theirs[name]) for name, values in ours.items() if name in theirs}
    return {name: each for name, each in found.items() if each is not None}


def _side(
    each: Candidate,
    pictures: Sequence[Image.Image],
    scores: Mapping[str, Tensor],
    config: EvalConfig,
    encode: Callable[[Candidate], Encode] | None,
) -> Side:
    probes: Probes | None = None
    found = estimates(scores)
    if encode is not None and each.word and each.generate is None:
        probes = probe(encode(each), each.word)
        if config.negative:
            change = conditioning_change(encode(each), each.word, config.negative_prompt)
            found["conditioning_change"] = Estimate(mean=change, low=change, high=change, n=1)
    return Side(label=each.label, word=each.word, step=each.step, pictures=tuple(pictures), scores=found, probes=probes)


def _add_changes(
    scores: dict[str, dict[str, Tensor]],
    made: Mapping[str, Sequence[Image.Image]],
    candidates: Sequence[Candidate],
    judge: Backbone,
    rounds: int,
) -> None:
    """For a negative embedding: how far each side's pictures are from those of the side without any."""
    plain = next((each for each in candidates if not each.word), None)
    if plain is None:
        return
    base, before = made[plain.label][:rounds], judge.pictures(made[plain.label][:rounds])
    for side in candidates:
        if side is plain:
            continue
        pictures = made[side.label][:rounds]
        cosines = (judge.pictures(pictures) * before).sum(dim=1)
        levels = [_levels(one, other) for one, other in zip(pictures, base, strict=True)]
        scores[side.label] |= {"image_change": 1 - cosines, "pixel_change": torch.tensor(levels)}


def _levels(one: Image.Image, other: Image.Image) -> float:
    """Mean absolute difference of two pictures in grey levels, 0…255."""
    arrays = [np.asarray(each.convert("RGB"), dtype=np.int16) for each in (one, other)]
    return float(np.abs(arrays[0] - arrays[1]).mean()) if arrays[0].shape == arrays[1].shape else float("nan")


__all__ = [
    "Event",
    "PictureEvent",
    "ReportEvent",
    "ScoringEvent",
    "evaluate",
    "score_pictures",
]
