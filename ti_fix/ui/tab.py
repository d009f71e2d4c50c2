"""The TI Fix tab with its pages."""

from __future__ import annotations

from typing import Any

import gradio as gr

from ti_fix import __version__
from ti_fix.ui import compat, files, model
from ti_fix.ui.desk import desk_of
from ti_fix.ui.host import PageHost
from ti_fix.ui.words import TEXTS


def build(host: PageHost) -> list[tuple[Any, str, str]]:
    """See `ti_fix.ui.build`."""
    desk = desk_of(host)
    with gr.Blocks(analytics_enabled=False) as blocks, gr.Column(elem_id="ti_fix_root"):
        with gr.Tabs(elem_id="ti_fix_tabs"):
            with gr.Tab(TEXTS["files"], elem_id="ti_fix_files"):
                files.build(desk)
            with gr.Tab(TEXTS["model"], elem_id="ti_fix_model") as page:
                model.build(desk, page)
        compat.html("ti_fix_about", f"<p>ti_fix {__version__}</p>")
    return [(blocks, TEXTS["tab"], "ti_fix")]
