"""A whole folder judged together: what each file is, and where names collide."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ti_fix.embedding import SDXL, Embedding, Family, Finding, Vocabulary, norms
from ti_fix.formats import Parsed, files_in, read_many
from ti_fix.repair.names import fold, prefixes
from ti_fix.repair.result import RepairResult, repair


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Judged:
    """One embedding of a folder with its verdict; what the command line, the page and the API show.

    Attributes:
        parsed: what was read.
        result: how it stands.
    """

    parsed: Parsed
    result: RepairResult

    @property
    def trigger(self) -> str:
        return self.result.after.name if self.result.after else self.parsed.trigger

    @property
    def aliases(self) -> tuple[str, ...]:
        return self.result.after.aliases if self.result.after else ()

    @property
    def made_for(self) -> Family | None:
        return self.result.before.family if self.result.before else None

    def noticed(self, finding: Finding) -> Judged:
        """The same with one more finding."""
        return replace(self, result=replace(self.result, findings=(*self.result.findings, finding)))

    def as_dict(self) -> dict[str, Any]:
        """The stable form that scripts read."""
        result = self.result
        shown: Embedding | None = result.after if result.usable else None
        vectors = result.after.vectors if result.after else {}
        return {
            "paths": [str(p) for p in self.parsed.paths],
            "trigger": self.trigger,
            "aliases": list(self.aliases),
            "layout": self.parsed.layout or None,
            "made_for": self.made_for.name if self.made_for else None,
            "verdict": result.verdict,
            "encoders": {k: list(v.shape) for k, v in shown.vectors.items()} if shown else None,
            "norms": {k: [n if math.isfinite(n) else None for n in norms(v)] for k, v in vectors.items()},
            "repairs": list(result.applied),
            "findings": [{"code": f.code, "severity": f.severity, "message": f.message} for f in result.findings],
        }


def scan(paths: Sequence[Path], *, family: Family = SDXL, vocabulary: Vocabulary | None = None) -> list[Judged]:
    """Judge files and folders.

    Args:
        paths: files (read whatever their ending) and folders (searched with their sub-folders).
        family: the kind of model that they are wanted for.
        vocabulary: the loaded model's token tables, if there is a model.

    Returns:
        One object per embedding, in the order of the files; a pair of files is one embedding.
    """
    parsed = read_many(_files(paths))
    judged = [Judged(parsed=p, result=repair(p, family=family, vocabulary=vocabulary)) for p in parsed]
    return name_clashes(judged)


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    seen = set()
    for path in paths:
        for file in files_in(path) if path.is_dir() else [path]:
            if file not in seen:
                seen.add(file)
                yield file


def name_clashes(judged: list[Judged]) -> list[Judged]:
    """Add what can only be seen with all names at hand: same names, case twins, names that begin others."""
    groups: dict[str, list[int]] = {}
    for i, each in enumerate(judged):
        if each.result.usable:
            groups.setdefault(fold(each.trigger), []).append(i)
    for members in groups.values():
        if len(members) > 1:
            for i, finding in _same_name([(i, judged[i]) for i in members]):
                judged[i] = judged[i].noticed(finding)
    for short, longer in prefixes(groups).items():
        names = ", ".join(repr(judged[groups[n][0]].trigger) for n in longer)
        message = f"Its name is also the beginning of {names}; WebUIs take the longest name that fits."
        for i in groups[short]:
            judged[i] = judged[i].noticed(Finding(code="prefix", severity="note", message=message))
    return judged


def _seen_from(each: Judged, other: Judged) -> str:
    """The other's file as one would name it from this one's folder: absolute paths are long and say little."""
    here, there = each.parsed.paths[0].parent, other.parsed.paths[0]
    if there.parent == here:
        return there.name
    try:
        top = Path(os.path.commonpath([here, there.parent]))
    except ValueError:  # other drives
        return str(there)
    return (Path(top.name) / there.relative_to(top)).as_posix()


def _same_name(members: list[tuple[int, Judged]]) -> Iterator[tuple[int, Finding]]:
    """The one that fits the model best wins, then the one in the topmost folder, then the first."""
    ranked = sorted(members, key=lambda m: (m[1].result.verdict == "convert", len(m[1].parsed.paths[0].parts), m[0]))
    names = {m[1].trigger for m in members}
    winner = ranked[0][1]
    for i, each in ranked:
        others = ", ".join(_seen_from(each, m) for _, m in ranked if m is not each)
        if len(names) > 1:
            message = (
                f"Its name differs only by case from that of {others}; prompts cannot tell them apart. Rename one."
            )
            yield i, Finding(code="case-twins", severity="warning", message=message)
        elif each is winner:
            yield (
                i,
                Finding(code="same-name", severity="note", message=f"{others} has the same name; this one is used."),
            )
        else:
            message = f"{_seen_from(each, winner)} has the same name {each.trigger!r} and is used instead. Rename one."
            yield i, Finding(code="same-name", severity="warning", message=message)
