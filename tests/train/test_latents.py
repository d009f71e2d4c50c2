"""The latent cache: what it is keyed by, what it takes, what it survives; and the order of batches."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from tests.hosts.tiny_models import tiny_sdxl
from tests.train.making import config, image, model, pictures
from ti_fix.errors import TiFixError
from ti_fix.hosts.standalone import StandaloneModel
from ti_fix.train import from_images
from ti_fix.train.buckets import views
from ti_fix.train.latents import Encoder, LatentCache, fingerprint
from ti_fix.train.order import Order


class Counting:
    """A model that counts the pictures it encodes."""

    def __init__(self, inner):
        self.inner, self.encoded = inner, 0

    def encode_images(self, pixels):
        self.encoded += 1
        return self.inner.encode_images(pixels)


def view_of(picture, size=(64, 64), **more):
    return views(picture, size, 64, square=False, scales=(1.0,), flip=False)[0] if not more else None


def test_each_view_is_encoded_once_and_as_the_model_does():
    counting, data = Counting(model()), pictures(2)
    cache = LatentCache(config(), counting, data.samples)
    first = counting.encoded
    for _ in range(3):
        found = [cache.get(view_of(i)) for i in (0, 1)]
    assert counting.encoded == first + 2
    from ti_fix.train.pictures import to_pixels

    torch.testing.assert_close(found[0].latents, model().encode_images(to_pixels(image(0))))
    assert found[0].weights is None


def test_memory_is_bounded():
    counting, data = Counting(model()), pictures(6)
    small = replace(config(), cache_mb=1)
    cache = LatentCache(small, counting, data.samples)
    one = cache.get(view_of(0)).latents.numel() * 4
    object.__setattr__(small, "cache_mb", 3.5 * one / 1_000_000)
    for i in range(6):
        cache.get(view_of(i))
    assert cache.bytes == 3 * one
    before = counting.encoded
    cache.get(view_of(5))
    cache.get(view_of(0))
    assert counting.encoded == before + 1


def test_the_disk_cache_survives_and_damage_is_encoded_again(tmp_path):
    data = pictures(1)
    first = LatentCache(config(), model(), data.samples, tmp_path).get(view_of(0))
    counting = Counting(model())
    cache = LatentCache(config(), counting, data.samples, tmp_path)
    probe = counting.encoded
    assert torch.equal(cache.get(view_of(0)).latents, first.latents) and counting.encoded == probe
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:50])
    again = LatentCache(config(), counting, data.samples, tmp_path).get(view_of(0))
    assert torch.equal(again.latents, first.latents) and counting.encoded == probe + 2


def test_two_vaes_never_share_a_file(tmp_path):
    parts = copy.deepcopy(tiny_sdxl())
    with torch.no_grad():
        parts.vae.encoder.conv_in.weight.mul_(1.05)
    other = StandaloneModel(parts)
    names = [fingerprint(Encoder(m)) for m in (model(), StandaloneModel(copy.deepcopy(tiny_sdxl())), other)]
    assert names[0] == names[1] != names[2]
    data = pictures(1)
    one = LatentCache(config(), model(), data.samples, tmp_path).get(view_of(0))
    two = LatentCache(config(), other, data.samples, tmp_path).get(view_of(0))
    assert not torch.equal(one.latents, two.latents) and len(list(tmp_path.iterdir())) == 2


def test_other_crops_and_backgrounds_have_other_keys():
    data = pictures(1)
    keys = set()
    for settings in (config(), config(background="black"), config(mask_floor=0.5), config(alpha="weight")):
        cache = LatentCache(settings, model(), data.samples)
        for view in views(0, (64, 64), 64, square=False, scales=(1.0, 0.5), flip=True):
            keys.add(cache.key(view))
    assert len(keys) == 4 * 12


def test_nan_from_the_vae_names_the_picture():
    class Broken:
        def encode_images(self, pixels):
            latents = model().encode_images(pixels)
            return latents if pixels.shape[-1] == 64 and float(pixels.std()) > 0.4 else latents * float("nan")

    data = from_images([Image.new("RGB", (64, 64))])
    with pytest.raises(TiFixError, match="picture 1 into NaN"):
        LatentCache(config(), Broken(), data.samples).get(view_of(0))


def test_weights_are_brought_to_the_latents_size():
    rgba = image(1).convert("RGBA")
    alpha = np.zeros((64, 64), np.uint8)
    alpha[:, :32] = 255
    rgba.putalpha(Image.fromarray(alpha))
    found = LatentCache(config(alpha="weight"), model(), from_images([rgba]).samples).get(view_of(0))
    assert found.weights.shape == (1, 1, 8, 8)
    assert found.weights[0, 0, :, :4].eq(1).all() and found.weights[0, 0, :, 4:].eq(0).all()


# order


def all_views(count, sizes=((64, 64),)):
    return [view_of(i, sizes[i % len(sizes)]) for i in range(count)]


def test_every_picture_comes_once_a_round():
    order = Order(all_views(5), 2, seed=3)
    seen = [v.picture for number in range(5) for v in order.batch(number)]
    assert Counter(seen[:5]) == Counter(seen[5:]) == Counter(range(5))
    assert seen[:5] != seen[5:]


def test_a_batch_depends_on_its_number_alone():
    mixed = all_views(7, ((64, 64), (40, 64), (64, 40)))
    straight = Order(mixed, 3, seed=1)
    rows = [straight.batch(i) for i in range(40)]
    for number in (39, 0, 17, 16, 18):
        assert Order(mixed, 3, seed=1).batch(number) == rows[number] == straight.batch(number)
    assert [Order(mixed, 3, seed=2).batch(i) for i in range(5)] != rows[:5]


def test_batches_have_one_size_and_buckets_their_share():
    mixed = all_views(6, ((64, 64), (64, 64), (30, 64)))
    order = Order(mixed, 2, seed=0)
    count = Counter()
    for number in range(300):
        batch = order.batch(number)
        assert len({v.target for v in batch}) == 1
        count.update(v.picture for v in batch)
    assert max(count.values()) / min(count.values()) < 1.6


def test_a_single_picture_fills_a_batch():
    assert [v.picture for v in Order(all_views(1), 8, seed=0).batch(5)] == [0] * 8
