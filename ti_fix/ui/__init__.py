"""The pages and the API of ti_fix. Importing this is free; Gradio and FastAPI are imported where they are used."""

from __future__ import annotations

from typing import Any

from ti_fix.ui.host import PageHost


def build(host: PageHost) -> list[tuple[Any, str, str]]:
    """The tab, as the WebUI's ``on_ui_tabs`` takes it: (what can ``render`` itself, title, element id).

    May be called again after a reload of the page; a job that runs is found again.
    """
    from ti_fix.ui.tab import build as build_tab

    return build_tab(host)


def mount_api(app: Any, host: PageHost) -> None:
    """Add the API's routes to the WebUI's app, for ``on_app_started``; see `ti_fix.ui.api` and `train_api`."""
    from ti_fix.ui import api, train_api

    api.mount(app, host)
    train_api.mount(app, host)
