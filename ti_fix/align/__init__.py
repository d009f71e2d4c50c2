"""Is the text side of a model what its makers published, and if not, what puts it right?"""

from __future__ import annotations

from ti_fix.align.at_load import AtLoad, Looked
from ti_fix.align.change import Applied, repaired
from ti_fix.align.check import Check, Light, Outcome, Report, examine
from ti_fix.align.encoder_checks import ENCODER_CHECKS
from ti_fix.align.extra_rows import extra_embeddings, named_rows
from ti_fix.align.table_checks import TABLE_CHECKS
from ti_fix.align.text import clean_text
from ti_fix.align.tokenizer_checks import TOKENIZER_CHECKS
from ti_fix.text_model import TextModel

CHECKS = (*TABLE_CHECKS, *TOKENIZER_CHECKS, *ENCODER_CHECKS)

__all__ = [
    "CHECKS",
    "Applied",
    "AtLoad",
    "Check",
    "Light",
    "Looked",
    "Outcome",
    "Report",
    "align",
    "clean_text",
    "extra_embeddings",
    "named_rows",
    "repaired",
]


def align(model: TextModel, *, quick: bool = False) -> Report:
    """Run the checks on a model; the model stays as it is.

    Args:
        model: from an adapter.
        quick: leave out those that cost more than a moment, for a model that was looked at as a whole before.
    """
    return examine(model, [check for check in CHECKS if not (quick and check.costly)])
