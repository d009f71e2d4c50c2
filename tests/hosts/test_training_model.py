"""What a WebUI's loaded model offers besides: what is written about it, and its VAE in a wider precision."""

from __future__ import annotations

import pytest
import torch

from tests.hosts.inside import watch
from tests.hosts.training_runs import config, pictures
from ti_fix.train import FindingEvent, checks, look
from ti_fix.train.distilled import named


def said(events, code):
    return " ".join(e.finding.message for e in events if isinstance(e, FindingEvent) and e.finding.code == code)


def vae_of(webui):
    return webui.model.first_stage_model if webui.kind == "a1111" else webui.model.forge_objects.vae.first_stage_model


@pytest.fixture
def overflowing(both):
    """The VAE in half precision, with a first layer that leaves its range on white pixels and not on grey ones."""
    webui, host = both
    vae = vae_of(webui)
    with torch.inference_mode(webui.kind == "forge"), torch.no_grad():
        vae.encoder.weight.abs_().mul_(3000 / vae.encoder.weight.abs().mean())
        vae.half()
    if webui.kind == "forge":
        webui.model.forge_objects.vae.vae_dtype = torch.float16
    return webui, host


WHITE = torch.ones(1, 3, 64, 64)


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_a_vae_that_overflows_is_run_wider_and_its_weights_stay_the_same_objects(overflowing, precision):
    webui, host = overflowing
    model, vae = host.model(), vae_of(webui)
    before = watch.fingerprint(webui.model)
    assert not model.encode_images(WHITE).isfinite().all()
    found = model.encode_images_in(WHITE, precision)
    kind = getattr(torch, precision)
    with torch.no_grad():
        weight, bias = (vae.encoder.weight.clone().to(kind), vae.encoder.bias.clone().to(kind))
        inner = torch.nn.functional.conv2d(WHITE.to(kind), weight, bias, stride=8)
        weight, bias = (vae.quant_conv.weight.clone().to(kind), vae.quant_conv.bias.clone().to(kind))
        expected = torch.nn.functional.conv2d(inner, weight, bias).chunk(2, dim=1)[0].float() * 0.5
    assert torch.equal(found, expected) and found.isfinite().all() and not found.is_inference()
    assert watch.fingerprint(webui.model) == before
    assert not model.encode_images(WHITE).isfinite().all(), "half again"


def test_a_run_says_that_the_vae_was_widened(overflowing):
    _, host = overflowing
    data = pictures()
    events = host.run(lambda: list(look(config(), host.model(), data)))
    assert "encoded in bfloat16" in said(events, "vae-precision")


def test_a_distilled_checkpoint_is_known_by_its_name_and_by_its_merge_recipe(both):
    webui, host = both
    about = webui.model.sd_checkpoint_info
    about.name, about.metadata = "sdxl/base.safetensors", {}
    assert named(host.model().described) == []
    about.metadata = {"sd_merge_recipe": {"secondary": "lcm-lora"}, "modelspec.thumbnail": "data:turbo"}
    assert named(host.model().described) == ["LCM"]
    about.name, about.metadata = "my_turbo.safetensors", None
    events = host.run(lambda: list(look(config(), host.model(), pictures())))
    assert "(Turbo)" in said(events, "distilled-checkpoint")


def test_the_memory_of_a_step_is_told_with_what_the_card_has_free(both, monkeypatch):
    _, host = both
    monkeypatch.setattr(checks, "wanted", lambda setting, unet: setting != "off")
    monkeypatch.setattr(checks, "free_memory", lambda unet: 3 * 2**30)
    events = host.run(lambda: list(look(config(), host.model(), pictures())))
    assert "3.0 GB free" in said(events, "memory")


def test_forge_casts_its_encoders_in_inference_mode_when_they_are_looked_at(begin, monkeypatch):
    webui, host = begin("forge")
    host.model()
    from ti_fix.hosts import forge

    told = []
    monkeypatch.setattr(forge, "text_model_of", lambda _model, about, _family: told.append(about))
    memory = webui.modules["backend.memory_management"]
    memory.load_model_gpu = lambda _: told.append(torch.is_inference_mode_enabled())
    webui.model.forge_objects.clip.patcher = object()
    host._webui._kind.text_model(webui.model)
    with told[0].around():
        assert torch.is_inference_mode_enabled()
    assert told[1:] == [True] and not torch.is_inference_mode_enabled()
