"""Bytes <-> `Embedding`: every layout that a trainer or tool has written."""

from ti_fix.formats.pairs import read_many
from ti_fix.formats.read import Parsed, extract, files_in, read

__all__ = ["Parsed", "extract", "files_in", "read", "read_many"]
