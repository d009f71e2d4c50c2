"""The TI Fix tab with its pages."""

from __future__ import annotations

from typing import Any

import gradio as gr

from ti_fix import __version__
from ti_fix.ui import compat
from ti_fix.ui.desk import desk_of
from ti_fix.ui.host import PageHost
from ti_fix.ui.markup import shown
from ti_fix.ui.pages import pages
from ti_fix.ui.words import TEXTS

SOURCE = "/ti_fix/v1/source"
"""Route that hands out the source as it runs here: the AGPL (section 13) wants it offered to who uses it by network."""


def build(host: PageHost, **look: Any) -> list[tuple[Any, str, str]]:
    """See `ti_fix.ui.build`; `look` (theme, css) is for pages that no WebUI surrounds."""
    desk = desk_of(host)
    with gr.Blocks(analytics_enabled=False, **look) as blocks, gr.Column(elem_id="ti_fix_root"):
        with gr.Tabs(elem_id="ti_fix_tabs"):
            for name, page in pages():
                with gr.Tab(TEXTS[name], elem_id=f"ti_fix_{name}"):
                    page.build(desk)
        compat.html("ti_fix_about", _about())
    return [(blocks, TEXTS["tab"], "ti_fix")]


def _about() -> str:
    link = f'<a href="{SOURCE}" download>{shown(TEXTS["source"])}</a>'
    return f"<p>ti_fix {__version__} · AGPL-3.0 · {link}</p>"
