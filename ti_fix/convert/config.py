"""The settings of a conversion."""

from __future__ import annotations

from dataclasses import dataclass

from ti_fix.options import option

METHODS = ("auto", "vocabulary", "sparse", "local", "linear", "sparse+linear")
L_ONLY = "l_only"
MATCH = "match"

KEPT = "kept"
"""Of the method of a vector: it went over as it was."""

KEEPS = ("meaning", "outputs")
"""What a move between checkpoints holds on to."""


@dataclass(frozen=True, kw_only=True)
class ConvertConfig:
    """How to convert."""

    method: str = option(
        "auto",
        "Method",
        "auto takes the first that holds for each vector: a word of the vocabulary, a sum of words, the map and the "
        "words around; match goes on from there and lets the loaded model move the vectors until its outputs fit "
        "(minutes)",
        choices=(*METHODS, MATCH, L_ONLY),
    )
    steps: int = option(
        150,
        "Steps of matching",
        "updates of the vectors at most, for match and for the move between checkpoints",
        minimum=1,
        maximum=10_000,
        expert=True,
    )
    keep: str = option(
        "meaning",
        "Keep between checkpoints",
        "meaning: what the embedding adds to the word next to it; outputs: the very outputs of the old text encoders",
        choices=KEEPS,
        expert=True,
    )
    words: int = option(
        256,
        "Words of matching",
        "words from which match learns how the outputs of both encoders correspond; each is encoded a dozen times",
        minimum=16,
        maximum=10_000,
        expert=True,
    )
