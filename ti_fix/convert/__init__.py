"""Embeddings for another model: SD1.5 to SDXL and back, between checkpoints, with a confidence for each vector."""

from ti_fix.convert.at_load import FastHalf
from ti_fix.convert.batch import Target, convert
from ti_fix.convert.config import L_ONLY, MATCH, ConvertConfig
from ti_fix.convert.converter import Converter
from ti_fix.convert.down import to_sd15
from ti_fix.convert.matching import MatchEvent
from ti_fix.convert.move import moved
from ti_fix.convert.result import KEPT, Conversion, Row

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
