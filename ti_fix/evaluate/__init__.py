"""Does an embedding work? Scores of its pictures, comparisons, reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ti_fix.on_demand import on_demand

if TYPE_CHECKING:
    from ti_fix.evaluate.backbone import Backbone, BackboneFacts, PictureJudge
    from ti_fix.evaluate.config import DEFAULT_PROMPTS, PLACE, Candidate, EvalConfig, as_stored, default_candidates
    from ti_fix.evaluate.features import NeedsDownload, dino_from_file, from_file, from_state, interrogator_file, named
    from ti_fix.evaluate.report import Report, Side, markdown, same_judge
    from ti_fix.evaluate.report_page import body, page
    from ti_fix.evaluate.run import Event, Material, PictureEvent, ReportEvent, ScoringEvent, evaluate, score_pictures
    from ti_fix.evaluate.statistics import Estimate, difference, estimate
else:
    __getattr__ = on_demand(
        __name__,
        {
            "backbone": "Backbone BackboneFacts PictureJudge",
            "config": "DEFAULT_PROMPTS PLACE Candidate EvalConfig as_stored default_candidates",
            "features": "NeedsDownload dino_from_file from_file from_state interrogator_file named",
            "report": "Report Side markdown same_judge",
            "report_page": "body page",
            "run": "Event Material PictureEvent ReportEvent ScoringEvent evaluate score_pictures",
            "statistics": "Estimate difference estimate",
        },
    )

__all__ = [
    "DEFAULT_PROMPTS",
    "PLACE",
    "Backbone",
    "BackboneFacts",
    "Candidate",
    "Estimate",
    "EvalConfig",
    "Event",
    "Material",
    "NeedsDownload",
    "PictureEvent",
    "PictureJudge",
    "Report",
    "ReportEvent",
    "ScoringEvent",
    "Side",
    "as_stored",
    "body",
    "default_candidates",
    "difference",
    "dino_from_file",
    "estimate",
    "evaluate",
    "from_file",
    "from_state",
    "interrogator_file",
    "markdown",
    "named",
    "page",
    "same_judge",
    "score_pictures",
]
