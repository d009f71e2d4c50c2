"""``ti-fix ui``: the pages without a WebUI, on a model from disk or the small one that ships with ti_fix."""

from __future__ import annotations

import argparse
import sys
import threading
import webbrowser
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ti_fix.cli.standalone import add_model_arguments, open_host, widths_of
from ti_fix.errors import TiFixError, WrongUse

PORT = 7870
SMALL_SIZE, FULL_SIZE = 128, 1024
"""Pixels of the pictures that the small models and SDXL are made for, until the model is there to tell."""


def register(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("ui", help="the pages in a browser, without a WebUI")
    add_model_arguments(parser, default="small:sdxl")
    parser.add_argument(
        "--embeddings", metavar="FOLDER", default="embeddings", help="where embeddings lie and new ones are written"
    )
    parser.add_argument("--loras", metavar="FOLDER", help="LoRAs, which may carry embeddings")
    parser.add_argument("--port", type=int, default=PORT, help=f"of the address on this computer (default: {PORT})")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    serve(arguments).block_thread()
    return 0


def serve(arguments: argparse.Namespace) -> Any:
    """Start the pages; the model is loaded meanwhile.

    Raises:
        WrongUse: Gradio is missing, or there is no such model.
    """
    if find_spec("gradio") is None:
        raise WrongUse("Gradio is not installed here; start the pages with: python3 run.py ui")
    from ti_fix.cli.judging import small_judge
    from ti_fix.hosts.standalone import StandalonePage
    from ti_fix.ui.app import serve as serve_pages

    if not arguments.model.startswith("small:") and not Path(arguments.model).exists():
        raise WrongUse(f"{arguments.model} does not exist; give a checkpoint or a diffusers folder (--model).")
    folder = Path(arguments.embeddings).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    widths = widths_of(arguments.model)
    host = StandalonePage(
        lambda: open_host(arguments, [folder]),
        embedding_folders=[folder],
        lora_folders=[Path(arguments.loras).resolve()] if arguments.loras else [],
        fit=widths.fit,
        publish=widths.publish,
        judge=small_judge if arguments.model.startswith("small:") else lambda: None,
        size=SMALL_SIZE if arguments.model.startswith("small:") else FULL_SIZE,
    )

    def load() -> None:
        with suppress(TiFixError):  # told again, on the page, by what needs the model
            host.training_host()

    def started(url: str) -> None:
        _started(url, browser=not arguments.no_browser)
        threading.Thread(target=load, name="ti_fix model", daemon=True).start()

    return serve_pages(host, port=arguments.port, started=started)


def _started(address: str, *, browser: bool) -> None:
    print(f"ti_fix is at {address} (Ctrl-C ends it)", file=sys.stderr, flush=True)
    if browser:
        webbrowser.open(address)
