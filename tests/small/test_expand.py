"""The wide form computes what the small one does: states, predictions, pictures and gradients."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.hosts.tiny_models import tiny_sd15, tiny_sdxl
from ti_fix.embedding import Embedding
from ti_fix.hosts.standalone import StandaloneHost, StandaloneModel
from ti_fix.hosts.standalone.load import Parts
from ti_fix.protocols import Conditioning, ImageRequest, Sizes
from ti_fix.small import axes
from ti_fix.small.expand import COPIES, expand, fold, unfold

SIZE = Sizes(original=(64, 64), target=(64, 64))
TOLERANCE = {"rtol": 1e-4, "atol": 2e-5}
"""float32 sums of twelve or twenty times as many terms, in another order; states are of order 1."""

MODELS = {"sdxl": tiny_sdxl, "sd15": tiny_sd15}


@cache
def wide(name: str) -> Parts:
    expanded: Parts = expand(MODELS[name]())
    return expanded


def tiled(context: Tensor, keys: tuple[str, ...]) -> Tensor:
    """A small context as the wide model has it: each encoder's part repeated."""
    return torch.cat(
        [part.repeat(1, 1, COPIES[k]) for part, k in zip(context.split(64, dim=-1), keys, strict=True)], dim=-1
    )


@pytest.mark.parametrize("name", MODELS)
def test_text_states_are_the_small_ones_repeated(name: str) -> None:
    small, big = StandaloneModel(MODELS[name]()), StandaloneModel(wide(name))
    keys = tuple(e.key for e in small.family.encoders)
    with torch.no_grad():
        a, b = (m.encode_prompts(["a (red:1.2) tower BREAK boat"], {}, [SIZE]) for m in (small, big))
    torch.testing.assert_close(b.context, tiled(a.context, keys), **TOLERANCE)
    if a.vector is not None and b.vector is not None:
        torch.testing.assert_close(b.vector[:, :1280], a.vector[:, :64].repeat(1, 20), **TOLERANCE)
        torch.testing.assert_close(b.vector[:, 1280:], a.vector[:, 64:])


def test_widths_and_heads_are_the_published_ones() -> None:
    parts = wide("sdxl")
    clip_l, clip_g = parts.text_encoders["clip_l"].config, parts.text_encoders["clip_g"].config
    assert (clip_l.hidden_size, clip_l.num_attention_heads, clip_l.intermediate_size) == (768, 12, 3072)
    assert (clip_g.hidden_size, clip_g.num_attention_heads, clip_g.intermediate_size) == (1280, 20, 5120)
    assert clip_g.projection_dim == 1280
    unet = parts.unet.config
    assert unet.cross_attention_dim == 2048 and unet.norm_num_groups == 32
    assert unet.projection_class_embeddings_input_dim == 2816
    assert {m.heads * 64 == m.inner_dim for m in parts.unet.modules() if hasattr(m, "heads")} == {True}
    assert parts.vae.config.scaling_factor == 0.13025
    sd15 = wide("sd15")
    assert sd15.unet.config.cross_attention_dim == 768 and sd15.vae.config.scaling_factor == 0.18215
    assert {m.heads for m in sd15.unet.modules() if hasattr(m, "heads")} == {8}


@pytest.mark.parametrize("name", MODELS)
def test_the_unet_predicts_the_same(name: str) -> None:
    small, big = MODELS[name](), wide(name)
    generator = torch.Generator().manual_seed(0)
    noisy, times = torch.randn(2, 4, 16, 16, generator=generator), torch.tensor([5, 700])
    keys = tuple(small.text_encoders)
    context = torch.randn(2, 77, 64 * len(keys), generator=generator)
    vector = big_vector = None
    if name == "sdxl":
        pooled, sizes = torch.randn(2, 64, generator=generator), torch.randn(2, 1536, generator=generator)
        vector, big_vector = torch.cat([pooled, sizes], -1), torch.cat([pooled.repeat(1, 20), sizes], -1)
    with torch.no_grad():
        a = StandaloneModel(small).predict(noisy, times, Conditioning(context=context, vector=vector))
        told = Conditioning(context=tiled(context, keys), vector=big_vector)
        b = StandaloneModel(big).predict(noisy, times, told)
    assert a.std() > 0.1
    torch.testing.assert_close(b, a, **TOLERANCE)


@pytest.mark.parametrize("name", MODELS)
def test_the_vae_goes_both_ways_alike(name: str) -> None:
    small, big = StandaloneModel(MODELS[name]()), StandaloneModel(wide(name))
    picture = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1
    latents = small.encode_images(picture)
    torch.testing.assert_close(big.encode_images(picture), latents, **TOLERANCE)
    torch.testing.assert_close(big.decode_latents(latents), small.decode_latents(latents), **TOLERANCE)
    with torch.no_grad():  # the spread of the posterior is scaled along
        a, b = (m._parts.vae.encode(picture).latent_dist.std for m in (small, big))
    scales = small._parts.vae.config.scaling_factor, big._parts.vae.config.scaling_factor
    torch.testing.assert_close(b * scales[1], a * scales[0], **TOLERANCE)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_summed_over_the_copies_are_the_small_ones(name: str) -> None:
    """And every copy gets the same share, so that vectors trained from equal copies stay equal."""
    noisy = torch.randn(1, 4, 16, 16, generator=torch.Generator().manual_seed(1))
    found = []
    keys = tuple(MODELS[name]().text_encoders)
    start = {k: torch.randn(2, 64, generator=torch.Generator().manual_seed(2)) * 0.05 for k in keys}
    for parts, repeat in ((MODELS[name](), dict.fromkeys(keys, 1)), (wide(name), COPIES)):
        model = StandaloneModel(parts)
        rows = {k: start[k].repeat(1, repeat[k]).requires_grad_() for k in keys}
        with model.trainable():
            told = model.encode_prompts(["a zqx tower"], {"zqx": rows}, [SIZE])
            loss = model.predict(noisy, torch.tensor([400]), told).square().mean()
        found.append(torch.autograd.grad(loss, list(rows.values())))
    for key, small, big in zip(keys, *found, strict=True):
        copies = big.reshape(2, COPIES[key], 64)
        tolerance = {"rtol": 1e-3, "atol": 1e-3 * float(small.abs().max())}  # a backward pass rounds more
        torch.testing.assert_close(copies.sum(dim=1), small, **tolerance)
        torch.testing.assert_close(copies[:, :1].expand_as(copies) * COPIES[key], copies * COPIES[key], **tolerance)


@pytest.mark.parametrize("name", MODELS)
def test_pictures_are_the_same(name: str) -> None:
    ask = ImageRequest(prompt="a red tower", width=64, height=64, steps=4, cfg_scale=4.0, seed=3)
    a, b = (
        np.asarray(StandaloneHost(StandaloneModel(p)).generate(ask), dtype=int) for p in (MODELS[name](), wide(name))
    )
    assert a.std() > 5
    assert np.abs(a - b).max() <= 1


def test_folding_undoes_unfolding_and_averages_what_differs() -> None:
    small = {"clip_l": torch.randn(3, 64), "clip_g": torch.randn(2, 64)}
    unfolded = unfold(Embedding(name="x", vectors=small))
    assert {k: tuple(v.shape) for k, v in unfolded.vectors.items()} == {"clip_l": (3, 768), "clip_g": (2, 1280)}
    for key, block in fold(unfolded).vectors.items():
        torch.testing.assert_close(block, small[key])
    assert fold(Embedding(name="x", vectors=small)).vectors["clip_l"] is small["clip_l"]
    uneven = torch.zeros(1, 768)
    uneven[0, 64] = 12.0  # the first number of the second copy
    folded = fold(Embedding(name="x", vectors={"clip_l": uneven})).vectors["clip_l"]
    assert folded[0, 0] == 1.0 and folded[0, 1:].abs().max() == 0


def test_a_folded_file_does_in_the_small_model_what_it_does_in_the_wide_one() -> None:
    generator = torch.Generator().manual_seed(0)
    small = {k: torch.randn(2, 64, generator=generator) * 0.05 for k in ("clip_l", "clip_g")}
    file = unfold(Embedding(name="zqx", vectors=small))
    with torch.no_grad():
        a = StandaloneModel(tiny_sdxl()).encode_prompts(["a zqx"], {"zqx": fold(file).vectors}, [SIZE])
        b = StandaloneModel(wide("sdxl")).encode_prompts(["a zqx"], {"zqx": file.vectors}, [SIZE])
    torch.testing.assert_close(b.context, tiled(a.context, ("clip_l", "clip_g")), **TOLERANCE)


def test_heads_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="8 heads of 8 do not fit 4 heads of 64"):
        axes.heads(64, 8, 256, 4)
