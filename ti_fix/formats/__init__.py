"""Bytes <-> `Embedding`: every layout that a trainer or tool has written."""

from ti_fix.formats.pairs import pair_key, read_many
from ti_fix.formats.read import Parsed, extract, files_in, read

__all__ = ["Parsed", "extract", "files_in", "pair_key", "read", "read_many"]
