"""`repair` and `diagnose`: run the defects over an embedding and say how it stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ti_fix.embedding import SDXL, Embedding, Family, Finding, Vocabulary
from ti_fix.formats import Parsed
from ti_fix.repair.defects import ADDED_DEFECTS, DEFECTS, Specimen, Target, is_sound
from ti_fix.repair.fit import FITTING, fill_missing_half, is_conversion
from ti_fix.repair.names import judge_name, renamed
from ti_fix.repair.provenance import find_pooled_fault

Verdict = Literal["ignore", "reject", "convert", "warn", "repair", "load"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RepairResult:
    """How an embedding stands for a family, and the embedding to use.

    Attributes:
        before: as it was read, None where nothing could be read.
        after: to be used; the same object as `before` where nothing had to change.
        findings: everything noticed, by the reader and by the defects.
        target: the family it was judged for.
        ignored: it is no embedding and nobody would take it for one.
    """

    before: Embedding | None
    after: Embedding | None
    findings: tuple[Finding, ...]
    target: Family
    ignored: bool = False

    @property
    def applied(self) -> tuple[str, ...]:
        """What was repaired, a sentence each."""
        return tuple(dict.fromkeys(f.repaired for f in self.findings if f.repaired))

    @property
    def changed(self) -> bool:
        """Whether the vectors or the name differ from what the host would have read."""
        return bool(self.applied)

    @property
    def usable(self) -> bool:
        """Whether the embedding can be used as it is now, or after its conversion."""
        return self.verdict not in ("ignore", "reject")

    @property
    def verdict(self) -> Verdict:
        """One word; precedence: ignore, reject, convert, warn, repair, load."""
        if self.ignored:
            return "ignore"
        if self.after is None or any(f.severity == "error" for f in self.findings):
            return "reject"
        if is_conversion(self.after, self.target):
            return "convert"
        if any(f.severity == "warning" for f in self.findings):
            return "warn"
        return "repair" if self.changed else "load"


def repair(found: Parsed | Embedding, *, family: Family = SDXL, vocabulary: Vocabulary | None = None) -> RepairResult:
    """Judge and mend an embedding for a family of models.

    Lossless repairs keep every number bit for bit; a healthy embedding comes back as the same object; repairing twice
    changes nothing more.

    Args:
        found: what `formats.read` returned, or an embedding.
        family: the kind of model it is wanted for.
        vocabulary: the loaded model's token tables; with them a missing half is filled and untrained vectors are seen.
    """
    parsed = found if isinstance(found, Parsed) else None
    before = parsed.embedding if parsed else found
    findings = list(parsed.findings) if parsed else []
    if not isinstance(before, Embedding):
        return RepairResult(
            before=None, after=None, findings=tuple(findings), target=family, ignored=bool(parsed and parsed.ignored)
        )
    target = Target(family=family, vocabulary=vocabulary)
    specimen = Specimen(before, target)
    for defect in () if is_sound(specimen) else (*FITTING, *DEFECTS, *ADDED_DEFECTS):
        noticed = list(defect.find(specimen))
        findings += noticed
        if noticed and defect.fix is not None:
            specimen = Specimen(defect.fix(specimen), target)
    after = specimen.embedding
    naming = judge_name(after.name, converted=is_conversion(after, family))
    findings += naming.findings
    after = renamed(after, naming)
    pooled = find_pooled_fault(after.vectors, parsed.layout if parsed else "", before.metadata)
    findings += [pooled] if pooled else []
    if vocabulary is not None and not any(f.severity == "error" for f in findings):
        after, filled = fill_missing_half(after, family, vocabulary)
        findings = [f for f in findings if not filled or f.code not in ("missing-half", "needs-conversion")] + filled
    return RepairResult(before=before, after=after, findings=tuple(findings), target=family)


def diagnose(found: Parsed | Embedding, *, family: Family = SDXL) -> tuple[Finding, ...]:
    """Only the findings of `repair`."""
    return repair(found, family=family).findings
