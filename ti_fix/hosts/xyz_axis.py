"""An axis of the WebUI's X/Y/Z plot: one embedding after another in the same prompt, steps of a training among them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

LABEL = "[TI Fix] Embedding"
NOTHING = "None"
"""The value for the prompt without an embedding."""


def add_axis(scripts_data: Iterable[Any], names: Callable[[], Sequence[str]]) -> bool:
    """Offer the axis; once per loaded X/Y/Z plot, before its page is built.

    Args:
        scripts_data: the WebUI's list of loaded scripts.
        names: of the embeddings that prompts can call.

    Returns:
        Whether there is such a script.
    """
    modules = [each.module for each in scripts_data if each.path.replace("\\", "/").endswith("/xyz_grid.py")]
    for module in modules:
        if any(option.label == LABEL for option in module.axis_options):
            continue
        option = module.AxisOption(
            LABEL, str, apply, format_value=module.format_value, choices=lambda: [NOTHING, *names()]
        )
        module.axis_options.append(option)
    return bool(modules)


def apply(p: Any, value: str, values: Sequence[str]) -> None:
    """Put one embedding where the prompts name another of the axis; at the end of the prompt where they name none.

    Args:
        p: the picture to be made; its `prompt` and `negative_prompt` are changed.
        value: this embedding, or `NOTHING`.
        values: all of the axis.
    """
    word = "" if value == NOTHING else value
    named = sorted((each for each in values if each != NOTHING), key=len, reverse=True)
    anywhere = re.compile("|".join(rf"(?<!\w){re.escape(each)}(?![\w-])" for each in named)) if named else None
    texts = [p.prompt, p.negative_prompt]
    if anywhere and any(map(anywhere.search, texts)):
        p.prompt, p.negative_prompt = (anywhere.sub(lambda _: word, text) for text in texts)
    elif word:
        p.prompt = f"{p.prompt}, {word}" if p.prompt.strip() else word
