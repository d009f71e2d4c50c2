from __future__ import annotations

import threading
from types import SimpleNamespace

from tests.train.making import model
from ti_fix.embedding import SDXL
from ti_fix.hosts.standalone import StandaloneHost, StandalonePage


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
