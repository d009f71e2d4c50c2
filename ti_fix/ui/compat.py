"""The one place that knows Gradio 3.41 (AUTOMATIC1111, Forge Classic) from Gradio 4.40 (Forge)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

GRADIO_4 = int(gr.__version__.partition(".")[0]) >= 4


def on(
    event: Callable[..., Any],
    handler: Callable[..., Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    *,
    js: str = "",
    queue: bool = False,
) -> None:
    """Join an event of a component to a handler.

    Args:
        event: bound method such as ``button.click``.
        handler: takes the inputs in order, returns (or yields) as many values as there are outputs.
        inputs: components that are read.
        outputs: components that are written.
        js: JavaScript function that the inputs pass through in the browser.
        queue: needed by handlers that yield.
    """
    more: dict[str, Any] = {"queue": queue, "show_progress": "hidden", "api_name": False}
    if js:
        more["js" if GRADIO_4 else "_js"] = js
    if GRADIO_4:
        more["concurrency_limit"] = None  # by default one window would wait for the other
    event(fn=handler, inputs=list(inputs), outputs=list(outputs), **more)


def on_load(blocks: Any, js: str) -> None:
    """Run JavaScript (a function) when the page is opened."""
    blocks.load(fn=None, inputs=None, outputs=None, **{"js" if GRADIO_4 else "_js": js})


def queue(blocks: Any) -> None:
    """Let handlers that yield run beside each other; Gradio 3 would run one after the other."""
    if GRADIO_4:
        blocks.queue(default_concurrency_limit=None)
    else:
        blocks.queue(concurrency_count=40)


def update(**values: Any) -> Any:
    """New properties for a component; without any it stays as it is."""
    return gr.update(**values)


def html(elem_id: str, value: str = "", **more: Any) -> Any:
    """A piece of HTML."""
    return gr.HTML(value=value, elem_id=elem_id, **more)
