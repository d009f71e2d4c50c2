"""What a conversion comes to: the embedding, how each vector was made, and one plain sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor

from ti_fix import tokenizer
from ti_fix.convert.confidence import Confidence
from ti_fix.convert.config import MATCH
from ti_fix.embedding import Embedding, Finding

_SAID = {
    "vocabulary": "as words of the vocabulary",
    "sparse": "as sums of words",
    "local": "by the map between the two encoders and the words around",
    "linear": "by the map between the two encoders",
    "sparse+linear": "by words and the map together",
    MATCH: "by matching the outputs of the loaded model",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """How one vector was converted.

    Attributes:
        method: the rung that made it.
        words: token ids that it rests on, the weightiest first.
        confidence: what to expect of it.
    """

    method: str
    words: tuple[int, ...]
    confidence: Confidence

    def as_dict(self) -> dict[str, Any]:
        """The stable form that scripts read."""
        return {
            "method": self.method,
            "confidence": asdict(self.confidence),
            "words": [tokenizer.decode([word]) for word in self.words],
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Conversion:
    """A converted embedding.

    Attributes:
        embedding: for the other model, under the same name.
        rows: one a vector.
        message: one plain sentence about the whole.
        findings: what the user should know besides.
    """

    embedding: Embedding
    rows: tuple[Row, ...]
    message: str
    findings: tuple[Finding, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The stable form that scripts read."""
        return {
            "message": self.message,
            "vectors": [row.as_dict() for row in self.rows],
            "findings": [{"code": f.code, "severity": f.severity, "message": f.message} for f in self.findings],
        }

    def noticed(self, *findings: Finding) -> Conversion:
        """The same with more findings."""
        return replace(self, findings=(*self.findings, *findings))


def noted(embedding: Embedding, vectors: Mapping[str, Tensor], how: str) -> Embedding:
    """The new vectors, with a line in the metadata that says where they come from."""
    return replace(embedding, vectors=vectors, metadata={**embedding.metadata, "ti_fix.converted_from": how})


def sentence(rows: tuple[Row, ...]) -> str:
    """How many vectors went which way, and what to expect."""
    counts = {m: sum(r.method == m for r in rows) for m in dict.fromkeys(r.method for r in rows)}
    how = ", ".join(f"{count} {_SAID[method]}" for method, count in counts.items())
    mean, low = (sum(getattr(r.confidence, f) for r in rows) / len(rows) + 0.0 for f in ("expected", "low"))
    weak = sum(r.confidence.expected < 0.4 for r in rows)
    few = f" {weak} of them {'has' if weak == 1 else 'have'} no counterpart to speak of." if weak else ""
    vectors = f"{len(rows)} vector{'s' if len(rows) != 1 else ''}"
    return (
        f"Converted {vectors}: {how}. Expected likeness {mean:.2f} ({_quality(mean)}; four of five at {low:.2f} or "
        f"better).{few}"
    )


def _quality(expected: float) -> str:
    if expected > 0.98:
        return "as good as exact"
    if expected > 0.7:
        return "good"
    return "fair" if expected > 0.4 else "poor, better not used"


def is_for(embedding: Embedding) -> str:
    """What an embedding is made for, as the rest of a sentence."""
    if embedding.family:
        return f"is made for {embedding.family.title}"
    return f"has vectors for {' and '.join(embedding.vectors) or 'nothing'}"
