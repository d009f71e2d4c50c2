"""The stages that train the small models; see :mod:`ti_fix.small.build`."""

from __future__ import annotations

import sys


def report(*parts: object) -> None:
    """Write one line of progress to the standard output."""
    sys.stdout.write(" ".join(map(str, parts)) + "\n")
    sys.stdout.flush()
