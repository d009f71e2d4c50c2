"""Embeddings for another model: SD1.5 to SDXL and back, with a confidence for each vector."""

from ti_fix.convert.converter import Conversion, ConvertConfig, Converter, Row, to_sd15

__all__ = ["Conversion", "ConvertConfig", "Converter", "Row", "to_sd15"]
