"""The optimiser of the small models' build."""

from __future__ import annotations

import torch
from torch import nn

from ti_fix.small.training.muon import Muon, orthogonal


def test_singular_values_come_near_one() -> None:
    matrix = torch.randn(40, 90, generator=torch.Generator().manual_seed(0))
    for given in (matrix, matrix.T):
        found = torch.linalg.svdvals(orthogonal(given))
        assert found.min() > 0.6
        assert found.max() < 1.3


def test_direction_is_that_of_the_polar_factor() -> None:
    matrix = torch.randn(24, 24, generator=torch.Generator().manual_seed(1)).double()
    left, _, right = torch.linalg.svd(matrix)
    polar = left @ right
    found = orthogonal(matrix)
    assert torch.cosine_similarity(found.flatten(), polar.flatten(), dim=0) > 0.95


def test_first_update_is_orthogonal_and_as_long_as_adamw_s() -> None:
    weight = nn.Parameter(torch.zeros(64, 32, 3, 3).to(memory_format=torch.channels_last))
    weight.grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(2))
    Muon([weight], lr=1e-3).step()
    rms = weight.detach().square().mean().sqrt()
    assert 0.14e-3 < rms < 0.26e-3  # AdamW's updates have about 0.2 of the rate
    assert torch.cosine_similarity(weight.detach().flatten(), -weight.grad.flatten(), dim=0) > 0.8


def test_it_descends() -> None:
    target = torch.randn(16, 16, generator=torch.Generator().manual_seed(3))
    weight = nn.Parameter(torch.zeros(16, 16))
    optimiser = Muon([weight], lr=0.2)
    losses = []
    for _ in range(60):
        loss = (weight - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]
