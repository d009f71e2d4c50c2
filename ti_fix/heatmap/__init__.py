"""Where in a picture each word of its prompt acted: exact cross-attention maps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ti_fix.on_demand import on_demand

if TYPE_CHECKING:
    from ti_fix.heatmap.capture import Recorder, Wanted, WordMaps
    from ti_fix.heatmap.places import places_of
    from ti_fix.heatmap.render import overlay, sheet
    from ti_fix.heatmap.settings import MapSettings
    from ti_fix.heatmap.statistics import MapFacts, facts_of, grouped, iou, pointing
else:
    __getattr__ = on_demand(
        __name__,
        {
            "capture": "Recorder Wanted WordMaps",
            "places": "places_of",
            "render": "overlay sheet",
            "settings": "MapSettings",
            "statistics": "MapFacts facts_of grouped iou pointing",
        },
    )

__all__ = [
    "MapFacts",
    "MapSettings",
    "Recorder",
    "Wanted",
    "WordMaps",
    "facts_of",
    "grouped",
    "iou",
    "overlay",
    "places_of",
    "pointing",
    "sheet",
]
