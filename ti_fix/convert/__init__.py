"""Embeddings for another model: SD1.5 to SDXL and back, between checkpoints, with a confidence for each vector."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ti_fix.on_demand import on_demand

if TYPE_CHECKING:
    from ti_fix.convert.at_load import FastHalf
    from ti_fix.convert.batch import Target, convert
    from ti_fix.convert.config import KEPT, L_ONLY, MATCH, ConvertConfig
    from ti_fix.convert.converter import Converter
    from ti_fix.convert.down import to_sd15
    from ti_fix.convert.matching import MatchEvent
    from ti_fix.convert.move import moved
    from ti_fix.convert.result import Conversion, Row
else:
    __getattr__ = on_demand(
        __name__,
        {
            "at_load": "FastHalf",
            "batch": "Target convert",
            "config": "KEPT L_ONLY MATCH ConvertConfig",
            "converter": "Converter",
            "down": "to_sd15",
            "matching": "MatchEvent",
            "move": "moved",
            "result": "Conversion Row",
        },
    )

__all__ = [
    "KEPT",
    "L_ONLY",
    "MATCH",
    "Conversion",
    "ConvertConfig",
    "Converter",
    "FastHalf",
    "MatchEvent",
    "Row",
    "Target",
    "convert",
    "moved",
    "to_sd15",
]
