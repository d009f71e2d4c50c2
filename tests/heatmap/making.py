"""Recording on the tiny models: what a caller does to get maps."""

from __future__ import annotations

import torch

from tests.hosts.tiny_models import tiny_sdxl
from ti_fix.embedding import Embedding
from ti_fix.heatmap import MapSettings, Recorder, Wanted, places_of
from ti_fix.hosts.standalone import StandaloneHost, StandaloneModel
from ti_fix.protocols import ImageRequest, Sizes

MYCAT = Embedding(
    name="mycat",
    vectors={key: torch.randn(3, 64, generator=torch.Generator().manual_seed(7)) * 0.3 for key in ("clip_l", "clip_g")},
)
PROMPT = "a mycat and a red circle"


def host() -> StandaloneHost:
    return StandaloneHost(StandaloneModel(tiny_sdxl()))


def request(prompt=PROMPT, *, width=64, height=64, seed=0, steps=2, cfg_scale=4.0) -> ImageRequest:
    return ImageRequest(
        prompt=prompt,
        width=width,
        height=height,
        seed=seed,
        steps=steps,
        cfg_scale=cfg_scale,
        embeddings=(MYCAT,),
    )


def wanted(model, requests, words) -> list[Wanted]:
    rows = {MYCAT.name: MYCAT.num_vectors}
    found = []
    for number, each in enumerate(requests):
        size = each.height, each.width
        sizes = [Sizes(original=size, target=size)]
        with torch.no_grad():
            context = model.encode_prompts([each.prompt], {MYCAT.name: MYCAT.vectors}, sizes).context[0]
        places = words if isinstance(words, dict) else places_of(each.prompt, words, rows)
        found.append(Wanted(picture=number, context=context, places=places))
    return found


def record(requests, words, settings: MapSettings | None = None, **more):
    """Pictures and maps of requests that are made together."""
    made = host()
    with Recorder(made.model().unet, settings, steps=requests[0].steps, split=64, **more) as recorder:
        recorder.expect(wanted(made.model(), requests, words))
        pictures = made.generate_many(requests)
    return pictures, recorder.maps()
