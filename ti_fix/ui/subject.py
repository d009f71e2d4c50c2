"""Where the subject is in a picture that is made: the attention map of its word, for `masked_clip_i`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from ti_fix.embedding import Embedding
from ti_fix.errors import WrongUse
from ti_fix.evaluate import Candidate
from ti_fix.heatmap import Recorder, Wanted, places_of
from ti_fix.heatmap.statistics import covered
from ti_fix.protocols import Host, ImageRequest, Sizes


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

    def generate(self, request: ImageRequest) -> Any:
        """One picture, the same as without maps."""
        self._mask = None
        wanted = self._wanted(request)
        if wanted is None:
            return self._host.generate(request)
        with Recorder(self._host.model().unet) as recorder:
            recorder.expect([wanted])
            picture = self._host.generate(request)
        for found in recorder.maps():
            whole = F.interpolate(found.maps[None, :1], size=picture.size[::-1], mode="bilinear", align_corners=False)
            self._mask = Image.fromarray(covered(whole[0, 0]).numpy().astype(np.uint8) * 255)
        return picture

    def mask(self, _picture: Image.Image, _side: Candidate, _prompt: str, _seed: int) -> Image.Image | None:
        """Where the subject is in the picture that was made last; None where no word calls it."""
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
