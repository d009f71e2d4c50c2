"""Each trap of the WebUIs that training meets, one test: met, and everything given back."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

from tests.hosts.inside import watch
from tests.hosts.training_runs import REQUEST, SIZE, config, pictures
from ti_fix.embedding import Embedding
from ti_fix.errors import TiFixError
from ti_fix.protocols import ImageRequest
from ti_fix.train import DoneEvent, StepEvent, train
from ti_fix.train.recompute import recomputed


def rows_of(model):
    tables = model.vocabulary().tables
    return {key: table[[736, 929]].detach().clone().requires_grad_() for key, table in tables.items()}


def gradients(model, *, again=False, rows=None):
    """Of a loss through everything, to two vectors in each encoder."""
    rows = rows or rows_of(model)
    latents = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(1))
    with model.trainable(), recomputed(model.unet) if again else nullcontext():
        told = model.encode_prompts(["a zqx boat", "the (zqx:1.3)"], {"zqx": rows}, [SIZE, SIZE])
        loss = model.predict(latents, torch.tensor([100, 700]), told).square().mean()
        return torch.autograd.grad(loss, list(rows.values()))


def assert_equal_up_to_rounding(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert float(b.norm()) > 0
        assert float((a - b).norm()) < 1e-5 * float(b.norm())


# autograd


def test_forge_weights_are_inference_tensors_and_come_back_as_the_same_objects(begin):
    _, host = begin("forge")
    model = host.model()
    unet = model.unet
    with pytest.raises(RuntimeError, match=r"[Ii]nference"):
        unet(torch.ones(1, 4, 8, 8, requires_grad=True), torch.ones(1), torch.ones(1, 77, 2048), torch.ones(1, 2816))
    before = [(id(p), p.data_ptr(), p.is_inference()) for p in unet.parameters()]
    with model.trainable():
        model.encode_prompts(["a"], {}, [SIZE])
        inside = [(p.data_ptr(), p.is_inference(), p.requires_grad) for p in unet.parameters()]
        assert inside == [(place, False, False) for _, place, _ in before], "no copy, ordinary, asks for nothing"
    assert [(id(p), p.data_ptr(), p.is_inference()) for p in unet.parameters()] == before
    assert all(inference for *_, inference in before)
    host.generate(REQUEST)


def test_forge_adds_in_place_which_plain_checkpointing_gets_wrong(begin, monkeypatch):
    _, host = begin("forge")
    model = host.model()
    exact = gradients(model)
    assert_equal_up_to_rounding(gradients(model, again=True), exact)
    from ti_fix.hosts import forge_model

    monkeypatch.setattr(forge_model, "norms_apart", lambda unet: nullcontext())
    with pytest.raises(RuntimeError, match="inplace"):
        gradients(model)
    wrong = gradients(model, again=True)
    assert float((wrong[0] - exact[0]).norm()) > 1e-3 * float(exact[0].norm()), "no error, and not the gradient"


def test_weights_that_ask_for_gradients_get_none(both):
    webui, host = both
    model = host.model()
    networks = watch.networks(webui.model)
    assert any(p.requires_grad for each in networks for p in each.parameters())
    gradients(model)
    assert all(p.grad is None for each in networks for p in each.parameters())


def test_attention_without_a_backward_pass_is_replaced_meanwhile(both):
    webui, host = both
    before = watch.surroundings(webui.model)
    gradients(host.model())  # through the host's own function no gradient would arrive
    assert watch.surroundings(webui.model) == before


@pytest.mark.parametrize("again", [False, True])
def test_text_encoders_in_two_passes_have_equal_gradients(both, again):
    from ti_fix.hosts.host_model import HostModel

    _, host = both
    loaded = host.model()._loaded
    one = gradients(HostModel(loaded, two_passes=False), again=again)
    assert_equal_up_to_rounding(gradients(HostModel(loaded, two_passes=True), again=again), one)


def test_small_models_take_one_pass_and_moving_ones_two(both):
    from ti_fix.hosts.host_model import HostModel

    webui, host = both
    assert host.model().two_passes is False
    if webui.kind == "a1111":
        webui.model.lowvram = True
    else:
        webui.model.forge_objects_original.unet.model.diffusion_model.prev_parameters_manual_cast = False
    assert HostModel(host.model()._loaded).two_passes is True


@pytest.mark.parametrize("family", ["sdxl", "sd15"])
def test_medvram_takes_the_text_encoders_away_before_the_backward_pass(begin, family):
    webui, host = begin("a1111", family)
    expected = gradients(host.model())
    webui.model.set_medvram(webui.moved)
    model = host.model()
    rows = rows_of(model)
    assert_equal_up_to_rounding(gradients(model, rows=rows), expected)
    assert webui.moved == ["text", "unet", "text"]


# what is borrowed


def test_a_lora_in_the_weights_is_taken_out_first(both):
    webui, host = both
    expected = gradients(host.model())
    webui.bake_lora()
    found = gradients(host.model())
    for a, b in zip(found, expected, strict=True):
        assert float((a - b).norm()) < 1e-4 * float(b.norm())


def test_the_slot_for_vectors_is_empty_after_a_failure(both):
    _, host = both
    model = host.model()
    encoder = model.text.encoders[-1]
    real = encoder.engine.process_tokens
    encoder.engine.process_tokens = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        gradients(model)
    encoder.engine.process_tokens = real
    assert encoder.slot.fixes is None
    assert not any(name == "zqx" for database in host._webui._kind.databases() for name in database.word_embeddings)


def test_infotext_of_the_next_picture_names_nothing_of_the_training(both):
    webui, host = both
    for _ in range(3):
        gradients(host.model())
    assert webui.infotext == {}


def test_a_preview_sees_the_vectors_and_later_pictures_do_not(both):
    _, host = both
    plain = np.asarray(host.generate(REQUEST))
    rows = {key: block.detach() for key, block in rows_of(host.model()).items()}
    asked = ImageRequest(prompt="a lighthouse", width=64, height=64, steps=2, seed=3,
                         embeddings=(Embedding(name="lighthouse", vectors=rows),))  # fmt: skip
    assert np.abs(np.asarray(host.generate(asked), dtype=int) - plain).max() > 0
    assert np.array_equal(np.asarray(host.generate(REQUEST)), plain), "the prompt cache must forget the vectors"


def test_after_a_switch_of_the_model_no_picture_is_made_without_the_vectors(both):
    """They would stand in the encoders of the model before."""
    webui, host = both
    host.generate(REQUEST)
    webui.switch("sdxl", checkpoint="another")
    with pytest.raises(TiFixError, match="another model meanwhile"):
        host.generate(REQUEST)
    host.model()
    assert host.generate(REQUEST).size == (64, 64)


def test_the_queue_is_taken_once_and_shown_as_a_job(both):
    webui, host = both
    state = webui.modules["modules.shared"].state
    lock = webui.modules["modules.call_queue"].queue_lock

    def work():
        assert lock.locked() and state.job == "ti_fix"
        host.run(lambda: host.generate(REQUEST))
        host.refresh_embeddings()
        return state.job

    assert host.run(work) == "ti_fix"
    assert not lock.locked() and state.job == ""
    with pytest.raises(ZeroDivisionError):
        host.run(lambda: 1 / 0)
    assert not lock.locked() and state.job == ""


def test_the_hosts_interrupt_ends_a_run(both):
    webui, host = both
    state = webui.modules["modules.shared"].state

    def work():
        events = []
        for event in train(config(steps=50), host.model(), pictures(), stop=host.interrupted):
            events.append(event)
            if isinstance(event, StepEvent) and event.step == 2:
                state.interrupted = True
        return events

    done = host.run(work)[-1]
    assert isinstance(done, DoneEvent) and (done.step, done.reason) == (2, "stopped")
    host.run(lambda: None)
    assert not host.interrupted(), "the next job begins without it"


def test_another_model_in_the_middle_of_a_run_is_noticed(both):
    webui, host = both
    model = host.model()
    webui.switch("sdxl", checkpoint="another")
    with pytest.raises(TiFixError, match="another model"):
        gradients(model)


def test_forge_starts_without_a_model_and_loads_it(begin):
    webui, host = begin("forge")
    assert webui.model is None
    assert host.model().family.name == "sdxl" and webui.model is not None


def test_v_prediction_and_the_checkpoints_own_schedule(both):
    webui, host = both
    schedule = host.model().schedule
    assert schedule.prediction_type == "epsilon"
    from tests.hosts.standin_models import SIGMAS

    torch.testing.assert_close(schedule.alphas_cumprod, 1 / (SIGMAS.square() + 1))
    if webui.kind == "a1111":
        webui.model.parameterization = "v"
    else:
        webui.model.forge_objects_original.unet.model.predictor.prediction_type = "v_prediction"
    assert host.model().schedule.prediction_type == "v_prediction"


def test_pictures_are_encoded_to_the_mean_of_the_posterior(both):
    webui, host = both
    pixels = torch.linspace(-1, 1, 64).expand(1, 3, 64, 64)
    one, other = host.model().encode_images(pixels), host.model().encode_images(pixels)
    vae = webui.model.first_stage_model if webui.kind == "a1111" else webui.model.forge_objects.vae.first_stage_model
    with torch.no_grad():
        expected = vae.posterior(pixels).mode() * 0.5
    assert torch.equal(one, other) and torch.allclose(one, expected) and not one.is_inference()
    if webui.kind == "forge":
        assert webui.model.forge_objects.vae.patcher.model_options == {"transformer_options": {}}


def test_forge_options_of_the_unet_are_those_of_one_call(begin):
    _, host = begin("forge")
    model = host.model()
    given = []
    model.unet.register_forward_pre_hook(
        lambda _m, _a, named: given.append(named["transformer_options"]), with_kwargs=True
    )
    gradients(model)
    gradients(model)
    assert given[0] is not given[1]


def test_fp8_weights_get_an_alias_of_their_kind():
    from ti_fix.hosts.borrow import aliased

    layer = nn.Linear(4, 4)
    layer.weight = nn.Parameter(layer.weight.to(torch.float8_e4m3fn), requires_grad=False)
    original = layer.weight
    with aliased([layer]):
        assert layer.weight is not original and layer.weight.dtype == torch.float8_e4m3fn
        assert layer.weight.data_ptr() == original.data_ptr()
    assert layer.weight is original


def test_a_table_that_the_host_casts_meanwhile_is_the_old_one_again():
    """Forge turns token tables into float32 at each pass."""
    from ti_fix.hosts.borrow import aliased

    table = nn.Embedding(4, 4).half()
    with torch.inference_mode():
        table.weight = nn.Parameter(table.weight.clone())
    original, numbers = table.weight, table.weight.clone()
    with aliased([table]):
        table.to(torch.float32)
    assert table.weight is original and table.weight.dtype == torch.float16 and torch.equal(table.weight, numbers)
