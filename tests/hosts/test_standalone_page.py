from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.hosts.tiny_models import tiny_sdxl
from tests.train.making import model
from ti_fix.align import align
from ti_fix.embedding import SD15, SDXL
from ti_fix.hosts.standalone import StandaloneHost, StandaloneModel, StandalonePage


def page(load, **more):
    return StandalonePage(
        load, embedding_folders=[], fit=lambda e: f"fit {e}", publish=lambda e: f"published {e}", **more
    )


def test_the_model_is_loaded_once_when_it_is_first_needed():
    loads = []
    made = page(lambda: loads.append(1) or StandaloneHost(model()), size=128)
    assert (made.family(), made.picture_size(), loads) == (None, 128, [])
    threads = [threading.Thread(target=made.training_host) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert loads == [1] and made.family() == SDXL
    unet = model().unet
    assert made.picture_size() == unet.config.sample_size * model().latent_scale


@pytest.mark.parametrize(("family", "size"), [(SDXL, 1024), (SD15, 512)])
def test_a_checkpoint_that_does_not_tell_its_size_has_that_of_its_family(family, size):
    made = StandaloneModel(tiny_sdxl())
    made._parts.unet.register_to_config(sample_size=None)
    made._parts = replace(made._parts, family=family)
    assert made.picture_size == size


def test_embeddings_are_read_again_only_where_there_is_a_model():
    refreshed = []
    made = page(lambda: SimpleNamespace(refresh_embeddings=lambda: refreshed.append(1), run=lambda work: work()))
    made.refresh_embeddings()
    assert refreshed == []
    assert made.run(lambda: 7) == 7
    made.refresh_embeddings()
    assert refreshed == [1]


def test_embeddings_go_to_the_models_widths_and_back():
    made = page(lambda: None)
    assert (made.fit("e"), made.publish("e")) == ("fit e", "published e")
    assert not made.exposed() and not made.interrupted() and made.api_credentials() == ()


def test_the_model_page_is_told_of_the_machine_before_and_of_the_model_after():
    made = page(lambda: StandaloneHost(StandaloneModel(tiny_sdxl("epsilon"))))
    assert made.text_model() is None and made.seen_at_load() is None and not made.extra_rows()
    assert "torch" in dict(made.environment()) and "device" not in dict(made.environment())
    made.training_host()
    text = made.text_model()
    assert [e.spec.key for e in text.encoders] == ["clip_l", "clip_g"]
    assert align(text, quick=True).light == "green"
    about = dict(made.environment())
    assert (about["device"], about["encoder_dtype"], about["unet_dtype"]) == ("cpu", "float32", "float32")
