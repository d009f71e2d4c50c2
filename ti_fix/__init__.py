"""Textual Inversion for SDXL: read, repair, convert, train, evaluate."""

__version__ = "0.1.0"
