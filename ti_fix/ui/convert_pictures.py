"""Test pictures of a conversion, where the program can draw: the name as plain text, and with the conversion."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

from ti_fix.embedding import Embedding
from ti_fix.protocols import Host, ImageRequest
from ti_fix.ui.convert_words import TEXTS
from ti_fix.ui.markup import shown

PROMPT = "a photo of {}"
SEEDS = (1, 2)
STEPS = 20

Pictures = Sequence[tuple[str, str]]
"""(what it shows, data address of a PNG)."""


def draw(host: Host, embedding: Embedding, side: int) -> Pictures:
    """Two pictures without and two with the embedding, from the same noise; squares of `side` pixels."""
    made = []
    host.model()  # that is loaded now
    for said, used in (("without", ()), ("with", (embedding,))):
        for seed in SEEDS:
            request = ImageRequest(
                prompt=PROMPT.format(embedding.name), width=side, height=side, steps=STEPS, seed=seed, embeddings=used
            )
            made.append((said, _address(host.run(lambda request=request: host.generate(request)))))  # type: ignore[misc]
    return made


def _address(picture: Any) -> str:
    written = io.BytesIO()
    picture.save(written, "PNG")
    return f"data:image/png;base64,{base64.b64encode(written.getvalue()).decode('ascii')}"


def gallery(pictures: Pictures) -> str:
    """The pictures side by side."""
    words = [(shown(TEXTS[said]), address) for said, address in pictures]
    figures = "".join(
        f'<figure><img src="{address}" alt="{word}"><figcaption>{word}</figcaption></figure>' for word, address in words
    )
    return f'<div class="pictures">{figures}</div>' if figures else ""
