"""The TI Fix tab with its pages."""

from __future__ import annotations

import logging
from typing import Any

import gradio as gr

from ti_fix import __version__
from ti_fix.ui import compat
from ti_fix.ui.desk import desk_of
from ti_fix.ui.guard import FAULT
from ti_fix.ui.host import PageHost
from ti_fix.ui.markup import message, shown
from ti_fix.ui.pages import pages
from ti_fix.ui.words import TEXTS

SOURCE = "/ti_fix/v1/source"
"""Route that hands out the source as it runs here: the AGPL (section 13) wants it offered to who uses it by network."""


class Tab:
    """The pages as a WebUI takes them: it asks for `render` where they are to stand.

    They are drawn straight into the WebUI's own Blocks. Blocks of one's own bring a web server with a hundred routes,
    which nobody uses: in Gradio 4 as much again as the pages (`benchmarks/startup.py`).

    Attributes:
        children: what the WebUI looks through for values that users may set.
    """

    def __init__(self, host: PageHost) -> None:
        self._host = host
        self.children: list[Any] = []

    def render(self) -> None:
        """Draw the pages; a fault in them is told in their place, and the rest of the WebUI goes on."""
        with gr.Column(elem_id="ti_fix_root") as root:
            try:
                _draw(self._host)
            except Exception:
                logging.getLogger("ti_fix").exception("the pages could not be drawn")
                compat.html("ti_fix_fault", message(FAULT, "bad"))
        self.children = [root]


def build(host: PageHost) -> list[tuple[Any, str, str]]:
    """See `ti_fix.ui.build`."""
    return [(Tab(host), TEXTS["tab"], "ti_fix")]


def alone(host: PageHost, **look: Any) -> Any:
    """The pages as a `gr.Blocks` that no WebUI surrounds; `look` (theme, css) is its own."""
    with gr.Blocks(analytics_enabled=False, **look) as blocks, gr.Column(elem_id="ti_fix_root"):
        _draw(host)
    return blocks


def _draw(host: PageHost) -> None:
    desk = desk_of(host)
    with gr.Tabs(elem_id="ti_fix_tabs"):
        for name, page in pages():
            with gr.Tab(TEXTS[name], elem_id=f"ti_fix_{name}"):
                page.build(desk)
    compat.html("ti_fix_about", _about())


def _about() -> str:
    link = f'<a href="{SOURCE}" download>{shown(TEXTS["source"])}</a>'
    return f"<p>ti_fix {__version__} · AGPL-3.0 · {link}</p>"
