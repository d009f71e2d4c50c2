"""What the text encoders will be given in a run: one of its captions taken apart, before anything is trained."""

from __future__ import annotations

import torch

from ti_fix.align.rebind import published_model
from ti_fix.align.tokens import TokenView, view
from ti_fix.embedding import SDXL, Embedding
from ti_fix.train import Dataset, TrainConfig
from ti_fix.train.preflight import captions_of
from ti_fix.ui.host import PageHost


def token_view(host: PageHost, config: TrainConfig, data: Dataset) -> TokenView | None:
    """The first picture's caption with the embedding in it, in both encoders; None without a picture.

    Raises:
        TiFixError: the template cannot be used, or the embedding does not fit one chunk.
    """
    captions = captions_of(config, data)
    if not captions:
        return None
    model = host.text_model() or published_model(host.family() or SDXL)
    rows = {encoder.spec.key: torch.zeros(config.vectors, 1) for encoder in model.encoders}
    return view(model, captions[0][0], {config.name: Embedding(name=config.name, vectors=rows)})
