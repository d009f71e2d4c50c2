"""The standalone host: SDXL and SD1.5 models from disk, without a WebUI.

A name is imported when it is asked for: diffusers takes seconds, and the pages can be shown before a model is there.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ti_fix.hosts.standalone.checkpoint import load_checkpoint
    from ti_fix.hosts.standalone.host import StandaloneHost
    from ti_fix.hosts.standalone.load import Parts, load_folder, parts_of_small
    from ti_fix.hosts.standalone.model import ModelParts, StandaloneModel
    from ti_fix.hosts.standalone.page import StandalonePage
    from ti_fix.hosts.standalone.text_side import running, text_model_of_small

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

_CHECKPOINT, _HOST, _LOAD, _MODEL, _PAGE, _TEXT = (
    partial(import_module, "ti_fix.hosts.standalone.checkpoint"),
    partial(import_module, "ti_fix.hosts.standalone.host"),
    partial(import_module, "ti_fix.hosts.standalone.load"),
    partial(import_module, "ti_fix.hosts.standalone.model"),
    partial(import_module, "ti_fix.hosts.standalone.page"),
    partial(import_module, "ti_fix.hosts.standalone.text_side"),
)

_MODULES = {
    "ModelParts": _MODEL,
    "Parts": _LOAD,
    "StandaloneHost": _HOST,
    "StandaloneModel": _MODEL,
    "StandalonePage": _PAGE,
    "load_checkpoint": _CHECKPOINT,
    "load_folder": _LOAD,
    "parts_of_small": _LOAD,
    "running": _TEXT,
    "text_model_of_small": _TEXT,
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_MODULES[name](), name)
