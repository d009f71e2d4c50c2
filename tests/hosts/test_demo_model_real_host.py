"""Expanded small models in an installed WebUI: the same pictures as the small form makes here.

Name the WebUI's folder in TI_FIX_HOST, its Python in TI_FIX_HOST_PYTHON and flags that it needs in TI_FIX_HOST_FLAGS
(``--use-cpu all --no-half``). It runs in a data folder of its own and nothing in the installation is changed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.hosts.tiny_models import small
from tests.hosts.webui_process import Installation, Webui
from ti_fix.embedding import Embedding
from ti_fix.hosts.standalone import StandaloneHost, StandaloneModel, parts_of_small
from ti_fix.protocols import ImageRequest
from ti_fix.small.expand import unfold
from ti_fix.small.write_checkpoint import write_demo_model

FOLDER = Path(os.environ.get("TI_FIX_HOST", "no folder"))
MODELS = ("sdxl", "sd15")
ASKED = (
    ImageRequest(prompt="a red tower", width=128, height=128, steps=10, cfg_scale=4.0, seed=3),
    ImageRequest(
        prompt="a (red:1.3) tower BREAK [boat], " + "cat, " * 40 + "\\(night\\)",
        negative_prompt="blurry",
        width=64,
        height=128,
        steps=10,
        cfg_scale=4.0,
        seed=4,
    ),
    ImageRequest(prompt="(zqxdemo:1.2), a boat", width=128, height=128, steps=10, cfg_scale=4.0, seed=5),
)

pytestmark = [
    pytest.mark.real_host,
    pytest.mark.loopback,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not (FOLDER / "launch.py").is_file(), reason="no installed WebUI in TI_FIX_HOST"),
]


@pytest.fixture(scope="module")
def embedding() -> Embedding:
    """Vectors for SDXL at the small widths, strong enough to change a picture."""
    generator = torch.Generator().manual_seed(5)
    return Embedding(
        name="zqxdemo", vectors={key: torch.randn(3, 64, generator=generator) * 0.08 for key in ("clip_l", "clip_g")}
    )


@pytest.fixture
def webui(tmp_path: Path, embedding: Embedding) -> Iterator[Webui]:
    """The host with both demo models and the embedding at its real widths."""
    forge = (FOLDER / "backend").is_dir()
    models, data = tmp_path / "models", tmp_path / "data"
    for name in MODELS:
        write_demo_model(small(name), "forge" if forge else "a1111", models / f"demo_{name}.safetensors")
    (data / "embeddings").mkdir(parents=True)
    wide = {key: block.contiguous() for key, block in unfold(embedding).vectors.items()}
    save_file(wide, data / "embeddings" / "zqxdemo.safetensors")
    what = Installation(
        FOLDER,
        Path(os.environ.get("TI_FIX_HOST_PYTHON", sys.executable)),
        models,
        extensions=(Path(__file__).parent / "demo_matcher",) if forge else (),
        flags=tuple(os.environ.get("TI_FIX_HOST_FLAGS", "").split()),
    )
    with Webui(what, data, "demo_sdxl.safetensors", own=None) as running:
        yield running


def test_pictures_are_those_of_the_small_form(webui: Webui, embedding: Embedding) -> None:
    """Within one level of 255: the host cuts where we round, and half precision rounds the divided weights."""
    for name in MODELS:
        webui.options(sd_model_checkpoint=f"demo_{name}.safetensors")
        here = StandaloneHost(StandaloneModel(parts_of_small(small(name))))
        for request in ASKED:
            with_vectors = replace(request, embeddings=(embedding,) if name == "sdxl" else ())
            expected = np.asarray(here.generate(with_vectors), dtype=int)
            found = webui.picture(
                request.prompt,
                negative_prompt=request.negative_prompt,
                width=request.width,
                height=request.height,
                steps=request.steps,
                cfg_scale=request.cfg_scale,
                seed=request.seed,
            )
            assert expected.std() > 20
            assert np.abs(found.pixels - expected).max() <= 1, (name, request.prompt)
