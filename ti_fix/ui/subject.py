"""Where the subject is in a picture that is made: the attention map of its word, to look at and for `masked_clip_i`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from ti_fix.embedding import Embedding
from ti_fix.errors import WrongUse
from ti_fix.evaluate import Candidate
from ti_fix.evaluate.report_page import picture_data, shown
from ti_fix.heatmap import MapFacts, Recorder, Wanted, WordMaps, facts_of, overlay, places_of
from ti_fix.heatmap.statistics import covered
from ti_fix.protocols import Host, ImageRequest, Sizes

MOST_SEEN = 60
"""Overlays that are kept to be shown; masks are found for all pictures."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seen:
    """The map of a word in one picture.

    Attributes:
        label: of the side.
        prompt, seed: the picture was made from.
        overlay: the map over the picture.
        facts: its numbers.
    """

    label: str
    prompt: str
    seed: int
    overlay: Image.Image
    facts: MapFacts


class SubjectFinder:
    """Makes pictures with the host and keeps the map of each side's word.

    Args:
        host: makes the pictures.
        fit: brings an embedding to the model's widths.
        word: looked for in prompts that call no embedding.
    """

    def __init__(self, host: Host, fit: Callable[[Embedding], Embedding], word: str) -> None:
        self._host, self._fit, self._word = host, fit, word
        self._mask: Image.Image | None = None
        self._map: WordMaps | None = None
        self.seen: list[Seen] = []

    def generate(self, request: ImageRequest) -> Any:
        """One picture, the same as without maps."""
        self._mask = self._map = None
        wanted = self._wanted(request)
        if wanted is None:
            return self._host.generate(request)
        with Recorder(self._host.model().unet) as recorder:
            recorder.expect([wanted])
            picture = self._host.generate(request)
        for found in recorder.maps():
            whole = F.interpolate(found.maps[None, :1], size=picture.size[::-1], mode="bilinear", align_corners=False)
            self._mask, self._map = Image.fromarray(covered(whole[0, 0]).numpy().astype(np.uint8) * 255), found
        return picture

    def mask(self, picture: Image.Image, side: Candidate, prompt: str, seed: int) -> Image.Image | None:
        """Where the subject is in the picture that was made last; None where no word calls it."""
        if self._map is not None and len(self.seen) < MOST_SEEN:
            (facts,) = facts_of(self._map)
            over = overlay(picture, self._map.maps[0])
            self.seen.append(Seen(label=side.label, prompt=prompt, seed=seed, overlay=over, facts=facts))
        return self._mask

    def _wanted(self, request: ImageRequest) -> Wanted | None:
        word = request.embeddings[0].name if request.embeddings else self._word
        rows = {each.name: each.num_vectors for each in request.embeddings}
        try:
            places = places_of(request.prompt, [word], rows)
        except WrongUse:
            return None
        model, size = self._host.model(), (request.height, request.width)
        vectors = {each.name: each.vectors for each in map(self._fit, request.embeddings)}
        with torch.no_grad():
            told = model.encode_prompts([request.prompt], vectors, [Sizes(original=size, target=size)])
        return Wanted(picture=0, context=told.context[0], places=places)


def drawn(seen: Sequence[Seen]) -> str:
    """The maps as HTML: a row a prompt and seed, a column a side."""
    labels = list(dict.fromkeys(each.label for each in seen))
    rows: dict[tuple[str, int], dict[str, Seen]] = {}
    for each in seen:
        rows.setdefault((each.prompt, each.seed), {})[each.label] = each
    head = "".join(f"<th>{shown(label)}</th>" for label in labels)
    lines = [
        f"<tr><td>{shown(prompt)}<small>seed {seed}</small></td>{''.join(_cell(found.get(e)) for e in labels)}</tr>"
        for (prompt, seed), found in rows.items()
    ]
    return f'<div class="wide"><table class="pictures"><tr><th></th>{head}</tr>{"".join(lines)}</table></div>'


def _cell(each: Seen | None) -> str:
    if each is None:
        return "<td></td>"
    told = f"mass {each.facts.mass:.4f}, spread {each.facts.entropy:.2f}"
    return f'<td><img alt="" src="{picture_data(each.overlay)}"><small>{told}</small></td>'
