"""Bytes <-> `Embedding`: every layout that a trainer or tool has written."""
