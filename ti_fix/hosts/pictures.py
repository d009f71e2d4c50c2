"""One picture by the WebUI that runs us, with vectors that stand in no file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from modules import processing, shared

from ti_fix.embedding import Embedding
from ti_fix.errors import TiFixError
from ti_fix.hosts.host_model import HostModel
from ti_fix.hosts.text_path import Placeholder, all_triggers
from ti_fix.protocols import ImageRequest

SAMPLER = "Euler"


def generate(model: HostModel, request: ImageRequest, forget_prompts: Callable[[], None]) -> Any:
    """A PIL image, made as the WebUI makes its own; nothing is saved and no script takes part.

    Args:
        model: the loaded model; what was borrowed of it is given back first.
        request: what to make.
        forget_prompts: empties the host's prompt caches, whose keys say nothing of the contents of embeddings.

    Raises:
        TiFixError: the user has interrupted it, or has loaded another model.
    """
    model.ensure_loaded()  # or the embeddings would stand in encoders that are not asked
    model.give_back()
    # newer hosts keep the spacing of the steps apart from the sampler
    spacing = {"scheduler": "Automatic"} if hasattr(processing.StableDiffusionProcessing, "scheduler") else {}
    p = processing.StableDiffusionProcessingTxt2Img(
        sd_model=shared.sd_model,
        prompt=request.prompt,
        negative_prompt=request.negative_prompt,
        seed=request.seed,
        steps=request.steps,
        cfg_scale=request.cfg_scale,
        width=request.width,
        height=request.height,
        sampler_name=SAMPLER,
        batch_size=1,
        n_iter=1,
        do_not_save_samples=True,
        do_not_save_grid=True,
        do_not_reload_embeddings=True,
        **spacing,
    )
    embeddings = [_placeholder(model, each) for each in request.embeddings]
    try:
        forget_prompts()
        with all_triggers(model.text.encoders, embeddings):
            images = processing.process_images(p).images
    finally:
        forget_prompts()
        p.close()
    if not images:
        raise TiFixError("The picture was interrupted.")
    return images[0]


def _placeholder(model: HostModel, embedding: Embedding) -> Placeholder:
    made = Placeholder(embedding.name, embedding.num_vectors)
    for encoder in model.text.encoders:
        if encoder.key in embedding.vectors:
            made.vec[encoder.key] = embedding.vectors[encoder.key].detach().to(encoder.device())
    return made
