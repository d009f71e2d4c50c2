"""Gradient checkpointing: the same gradients, less memory, everything given back."""

from __future__ import annotations

import pytest
import torch

from tests.train.making import config, done, model, run, sd15
from ti_fix.protocols import Sizes
from ti_fix.train.recompute import LARGE, recomputed, wanted

SIZE = Sizes(original=(64, 64), target=(64, 64))


def gradients_and_bytes(loaded):
    """Gradients of one pass, and the bytes that autograd keeps for it, weights apart."""
    own = {p.untyped_storage().data_ptr() for p in loaded.unet.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    table = loaded.vocabulary().tables
    ids = loaded.vocabulary().tokenize("red tower")
    rows = {key: block[ids].clone().requires_grad_() for key, block in table.items()}
    noisy = torch.randn(2, 4, 16, 16, generator=torch.Generator().manual_seed(0))
    with loaded.trainable():
        conditioning = loaded.encode_prompts(["a zqx"] * 2, {"zqx": rows}, [SIZE] * 2)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            output = loaded.predict(noisy, torch.tensor([100, 900]), conditioning)
            found = torch.autograd.grad(output.square().mean(), list(rows.values()))
    return found, sum(kept.values())


@pytest.mark.parametrize("loaded", [model, sd15])
def test_gradients_are_the_same_and_far_less_is_kept(loaded):
    plain, much = gradients_and_bytes(loaded())
    with recomputed(loaded().unet) as blocks:
        again, little = gradients_and_bytes(loaded())
    assert blocks > 5
    for a, b in zip(plain, again, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * float(a.abs().max()))
    assert little < 0.4 * much


def test_a_run_gives_the_same_vectors_with_and_without():
    one, other = (done(run(config(checkpointing=setting))).embedding.vectors for setting in ("on", "off"))
    for key, block in one.items():
        torch.testing.assert_close(block, other[key], rtol=1e-3, atol=1e-4)


def test_blocks_are_given_back_also_after_an_error():
    unet = model().unet
    before = [dict(module.__dict__) for module in unet.modules()]
    with pytest.raises(ZeroDivisionError), recomputed(unet):
        raise ZeroDivisionError
    assert [dict(module.__dict__) for module in unet.modules()] == before


def test_inputs_that_change_in_place_afterwards_do_no_harm():
    """Some hosts add to a block's input after the block has used it."""

    class ResBlock(torch.nn.Module):
        def forward(self, value):
            return value * value

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.block = ResBlock()

        def forward(self, value):
            middle = value * 1.0
            out = self.block(middle)
            middle += 5.0
            return out.sum() + 0 * middle.sum()

    leaf = torch.tensor([2.0, 3.0], requires_grad=True)
    net = Net()
    with recomputed(net):
        (gradient,) = torch.autograd.grad(net(leaf), leaf)
    assert gradient.tolist() == [4.0, 6.0]


def test_auto_is_on_for_real_sizes_only():
    assert not wanted("auto", model().unet) and wanted("on", model().unet)
    with torch.device("meta"):
        large = torch.nn.Linear(LARGE // 1000, 1001)
    assert wanted("auto", large) and not wanted("off", large)
