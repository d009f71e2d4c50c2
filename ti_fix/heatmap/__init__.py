"""Where in a picture each word of its prompt acted: exact cross-attention maps."""

from ti_fix.heatmap.capture import MapSettings, Recorder, Wanted, WordMaps
from ti_fix.heatmap.places import places_of
from ti_fix.heatmap.render import overlay, sheet
from ti_fix.heatmap.statistics import MapFacts, facts_of, grouped, iou, pointing

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
