"""Each formula against torchmetrics, or against numbers worked out another way."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ti_fix.evaluate import metrics
from ti_fix.evaluate.statistics import difference, estimate


def features(count: int, seed: int, width: int = 24) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(count, width, generator=generator), dim=-1)


def test_clip_i_is_the_mean_over_all_pairs():
    pictures, references = features(5, 1), features(3, 2)
    pairs = [np.dot(a, b) for a in pictures.numpy() for b in references.numpy()]
    assert float(metrics.clip_i(pictures, references).mean()) == pytest.approx(np.mean(pairs), abs=1e-6)


def test_the_ceiling_leaves_each_reference_out():
    references = features(4, 3)
    pairs = [float(a @ b) for a, b in itertools.permutations(references, 2)]
    assert float(metrics.ceiling(references).mean()) == pytest.approx(np.mean(pairs), abs=1e-6)
    copies = references[:1].expand(3, -1)
    assert torch.allclose(metrics.ceiling(copies), torch.ones(3), atol=1e-6)


def test_clip_score_equals_torchmetrics():
    reference = pytest.importorskip("torchmetrics.functional.pairwise")
    pictures, texts = features(6, 4), features(6, 5)
    cosines = reference.pairwise_cosine_similarity(pictures, texts, zero_diagonal=False).diagonal()
    assert torch.allclose(metrics.clip_t(pictures, texts), cosines, atol=1e-6)
    assert torch.allclose(metrics.clip_score_25(cosines), 2.5 * cosines.clamp(min=0), atol=1e-6)
    assert metrics.clip_score_25(torch.tensor([0.273, 0.306, -0.1])).tolist() == pytest.approx([0.6825, 0.765, 0.0])


def test_clip_iqa_equals_torchmetrics():
    reference = pytest.importorskip("torchmetrics.functional.multimodal.clip_iqa")
    pictures, good, bad = features(4, 6), features(3, 7), features(3, 8)
    anchors = torch.stack([good, bad], dim=1).reshape(6, -1)
    names = ["a", "b", "c"]
    expected = reference._clip_iqa_compute(pictures, anchors, names, format_as_dict=False)
    assert torch.allclose(metrics.clip_iqa(pictures, good, bad), expected, atol=1e-6)


def test_adherence_is_zero_shot_classification():
    picture, said, others = features(1, 9)[0], features(1, 10)[0], features(4, 11)
    logits = np.array([100 * float(picture @ each) for each in (said, *others)])
    expected = np.exp(logits - logits.max())[0] / np.exp(logits - logits.max()).sum()
    assert float(metrics.adherence(picture, said, others)) == pytest.approx(expected, abs=1e-6)
    same = said.expand(4, -1)
    assert float(metrics.adherence(picture, said, same)) == pytest.approx(0.2, abs=1e-6)


def test_adherence_q_needs_both_and_leaves_out_missing_groups():
    nan = float("nan")
    groups = torch.tensor([[0.9, 0.5], [0.64, nan], [nan, nan], [0.0, 0.0]])
    found = metrics.adherence_q(groups, torch.tensor([0.7, 0.25, 0.5, 1.0]))
    assert found[:2].tolist() == pytest.approx([(0.7 * 0.7) ** 0.5, 0.4]) and found[2].isnan() and found[3] == 0


def test_a_mask_takes_away_what_is_outside():
    picture = Image.new("RGB", (4, 4), (200, 10, 10))
    mask = Image.fromarray(np.kron(np.array([[255, 0], [255, 0]], dtype=np.uint8), np.ones((2, 2), np.uint8)))
    found = np.asarray(metrics.masked(picture, mask))
    assert (found[:, :2] == (200, 10, 10)).all() and (found[:, 2:] == (123, 117, 104)).all()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-2, 2), min_size=2, max_size=30))
def test_an_interval_holds_its_mean_and_lies_within_the_values(values):
    found = estimate(torch.tensor(values, dtype=torch.float64))
    assert found and min(values) - 1e-9 <= found.low <= found.mean + 1e-9 and found.mean <= found.high + 1e-9
    assert found.high <= max(values) + 1e-9 and found.n == len(values)


def test_the_interval_is_about_as_wide_as_theory_says():
    values = torch.randn(200, generator=torch.Generator().manual_seed(1))
    found = estimate(values)
    half = 1.96 * float(values.std()) / 200**0.5
    assert found.high - found.low == pytest.approx(2 * half, rel=0.12)


def test_the_interval_misses_the_truth_about_as_often_as_it_says():
    missed = 0
    for seed in range(200):
        found = estimate(torch.randn(40, generator=torch.Generator().manual_seed(seed)), seed=seed)
        missed += not found.low <= 0 <= found.high
    assert 3 <= missed <= 24  # 5 % of 200, somewhat more for so few values


def test_pairs_show_what_single_means_hide():
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(30, generator=generator)
    better = base + 0.1 + 0.02 * torch.randn(30, generator=generator)
    found = difference(better, base)
    assert found.clear and found.mean == pytest.approx(0.1, abs=0.02)
    assert not difference(base, base).clear


def test_missing_values_are_left_out():
    found = estimate(torch.tensor([1.0, float("nan"), 3.0]))
    assert found.mean == 2 and found.n == 2
    assert estimate(torch.tensor([float("nan")])) is None
