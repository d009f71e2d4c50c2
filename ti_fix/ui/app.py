"""The pages alone, without a WebUI: a Gradio app on this computer's own address."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ti_fix.errors import TiFixError
from ti_fix.ui.host import PageHost

ADDRESS = "127.0.0.1"
ROOT = Path(__file__).resolve().parents[2]
FONTS = ["system-ui", "Segoe UI", "Noto Sans", "sans-serif"]
MONOSPACE = ["ui-monospace", "Consolas", "monospace"]
"""Fonts of the computer: Gradio's own theme fetches its fonts from the internet."""


def serve(host: PageHost, *, port: int, started: Callable[[str], None]) -> Any:
    """Show the pages until the program is ended.

    Args:
        host: the program that the pages live in.
        port: where it listens; only on this computer.
        started: told the address when the pages can be opened.

    Returns:
        The running app, whose ``block_thread`` waits for the end.

    Raises:
        TiFixError: the port is taken.
    """
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    import gradio as gr
    from fastapi.middleware import Middleware

    from ti_fix.ui import compat, mount_api
    from ti_fix.ui.tab import alone
    from ti_fix.ui.words import TEXTS

    theme = gr.themes.Default(font=FONTS, font_mono=MONOSPACE)
    style = (ROOT / "style.css").read_text(encoding="utf-8") + PAGE_STYLE
    blocks = alone(host, theme=theme, css=style, title=TEXTS["tab"])
    with blocks:
        compat.on_load(blocks, f"() => {{ {(ROOT / 'javascript' / 'ti_fix.js').read_text(encoding='utf-8')} }}")
    compat.queue(blocks)
    try:
        app, address, _ = blocks.launch(
            server_name=ADDRESS,
            server_port=port,
            prevent_thread_lock=True,
            quiet=True,
            show_api=False,
            allowed_paths=[str(folder) for folder in host.embedding_folders],
            app_kwargs={"middleware": [Middleware(_FromHereAlone)]},
        )
    except OSError as error:
        hint = f"Port {port} is taken, perhaps by pages that still run; end those, or take --port {port + 1}."
        raise TiFixError(hint) from error
    mount_api(app, host)
    started(address)
    return blocks


class _FromHereAlone:
    """Tells the browser to load nothing from elsewhere: the page of Gradio asks for a script from the internet."""

    POLICY = b"default-src 'self' 'unsafe-inline' 'unsafe-eval' blob: data:"

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"content-security-policy", self.POLICY)]
            await send(message)

        await self._app(scope, receive, sent)


PAGE_STYLE = """
#ti_fix_root { max-width: 1400px; margin: 0 auto; }
#ti_fix_root [data-ti-fix-add] { display: none; }
footer { display: none !important; }
"""
"""What the page needs where no WebUI surrounds it."""
