"""Joins attention maps to txt2img and img2img; by its name the host executes it after `ti_fix_webui.py`."""

from __future__ import annotations

from ti_fix.hosts import maps_script
from ti_fix.hosts.maps_script import MapsScript
from ti_fix.ui.maps import MapRun, draw_controls

maps_script.install(draw=draw_controls, begin=MapRun)
__all__ = ["MapsScript"]
