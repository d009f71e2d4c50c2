"""The stand-ins keep what the real hosts are tried for; a statement that cannot fail would be none."""

from __future__ import annotations

import pytest

from tests.hosts import seams


@pytest.mark.parametrize("each", seams.STATEMENTS, ids=lambda each: each.__name__)
def test_the_stand_in_keeps_it(start, kind, each):
    webui, _ = start(kind, hooked=False)
    webui.switch("sdxl")
    each(seams.World(forge=kind == "forge"))


def test_a_host_that_has_changed_is_seen(start):
    webui, _ = start("a1111", hooked=False)
    webui.switch("sdxl")
    module = webui.modules["modules.textual_inversion.textual_inversion"]
    del module.create_embedding_from_data
    webui.modules["modules.processing"].StableDiffusionProcessing.cached_c = None
    found = seams.results(seams.World(forge=False))
    assert len(found) == len(seams.STATEMENTS)
    broken = [words for words, why in found.items() if why]
    assert any("create_embedding_from_data" in words for words in broken)
    assert any("caches" in words for words in broken)
    assert len(broken) < len(found)
