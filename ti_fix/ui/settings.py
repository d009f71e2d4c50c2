"""The section "TI Fix" of the WebUI's settings page, made from the fields of `Policy`."""

from __future__ import annotations

from typing import Any, Protocol

import gradio as gr

from ti_fix.options import options
from ti_fix.repair.on_load import Policy

PREFIX = "ti_fix_"


class SettingsPage(Protocol):
    """The part of a host that settings need."""

    def add_setting(self, key: str, default: Any, label: str, help_text: str, component: Any, arguments: Any) -> None:
        """Put one setting on the page."""


def register(page: SettingsPage) -> None:
    """Put every setting on the page; called when the WebUI collects settings."""
    for each, about in options(Policy):
        component = gr.Radio if about.choices else None
        arguments = {"choices": list(about.choices)} if about.choices else None
        page.add_setting(PREFIX + each.name, each.default, about.label, about.help, component, arguments)
