"""Both kinds of tower against open_clip itself, where it is installed; the small judge against its own model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from ti_fix.evaluate.clip_tower import ClipTower, shape_of
from ti_fix.evaluate.features import from_state, wrap_open_clip
from ti_fix.evaluate.texts import batch_of
from ti_fix.small import clip as small

open_clip = pytest.importorskip("open_clip", exc_type=ImportError)

SHAPES = {
    "vit": {"image_size": 32, "layers": 2, "width": 128, "patch_size": 8},
    "resnet": {"image_size": 64, "layers": [1, 2, 1, 1], "width": 16, "head_width": 64},
}


@pytest.fixture(params=["vit", "resnet"])
def model(request):
    torch.manual_seed(0)
    text = {"context_length": 77, "vocab_size": 49408, "width": 128, "heads": 2, "layers": 2}
    made = open_clip.model.CLIP(48, SHAPES[request.param], text, quick_gelu=request.param == "resnet").eval()
    for name, tensor in made.state_dict().items():
        if tensor.is_floating_point() and name.endswith(("running_mean", "bias")):
            tensor.normal_(0, 0.1)
    return made


def test_towers_equal_open_clip(model):
    state, side = model.state_dict(), model.visual.image_size
    side = side[0] if isinstance(side, tuple) else side
    quick = "visual.attnpool.positional_embedding" in state
    tower = ClipTower(shape_of(state, quick_gelu=quick), state)
    pixels, (ids, _, _) = torch.randn(3, 3, side, side), batch_of(["a red circle", "word"], 77)
    with torch.no_grad():
        assert torch.allclose(tower.encode_image(pixels), model.encode_image(pixels, normalize=True), atol=1e-6)
        assert torch.allclose(tower.encode_text(ids), model.encode_text(ids, normalize=True), atol=1e-6)


def test_pictures_are_prepared_as_open_clip_does_it(model):
    side = model.visual.image_size
    side = side[0] if isinstance(side, tuple) else side
    transform = open_clip.image_transform(side, is_train=False)
    judge = wrap_open_clip(model, open_clip.get_tokenizer("ViT-B-32"), "random")
    for size in ((90, 70), (70, 91), (33, 200)):
        picture = Image.fromarray(np.random.RandomState(0).randint(0, 256, (size[1], size[0], 3), dtype=np.uint8))
        expected = transform(picture)
        found = judge._preprocessing.pixels([picture])[0]
        assert torch.allclose(found, expected, atol=1e-6)
    assert judge.texts(["a", "b"]).shape == (2, 48)


def test_the_small_judges_layout_is_open_clips():
    config = {k: v for k, v in small.CONFIG.items() if k != "embed_dim"}
    made = open_clip.model.CLIP(small.CONFIG["embed_dim"], config["vision_cfg"], config["text_cfg"]).eval()
    tower = from_state(made.state_dict(), "random", small.CONFIG)
    pixels = torch.randn(2, 3, small.CONFIG["vision_cfg"]["image_size"], small.CONFIG["vision_cfg"]["image_size"])
    with torch.no_grad():
        assert torch.allclose(tower._tower.encode_image(pixels), made.encode_image(pixels, normalize=True), atol=1e-6)
