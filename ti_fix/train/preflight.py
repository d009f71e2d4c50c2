"""What is looked at before a run starts; an error here means that the run would be wasted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ti_fix.embedding import MAX_VECTORS, Finding, Severity
from ti_fix.protocols import DiffusionModel
from ti_fix.tokenizer import is_ordinary_word
from ti_fix.train.buckets import View, bucket, views
from ti_fix.train.captions import NAME, prompts_of, templates
from ti_fix.train.config import TrainConfig
from ti_fix.train.dataset import Dataset, Sample, caption_or_name, listed
from ti_fix.train.initial import Statistics

_ADVERTISING = re.compile(
    r"https?://|www\.|\b(?:buy now|click here|free shipping|for sale|order now|subscribe|limited offer)\b",
    re.IGNORECASE,
)
_MOJIBAKE = re.compile(r"[ÃÂ][\x80-\xbf¡-¿]|â€|\ufffd")
_INVISIBLE = re.compile(r"[\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff\u00ad]")
_LONGEST_CAPTION = 600
"""Characters beyond which a caption is more likely an article."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """A finding with the settings that would put it right."""

    finding: Finding
    remedy: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """What a run will do.

    Attributes:
        prompts: for each picture all the captions that it can get.
        training: the views to train on, as often as they count.
        validation: the views of the fixed loss.
        problems: what is to be known; a run with an error among them must not start.
    """

    prompts: tuple[tuple[str, ...], ...]
    training: tuple[View, ...]
    validation: tuple[View, ...]
    problems: tuple[Problem, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """What stands in the way."""
        return tuple(p.finding for p in self.problems if p.finding.severity == "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDump:
    """How a caption looks to the encoders.

    Attributes:
        tokens: of the whole caption, the vectors counted as such.
        places: where the vectors begin, counted in tokens behind the start token.
        chunks: passes of 75 tokens that it takes.
    """

    tokens: int
    places: tuple[int, ...]
    chunks: int


def dump(model_tokenize: Any, prompt: str, name: str, vectors: int) -> TokenDump:
    """Count a caption's tokens as the hosts do: the name's tokens give way to the vectors.

    Emphasis brackets and BREAK are counted as text here, so the numbers are upper bounds with them.
    """
    ids, trigger = model_tokenize(prompt), model_tokenize(name)
    tokens, places, at = 0, [], 0
    while at < len(ids):
        if trigger and ids[at : at + len(trigger)] == trigger:
            places.append(tokens)
            tokens, at = tokens + vectors, at + len(trigger)
        else:
            tokens, at = tokens + 1, at + 1
    return TokenDump(tokens=tokens, places=tuple(places), chunks=max(1, -(-tokens // MAX_VECTORS)))


def captions_of(config: TrainConfig, data: Dataset) -> tuple[tuple[str, ...], ...]:
    """For each picture all the captions that it can get.

    Raises:
        WrongUse: the template cannot be used.
    """
    return _captions(config, data, _templates(config, data.samples)[0])


def _captions(config: TrainConfig, data: Dataset, lines: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    return tuple(prompts_of(caption_or_name(sample), lines, config.name) for sample in data.samples)


def plan(config: TrainConfig, model: DiffusionModel, data: Dataset, about: Mapping[str, Statistics]) -> Plan:
    """Look at everything before the first step.

    Args:
        config: the settings.
        model: for its tokenizer.
        data: the pictures.
        about: statistics of the vocabulary per encoder.

    Raises:
        WrongUse: the template cannot be used.
    """
    lines, problems = _templates(config, data.samples)
    prompts = _captions(config, data, lines)
    problems += [Problem(finding=finding, remedy={}) for finding in data.findings]
    if not data.samples and not any(f.severity == "error" for f in data.findings):
        problems.append(_problem("error", "no-pictures", "There are no usable images; give a folder with pictures."))
    training, validation = _views(config, data.samples)
    checks = (
        _check_name(config, model),
        _check_prompts(config, model, data.samples, prompts, lines),
        _check_captions(data.samples),
        _check_pictures(config, data.samples),
        _check_rates(config, about),
        _check_results(config),
    )
    problems += [problem for check in checks for problem in check]
    return Plan(prompts=prompts, training=training, validation=validation, problems=tuple(problems))


def _problem(severity: Severity, code: str, message: str, **remedy: Any) -> Problem:
    return Problem(finding=Finding(code=code, severity=severity, message=message), remedy=remedy)


def _templates(config: TrainConfig, samples: Sequence[Sample]) -> tuple[tuple[str, ...], list[Problem]]:
    if config.template == "auto":
        captions = sum(sample.caption is not None for sample in samples)
        if captions == 0:
            return templates("subject")[0], []
        problems = []
        if captions < len(samples):
            missing = [s.name for s in samples if s.caption is None]
            message = f"{len(missing)} of {len(samples)} pictures have no caption ({listed(missing)}); "
            problems.append(_problem("warning", "caption-missing", message + "their names are used."))
        return ("[filewords]",), problems
    lines, read = templates(config.template)
    if read is not None and (read.guessed or read.encoding.startswith("utf-16")):
        name = Path(config.template).name
        message = f"{name} is taken for {read.encoding}; save it as UTF-8 to be sure."
        return lines, [_problem("note", "template-encoding", message)]
    return lines, []


def _views(config: TrainConfig, samples: Sequence[Sample]) -> tuple[tuple[View, ...], tuple[View, ...]]:
    """Training views, and for validation the middle of each picture, or of those that are held out."""
    held = int(len(samples) * config.hold_out)
    training: list[View] = []
    for i, sample in enumerate(samples[: len(samples) - held]):
        found = views(
            i, sample.size, config.resolution, square=not config.buckets, scales=config.scales, flip=config.flip
        )
        training += found * sample.repeats
    fixed = range(len(samples) - held, len(samples)) if held else range(len(samples))
    validation = [
        views(i, samples[i].size, config.resolution, square=not config.buckets, scales=(1.0,), flip=False)[0]
        for i in list(fixed)[: config.validation_pictures]
    ]
    return tuple(training), tuple(validation)


def _check_name(config: TrainConfig, model: DiffusionModel) -> Iterator[Problem]:
    trigger = model.vocabulary().tokenize(config.name)
    if not trigger:
        yield _problem("error", "name-unusable", f"The name {config.name!r} cannot stand in a prompt; change it.")
    elif re.search(r"[\[\](){}|,:<>\\]", config.name):
        message = f"The name {config.name!r} holds signs that prompts read as syntax; use letters, digits, - and _."
        yield _problem("error", "name-syntax", message)
    elif is_ordinary_word(config.name):
        message = (
            f"The name {config.name!r} is an ordinary word and would take it over in every prompt; choose another."
        )
        yield _problem("warning", "name-ordinary", message)


def _check_prompts(
    config: TrainConfig,
    model: DiffusionModel,
    samples: Sequence[Sample],
    prompts: Sequence[Sequence[str]],
    lines: Sequence[str],
) -> Iterator[Problem]:
    tokenize = model.vocabulary().tokenize
    dumps = [[dump(tokenize, prompt, config.name, config.vectors) for prompt in each] for each in prompts]
    without = [s.name for s, each in zip(samples, dumps, strict=True) if not any(d.places for d in each)]
    some = [s.name for s, each in zip(samples, dumps, strict=True) if not all(d.places for d in each)]
    if without or some:
        yield _trigger_missing(config, len(samples), without, some, lines)
    beyond = [
        s.name
        for s, each in zip(samples, dumps, strict=True)
        if any(d.places and d.places[0] + config.vectors > MAX_VECTORS for d in each)
    ]
    if beyond:
        message = (
            f"{config.name!r} stands beyond 75 tokens in captions of {len(beyond)} of {len(samples)} pictures "
            f"({listed(beyond)}): it goes to the next chunk, and the pooled text does not see it. Move it to the front."
        )
        yield _problem("warning", "trigger-late", message)
    longest = max((d.tokens for each in dumps for d in each), default=0)
    if longest > MAX_VECTORS:
        message = f"The longest caption has {longest} tokens, more than the 75 of one chunk; it is encoded in several."
        yield _problem("note", "caption-chunks", message)


def _trigger_missing(
    config: TrainConfig, total: int, without: Sequence[str], some: Sequence[str], lines: Sequence[str]
) -> Problem:
    code = "trigger-missing"
    if not any(NAME in line for line in lines) and list(lines) != ["[filewords]"]:
        where = f"the template has no {NAME}, and "
    else:
        where = ""
    names = without or some
    message = (
        f"The trigger {config.name!r} is not in {len(names)} of {total} captions ({listed(names)}): {where}"
        "such a picture teaches nothing. Write it into them, or use a template such as: [name], [filewords]"
    )
    severity: Severity = "error" if len(without) == total else "warning"
    return _problem(severity, code, message, template="[name], [filewords]")


def _check_captions(samples: Sequence[Sample]) -> Iterator[Problem]:
    checks = (
        ("caption-advertising", "look like advertising or hold links", _ADVERTISING.search),
        ("caption-mojibake", "hold wrongly decoded letters", _MOJIBAKE.search),
        ("caption-invisible", "hold invisible characters", _INVISIBLE.search),
        ("caption-long", f"are longer than {_LONGEST_CAPTION} characters", lambda text: len(text) > _LONGEST_CAPTION),
    )
    for code, what, found in checks:
        names = [s.name for s in samples if s.caption is not None and found(s.caption)]
        if names:
            yield _problem("warning", code, f"{len(names)} captions {what} ({listed(names)}); clean them.")


def _check_pictures(config: TrainConfig, samples: Sequence[Sample]) -> Iterator[Problem]:
    small = []
    for sample in samples:
        target = bucket(sample.size, config.resolution, square=not config.buckets)
        factor = max(target[0] / sample.size[0], target[1] / sample.size[1]) / min(config.scales)
        if factor > 2:
            small.append(sample.name)
    if small:
        message = f"{len(small)} pictures are enlarged more than twice ({listed(small)}); use larger ones."
        yield _problem("warning", "picture-small", message, resolution=max(64, config.resolution // 2))


def _check_rates(config: TrainConfig, about: Mapping[str, Statistics]) -> Iterator[Problem]:
    from ti_fix.train.rates import rates_of

    for key, rate in rates_of(config, about).items():
        peak = max(rate(step) for step in range(1, config.steps + 1))
        share = peak / about[key].rms
        message = (
            f"Learning rate for {key}, at its highest: {peak:.3g}, which is {share:.2g} times the usual size (RMS) "
            f"of a number in the model's words ({about[key].rms:.3g})."
        )
        yield _problem("note", "rate", message)
        if config.optimiser == "adamw" and share < 0.001:
            yield _problem("warning", "rate-low", f"{message} That is too little to learn with.", learning_rate="0.005")
        if config.optimiser != "prodigy" and share > 10:
            hint = f"{message} Each step is longer than ten words; pictures will fall apart."
            yield _problem("warning", "rate-high", hint, learning_rate="0.005")


def _check_results(config: TrainConfig) -> Iterator[Problem]:
    if not config.out:
        return
    from ti_fix.train.checkpoint import Files

    files = Files(config)
    if files.final.exists() and not (config.overwrite or config.resume):
        message = f"{files.final} exists already; choose another name, or allow overwriting."
        yield _problem("error", "name-taken", message, overwrite=True)
    reason = files.refusal()
    if reason:
        yield _problem("error", "out-unwritable", f"{config.out} cannot be written: {reason}")
