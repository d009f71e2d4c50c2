"""The standalone host: SDXL and SD1.5 models from disk, without a WebUI."""

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
