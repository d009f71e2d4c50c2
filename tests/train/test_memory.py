"""The memory estimate against what autograd really keeps, and that it leaves no trace."""

from __future__ import annotations

import pytest
import torch

from tests.train.making import config, fingerprint, model, pictures, run, said
from ti_fix.protocols import Conditioning, Sizes
from ti_fix.train import StepEvent, memory, recompute, train
from ti_fix.train.memory import estimate, of_step, on_meta

SIZE = Sizes(original=(64, 64), target=(64, 64))


def parts(rows):
    loaded = model()
    latents = torch.randn(rows, 4, 8, 8)
    with torch.no_grad():
        told = loaded.encode_prompts(["a cat"], {}, [SIZE])
    return loaded, latents, told


def really_kept(loaded, latents, told):
    """Bytes that autograd keeps in a real forward pass, weights apart."""
    own = {p.untyped_storage().data_ptr() for p in loaded.unet.parameters()}
    kept = {}

    def pack(tensor):
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    rows = len(latents)
    leaf = told.context.expand(rows, -1, -1).clone().requires_grad_()
    vector = told.vector.expand(rows, -1).clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = loaded.predict(latents, torch.zeros(rows, dtype=torch.long), Conditioning(context=leaf, vector=vector))
    size = sum(storage.nbytes() for storage in kept.values())
    del output
    return size


@pytest.mark.parametrize("rows", [1, 3])
def test_what_is_counted_is_what_is_kept(rows):
    loaded, latents, told = parts(rows)
    with loaded.trainable():
        found = of_step(loaded, latents, told, checkpointing=False)
        real = really_kept(loaded, latents, told)
    assert found.kept == pytest.approx(real, rel=0.05)
    assert found.weights == sum(p.numel() * 4 for p in loaded.unet.parameters()) and found.block == 0


def test_checkpointing_keeps_less_and_counts_a_block():
    loaded, latents, told = parts(2)
    with loaded.trainable():
        plain, again = (of_step(loaded, latents, told, checkpointing=setting) for setting in (False, True))
    assert again.block > 0 and again.kept < 0.4 * plain.kept and again.step < plain.step


def test_the_weights_are_untouched_also_after_an_error():
    loaded = model()
    before = fingerprint(loaded)
    names = [id(p) for p in loaded.unet.parameters()]
    with on_meta(loaded.unet):
        assert next(loaded.unet.parameters()).device.type == "meta"
    with pytest.raises(ZeroDivisionError):
        estimate(loaded.unet, lambda _: 1 / 0, checkpointing=True)
    assert [id(p) for p in loaded.unet.parameters()] == names and fingerprint(loaded) == before
    assert not any("forward" in module.__dict__ for module in loaded.unet.modules())


def test_blocks_that_are_wrapped_already_stay_so():
    loaded, latents, told = parts(2)
    with loaded.trainable(), recompute.recomputed(loaded.unet):
        before = [module.__dict__.get("forward") for module in loaded.unet.modules()]
        of_step(loaded, latents, told, checkpointing=True)
        assert [module.__dict__.get("forward") for module in loaded.unet.modules()] == before


def test_a_run_of_real_size_is_counted_and_then_checkpointed(monkeypatch):
    monkeypatch.setattr(recompute, "LARGE", 1)
    again, original = [], recompute.checkpoint

    def counted(*args, **kwargs):
        again.append(args[0])
        return original(*args, **kwargs)

    monkeypatch.setattr(recompute, "checkpoint", counted)
    made = [len(again) for event in train(config(steps=2), model(), pictures()) if isinstance(event, StepEvent)]
    assert 0 < made[0] < made[1]
    assert not any("forward" in module.__dict__ for module in model().unet.modules())


def test_a_run_of_real_size_tells_it(monkeypatch):
    monkeypatch.setattr(recompute, "LARGE", 1)
    told = said(run(config(steps=1, checkpointing="off")), "memory")
    assert "GB" in told and "checkpointing takes far less" in told
    monkeypatch.setattr(memory, "estimate", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("no shapes here")))
    assert said(run(config(steps=1)), "memory") == ""
