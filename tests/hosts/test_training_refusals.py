"""What training in a WebUI cannot work with is refused in one sentence that names the flag or the model."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.hosts.standin_training import started
from ti_fix.errors import WrongUse


def refusals_of_a1111(webui):
    commands = webui.modules["modules.shared"].cmd_opts
    unet = webui.modules["modules.sd_unet"]
    model = webui.model
    return {
        "--lowvram": lambda: setattr(commands, "lowvram", True),
        "SD3": lambda: setattr(model, "is_sd3", True),
        "inpainting": lambda: setattr(model.model.diffusion_model, "in_channels", 9),
        "refiner": lambda: model.conditioner.embedders.pop(0),
        "TRT": lambda: setattr(unet, "current_unet_option", SimpleNamespace(label="[TRT] x")),
        "ldm_patched": lambda: setattr(model, "forge_objects", object()),
        "not in memory": lambda: model.model.to("meta"),
    }


def refusals_of_forge(webui):
    model = webui.model
    kernel = model.forge_objects.unet.model
    weight = next(kernel.parameters())
    return {
        "SD3": lambda: setattr(model, "is_sd3", True),
        "inpainting": lambda: setattr(model, "is_inpaint", True),
        "refiner": lambda: delattr(model, "text_processing_engine_l"),
        "'const'": lambda: setattr(kernel.predictor, "prediction_type", "const"),
        "GGUF": lambda: setattr(weight, "gguf_cls", object),
        "nf4": lambda: setattr(weight, "bnb_quantized", True),
    }


@pytest.mark.parametrize(
    ("kind", "named"),
    [("a1111", name) for name in ("--lowvram", "SD3", "inpainting", "refiner", "TRT", "ldm_patched", "not in memory")]
    + [("forge", name) for name in ("SD3", "inpainting", "refiner", "'const'", "GGUF", "nf4")],
)
def test_what_cannot_work_is_refused_before_the_first_step(tmp_path, monkeypatch, kind, named):
    webui, host = started(kind, "sdxl", tmp_path, monkeypatch)
    host.model()
    (refusals_of_a1111 if kind == "a1111" else refusals_of_forge)(webui)[named]()
    with pytest.raises(WrongUse) as refused:
        host.model()
    assert named.lower() in str(refused.value).lower() and str(refused.value).count(". ") == 0
