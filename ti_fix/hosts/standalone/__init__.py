"""The standalone host: SDXL and SD1.5 models from disk, without a WebUI.

A name is imported when it is asked for: diffusers takes seconds, and the pages can be shown before a model is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ti_fix.on_demand import on_demand

if TYPE_CHECKING:
    from ti_fix.hosts.standalone.checkpoint import load_checkpoint
    from ti_fix.hosts.standalone.host import StandaloneHost
    from ti_fix.hosts.standalone.load import Parts, load_folder, parts_of_small
    from ti_fix.hosts.standalone.model import ModelParts, StandaloneModel
    from ti_fix.hosts.standalone.page import StandalonePage
    from ti_fix.hosts.standalone.text_side import running, text_model_of_small
else:
    __getattr__ = on_demand(
        __name__,
        {
            "checkpoint": "load_checkpoint",
            "host": "StandaloneHost",
            "load": "Parts load_folder parts_of_small",
            "model": "ModelParts StandaloneModel",
            "page": "StandalonePage",
            "text_side": "running text_model_of_small",
        },
    )

__all__ = [
    "ModelParts",
    "Parts",
    "StandaloneHost",
    "StandaloneModel",
    "StandalonePage",
    "load_checkpoint",
    "load_folder",
    "parts_of_small",
    "running",
    "text_model_of_small",
]
