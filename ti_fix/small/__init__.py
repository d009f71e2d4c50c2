"""Small, truly trained models, scenes with known ground truth, and judges: what the tests and benchmarks run on.

``load("sdxl")`` gives a :class:`~ti_fix.small.models.SmallModel`. Importing this package imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ti_fix.small.models import SmallModel


def load(name: str) -> SmallModel:
    """Load "sdxl", "sd15", "sdxl-v" or "sdxl-twin": see :func:`ti_fix.small.models.load`."""
    from ti_fix.small.models import load as load_model

    return load_model(name)
