"""The shipped packs: they rebuild bit for bit, load as ordinary modules, and do what they are for."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from ti_fix.small import captions, judges, latents, load, models, packs, scenes
from ti_fix.small.clip import clip_judge, similarity
from ti_fix.small.generate import Painter


def packed(name: str) -> bool:
    return (packs.FOLDER / f"{name}.safetensors").exists()


AVAILABLE = [n for n in models.NAMES if packed(n)]
needs_judge = pytest.mark.skipif(not packed("judge"), reason="the scene judge is not trained yet")
needs_clip = pytest.mark.skipif(not packed("clip"), reason="the CLIP judge is not trained yet")


def rendered(count: int, seed: int) -> tuple[list[captions.Described], np.ndarray]:
    rng = random.Random(seed)
    described = [captions.draw(rng, 0.4) for _ in range(count)]
    return described, np.stack([scenes.render(d.scene) for d in described])


@pytest.mark.parametrize("encoder", ["clip_l", "clip_g"])
def test_token_table_is_trained_rows_in_seeded_noise(encoder: str) -> None:
    table, known = packs.token_table(encoder), packs.token_rows(encoder)
    assert table.shape == (49408, 64)
    assert table.dtype == torch.float16
    assert torch.equal(table, packs.token_table(encoder))
    assert torch.equal(table[known.ids], known.rows)
    counts = packs.picture_counts(encoder)
    assert int((counts > 0).sum()) > 4000
    filler = table[counts == 0].float().norm(dim=1).mean()
    copies, real = {"clip_l": (12, 0.37), "clip_g": (20, 0.58)}[encoder]
    assert filler * copies**0.5 == pytest.approx(real, rel=0.03)
    words = known.rows[known.pictures >= 6].float().norm(dim=1).mean()
    assert words * copies**0.5 == pytest.approx(real, rel=0.06)


def test_both_towers_know_the_same_words_by_different_rows() -> None:
    left, right = packs.token_rows("clip_l"), packs.token_rows("clip_g")
    assert torch.equal(left.ids, right.ids)
    a, b = left.rows.float(), right.rows.float()
    cosine = torch.nn.functional.cosine_similarity(a - a.mean(0), b - b.mean(0), dim=1)
    assert cosine.abs().mean() < 0.2


def test_packing_twice_gives_the_same_bytes(tmp_path: object) -> None:
    tensors = {"a": torch.arange(6).float().reshape(2, 3), "ids": torch.arange(3, dtype=torch.int32)}
    first, second = (packs.write_pack(n, tensors, {"x": 1}, tmp_path) for n in ("one", "two"))  # type: ignore[arg-type]
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("name", AVAILABLE)
def test_every_model_loads(name: str) -> None:
    model = load(name)
    assert model.family in ("sdxl", "sd15")
    wanted = {"sdxl": 128, "sd15": 64}[model.family]
    assert model.unet.config.cross_attention_dim == wanted
    for key, encoder in model.text_encoders.items():
        assert encoder.get_input_embeddings().weight.shape == (49408, 64)
        assert model.trained_rows[key].sum() > 2000
    assert not any(p.requires_grad for m in models.modules(model).values() for p in m.parameters())
    sizes = sum((packs.FOLDER / f"{n}.safetensors").stat().st_size for n in AVAILABLE)
    assert sizes < 25e6


def test_unknown_model_is_named_in_the_error() -> None:
    with pytest.raises(KeyError, match="sdxl-twin"):
        load("flux")


@torch.no_grad()
def test_autoencoder_keeps_pictures_and_its_latents_have_the_hosts_scale() -> None:
    x = torch.from_numpy(rendered(12, 3)[1]).permute(0, 3, 1, 2).float() / 127.5 - 1
    for family, scale in latents.VAE_SCALE.items():
        vae = models.load_vae(family)
        z = vae.encode(x).latent_dist.mean
        assert float((z * scale).std()) == pytest.approx(1, abs=0.15)
        error = (vae.decode(z).sample.clamp(-1, 1) - x).square().mean()
        assert 10 * torch.log10(4 / error) > 21  # dB


@needs_judge
def test_scene_judge_reads_renders() -> None:
    described, pictures = rendered(300, 9)
    scores = judges.obedience(described, judges.read(pictures))
    assert scores["background"] > 0.98
    assert scores["colour"] > 0.95
    assert scores["shape"] > 0.93


@needs_clip
def test_clip_judge_knows_colour_and_shape_and_prefers_the_true_caption() -> None:
    described, pictures = rendered(64, 10)
    texts = [captions.plain_caption(d, random.Random(1)) for d in described]
    cosines = similarity(pictures, texts)
    assert (cosines.argmax(1) == torch.arange(64)).float().mean() > 0.6
    assert clip_judge().visual.attnpool.c_proj.weight.shape == (64, 384)


def test_obedience_asks_only_for_words_that_the_judge_has() -> None:
    thing = scenes.Thing(shape="square", paint=scenes.Paint(hue=90), cx=0, cy=0, radius=30)
    seen = {head: np.zeros(1, np.int64) for head in judges.HEADS}
    for colour, asked in (("yellow green", False), ("red", True)):
        described = captions.compose([thing], [{"shape": "square", "colour": colour}], random.Random(0))
        found = judges.obedience([described], seen)
        assert "shape" in found
        assert ("colour" in found) == asked


@needs_judge
def test_pictures_follow_their_captions_and_not_other_ones() -> None:
    rng = random.Random(12)
    described = [captions.draw(rng, 0.0) for _ in range(24)]
    texts = [captions.plain_caption(d, rng) for d in described]
    seen = judges.read(Painter(load("sdxl")).paint(texts))
    own = judges.obedience(described, seen)
    shuffled = judges.obedience(described[1:] + described[:1], seen)
    assert own["background"] > 0.8
    assert own["colour"] > 0.7
    assert own["background"] > shuffled["background"] + 0.4
