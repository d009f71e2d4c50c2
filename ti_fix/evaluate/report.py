"""What an evaluation came to, as a type, as JSON and as Markdown; `ti_fix.evaluate.report_page` makes the HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ti_fix import __version__
from ti_fix.errors import WrongUse, printable
from ti_fix.evaluate.backbone import BackboneFacts
from ti_fix.evaluate.config import EvalConfig
from ti_fix.evaluate.probes import Probes
from ti_fix.evaluate.statistics import Estimate

SCHEMA = 1
"""Version of the JSON."""

MEANINGS: Mapping[str, str] = {
    "clip_i": "likeness to the references, mean cosine of CLIP's picture features (-1…1)",
    "dino": "the same with DINO's features, which look at details more",
    "masked_clip_i": "likeness of the subject alone, everything else painted over",
    "clip_t": "agreement with the prompt, cosine of picture and text (-1…1)",
    "clip_score_25": "2.5 times that cosine, never below 0; some articles call this “CLIP-I”",
    "clip_iqa": "quality by antonyms (0…1; 0.5 is undecided)",
    "adherence_q": "our reading of “CLIP-Q”: √(mean group adherence * quality) (0…1)",
    "adherence.colour": "how surely the picture shows the prompt's colours rather than others (0…1)",
    "adherence.object": "the same for objects",
    "adherence.scene": "the same for the scene",
    "adherence.style": "the same for the style",
    "adherence.action": "the same for the action",
    "image_change": "how far the pictures move from those without (1 - cosine)",
    "pixel_change": "the same in grey levels (0…255)",
    "conditioning_change": "how far the conditioning moves (relative distance)",
}
"""Metric -> what it says, in the order of the tables."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Side:
    """One side of a comparison with its pictures and scores.

    Attributes:
        label: what the tables call it.
        word: what stood in the prompts.
        step: of the training run, if it comes from one.
        pictures: PIL pictures in the order of the report's plan.
        scores: metric -> mean with interval.
        probes: of the text encoders, None where they were not asked.
    """

    label: str
    word: str
    step: int | None
    pictures: tuple[Any, ...]
    scores: Mapping[str, Estimate]
    probes: Probes | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Report:
    """See the module.

    Attributes:
        config: the settings.
        judge, dino: what scored; scores of another fingerprint must not be set beside these.
        sides: the first is the one in question.
        differences: other side's label -> metric -> first side minus the other, over the same prompts and seeds.
        ceilings: metric -> what the references score among themselves, each left out once.
        plan: prompt and seed of each picture.
        references: how many there were.
        sentences: is it better, and where.
        best: label of the best step of a run.
        notes: what a reader must know.
        extra: sections of others, for instance a dataset's table.
    """

    config: EvalConfig
    judge: BackboneFacts
    dino: BackboneFacts | None = None
    sides: tuple[Side, ...] = ()
    differences: Mapping[str, Mapping[str, Estimate]] = field(default_factory=dict)
    ceilings: Mapping[str, Estimate] = field(default_factory=dict)
    plan: tuple[tuple[str, int], ...] = ()
    references: int = 0
    sentences: tuple[str, ...] = ()
    best: str | None = None
    notes: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def metrics(self) -> list[str]:
        """The metrics that any side has, in the tables' order; own groups last."""
        found = {name for side in self.sides for name in side.scores}
        return [*(name for name in MEANINGS if name in found), *sorted(found - MEANINGS.keys())]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, without pictures."""
        return {
            "schema": SCHEMA,
            "version": __version__,
            "settings": asdict(self.config),
            "judge": asdict(self.judge),
            "dino": None if self.dino is None else asdict(self.dino),
            "plan": [{"prompt": prompt, "seed": seed} for prompt, seed in self.plan],
            "references": self.references,
            "sides": [
                {
                    "label": side.label,
                    "word": side.word,
                    "step": side.step,
                    "pictures": len(side.pictures),
                    "scores": {name: asdict(side.scores[name]) for name in self.metrics if name in side.scores},
                    "probes": None if side.probes is None else asdict(side.probes),
                }
                for side in self.sides
            ],
            "differences": {
                label: {name: asdict(each) for name, each in found.items()} for label, found in self.differences.items()
            },
            "ceilings": {name: asdict(each) for name, each in self.ceilings.items()},
            "sentences": list(self.sentences),
            "best": self.best,
            "notes": list(self.notes),
            **self.extra,
        }


def same_judge(reports: Sequence[Mapping[str, Any]]) -> None:
    """Refuse to set scores of different judges side by side.

    Args:
        reports: as `Report.as_dict` gives them.

    Raises:
        WrongUse: names the judges.
    """
    judges = {(each["judge"]["name"], each["judge"]["fingerprint"], each["judge"]["preprocessing"]) for each in reports}
    if len(judges) > 1:
        told = "; ".join(sorted(f"{name} ({fingerprint})" for name, fingerprint, _ in judges))
        raise WrongUse(f"These scores come from different judges, so they cannot be compared: {told}.")


def number(each: Estimate) -> str:
    """A mean with its interval."""
    return f"{each.mean:.3f} ({each.low:.3f} to {each.high:.3f})"


def markdown(report: Report) -> str:
    """The report as Markdown, without pictures."""
    lines = ["# Evaluation", "", *(f"**{_plain(sentence)}**  " for sentence in report.sentences), ""]
    if report.best:
        lines += [f"Best step of the run: **{_plain(report.best)}**.", ""]
    lines += [_judged(report), "", *_table(report), "", *_differences(report), *_probes(report)]
    lines += ["", "## What the names mean", "", *(f"* `{m}`: {MEANINGS.get(m, 'own group')}" for m in report.metrics)]
    lines += ["", *(f"> {_plain(note)}" for note in report.notes)]
    return "\n".join(lines).rstrip() + "\n"


def judged_by(report: Report) -> str:
    """Judge, preprocessing, number of pictures and kind of interval, in a sentence."""
    dino = f"; DINO: {report.dino.name}" if report.dino else ""
    prompts = len({prompt for prompt, _ in report.plan})
    return (
        f"Judge: {report.judge.name} ({report.judge.fingerprint}), {report.judge.preprocessing}{dino}. "
        f"{_count(len(report.plan), 'picture')} a side from {_count(prompts, 'prompt')}, "
        f"{_count(report.references, 'reference')}. "
        "In brackets: 95 % bootstrap interval over the pictures (the references are taken as given)."
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def _judged(report: Report) -> str:
    return _plain(judged_by(report))


def _table(report: Report) -> list[str]:
    lines = [f"| side | {' | '.join(report.metrics)} |", f"|---|{'---|' * len(report.metrics)}"]
    for side in report.sides:
        cells = [number(side.scores[m]) if m in side.scores else "-" for m in report.metrics]
        lines.append(f"| {_plain(side.label)} | {' | '.join(cells)} |")
    if report.ceilings:
        cells = [number(report.ceilings[m]) if m in report.ceilings else "-" for m in report.metrics]
        lines.append(f"| references among themselves | {' | '.join(cells)} |")
    return lines


def _differences(report: Report) -> list[str]:
    if not report.differences:
        return []
    first = _plain(report.sides[0].label)
    lines = [f"## {first} minus the other", "", f"| metric | {' | '.join(map(_plain, report.differences))} |"]
    lines.append(f"|---|{'---|' * len(report.differences)}")
    for metric in report.metrics:
        found = [each.get(metric) for each in report.differences.values()]
        if any(found):
            cells = ["-" if each is None else f"{'**' * each.clear}{number(each)}{'**' * each.clear}" for each in found]
            lines.append(f"| {metric} | {' | '.join(cells)} |")
    return [*lines, "", "Bold: the interval leaves out 0."]


def _probes(report: Report) -> list[str]:
    probed = [(side, side.probes) for side in report.sides if side.probes]
    if not probed:
        return []
    lines = [
        "",
        "## Text encoders",
        "",
        "| side | moved by its place | moved by adjectives | moves what follows |",
        "|---|---|---|---|",
    ]
    for side, each in probed:
        lines.append(f"| {_plain(side.label)} | {each.order:.3f} | {each.context:.3f} | {each.later:.3f} |")
    return lines


def _plain(text: str) -> str:
    """A text that cannot break a Markdown table or bring HTML along."""
    safe = printable(text, 2000)
    for sign, entity in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("`", "'")):
        safe = safe.replace(sign, entity)
    return safe
