"""The missing bigG half of an SD1.5 embedding at its first use in a prompt, in milliseconds: word or map."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ti_fix.embedding import CLIP_G, CLIP_L, Embedding, Vocabulary
from ti_fix.errors import TiFixError

if TYPE_CHECKING:  # the WebUI waits for this module at its start; a conversion is the first to need them
    from ti_fix.convert.dictionary import Learned

log = logging.getLogger("ti_fix")


class FastHalf:
    """Completes an embedding from the tables of the model that is loaded now.

    What was learned of the last checkpoint stays in memory (some 20 MB, none of the tables), that of others on disk.

    Args:
        cache: folder that keeps what was learned.
        otherwise: completes what is no SD1.5 embedding, and models that have not both encoders.
    """

    def __init__(self, cache: Path | None, otherwise: Callable[[Embedding, Vocabulary], Embedding]) -> None:
        self._cache, self._otherwise = cache, otherwise
        self._learned: Learned | None = None
        self._lock = threading.Lock()

    def __call__(self, embedding: Embedding, vocabulary: Vocabulary) -> Embedding:
        """The embedding with a ``clip_g`` half; its ``clip_l`` half stays the same object."""
        halves = {CLIP_L.key, CLIP_G.key}
        if embedding.vectors.keys() & halves != {CLIP_L.key} or not halves <= vocabulary.tables.keys():
            return self._otherwise(embedding, vocabulary)
        try:
            return self._by_the_map(embedding, vocabulary)
        except (TiFixError, RuntimeError) as error:  # no words in the tables, or no memory for the map
            log.warning("%s: converted by the nearest words, as the map cannot be used (%s).", embedding.name, error)
            return self._otherwise(embedding, vocabulary)

    def _by_the_map(self, embedding: Embedding, vocabulary: Vocabulary) -> Embedding:
        from ti_fix.convert.ladder import FAST, climb
        from ti_fix.convert.tables import tables_of

        left = embedding.vectors[CLIP_L.key]
        with torch.no_grad(), torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
            learned = self._known(vocabulary)
            pair = learned.pair(*tables_of(vocabulary, CLIP_L.key, CLIP_G.key))
            rungs = climb(torch.nan_to_num(left.detach().float().cpu()), pair, learned.maps, FAST)
        right = torch.stack([rung.vector for rung in rungs])
        return embedding.with_vectors({**embedding.vectors, CLIP_G.key: right})

    def _known(self, vocabulary: Vocabulary) -> Learned:
        from ti_fix.convert.dictionary import learn
        from ti_fix.convert.tables import key_of, tables_of

        with self._lock:
            key = key_of(*tables_of(vocabulary, CLIP_L.key, CLIP_G.key), vocabulary.trained)
            if self._learned is None or self._learned.key != key:
                self._learned = learn(vocabulary, CLIP_L.key, CLIP_G.key, self._cache, log.info)
            return self._learned
