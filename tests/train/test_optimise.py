"""Updates against torch's own, and on problems whose answer is known."""

from __future__ import annotations

import math

import pytest
import torch

from ti_fix.train.optimise import Adafactor, AdamW, Direction, Prodigy, clip


def gradients(steps=30, shape=(3, 8)):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) * 10 ** (i % 3 - 2) for i in range(steps)]


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adamw_is_torchs(decay):
    start = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    ours, theirs = {"clip_l": start.clone()}, torch.nn.Parameter(start.clone())
    update, reference = AdamW({"clip_l": decay}), torch.optim.AdamW([theirs], lr=0.01, weight_decay=decay)
    for gradient in gradients():
        update.update(ours, {"clip_l": gradient}, {"clip_l": 0.01})
        theirs.grad = gradient.clone()
        reference.step()
    torch.testing.assert_close(ours["clip_l"], theirs.detach(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adafactor_is_torchs(rows, decay):
    """torch multiplies the rate by the vectors' own size unless `eps` says that this is never below 1."""
    start = 0.1 * torch.randn(rows, 8, generator=torch.Generator().manual_seed(1))
    ours, theirs = {"clip_l": start.clone()}, torch.nn.Parameter(start.clone())
    update = Adafactor({"clip_l": decay})
    reference = torch.optim.Adafactor([theirs], lr=0.01, weight_decay=decay, eps=(None, 1.0))
    for gradient in gradients(shape=(rows, 8)):
        update.update(ours, {"clip_l": gradient}, {"clip_l": 0.01})
        theirs.grad = gradient.clone()
        reference.step()
    torch.testing.assert_close(ours["clip_l"], theirs.detach(), rtol=1e-4, atol=1e-6)


def test_each_encoder_has_its_own_rate_and_decay():
    vectors = {"clip_l": torch.ones(1, 4), "clip_g": torch.ones(1, 4)}
    update = AdamW({"clip_l": 0.0, "clip_g": 0.5})
    still = {key: torch.zeros(1, 4) for key in vectors}
    update.update(vectors, still, {"clip_l": 0.1, "clip_g": 0.2})
    assert vectors["clip_l"].tolist() == [[1.0] * 4]
    assert vectors["clip_g"].tolist() == [pytest.approx([0.9] * 4)]
    update.update(vectors, {key: torch.ones(1, 4) for key in vectors}, {"clip_l": 0.0, "clip_g": 0.0})
    assert vectors["clip_l"].tolist() == [[1.0] * 4]


def direction(start, prior=0.0):
    return Direction({"clip_l": 0.4}, {"clip_l": 0.4 / math.sqrt(start.shape[1])}, {"clip_l": start}, prior)


def test_direction_keeps_the_vocabularys_length():
    start = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    vectors, update = {"clip_l": start.clone()}, direction(start)
    for gradient in gradients():
        update.update(vectors, {"clip_l": gradient}, {"clip_l": 0.01})
        torch.testing.assert_close(vectors["clip_l"].norm(dim=1), torch.full((3,), 0.4))


def test_the_first_step_turns_by_the_rate_in_radians_away_from_the_gradient():
    start = torch.tensor([[0.4, 0.0, 0.0, 0.0]])
    vectors, update = {"clip_l": start.clone()}, direction(start)
    rate = 0.1 * 0.4 / math.sqrt(4)  # a tenth of an RMS
    update.update(vectors, {"clip_l": torch.tensor([[5.0, 7.0, 0.0, 0.0]])}, {"clip_l": rate})
    angle = math.atan(0.1)  # the step goes along the tangent
    expected = [0.4 * math.cos(angle), -0.4 * math.sin(angle), 0, 0]
    assert vectors["clip_l"][0].tolist() == pytest.approx(expected, abs=1e-6)


def test_direction_finds_the_nearest_direction_of_a_linear_loss():
    """The minimum of <a, e> over a sphere is at -a."""
    goal = torch.nn.functional.normalize(torch.randn(2, 16, generator=torch.Generator().manual_seed(2)), dim=1)
    start = torch.randn(2, 16, generator=torch.Generator().manual_seed(3))
    vectors, update = {"clip_l": start.clone()}, direction(start)
    for step in range(300):
        update.update(vectors, {"clip_l": goal}, {"clip_l": 0.1 * 0.1 * (1 - step / 300)})
    cosine = torch.nn.functional.cosine_similarity(vectors["clip_l"], -goal, dim=1)
    assert float(cosine.min()) > 0.999


def test_the_prior_pulls_to_the_start():
    """With loss -<a, e> and prior k the optimum is along length * a + k * start."""
    a = torch.tensor([[0.0, 1.0, 0.0]])
    start = torch.tensor([[1.0, 0.0, 0.0]])
    vectors, update = {"clip_l": start.clone()}, direction(start, prior=0.4)
    for step in range(400):
        update.update(vectors, {"clip_l": -a}, {"clip_l": 0.02 * (1 - step / 400)})
    found = torch.nn.functional.normalize(vectors["clip_l"], dim=1)[0]
    assert found.tolist() == pytest.approx([0.5**0.5, 0.5**0.5, 0], abs=0.01)


def test_prodigy_finds_its_rate():
    """A quadratic bowl far away: a rate of 1 gets there, whatever the scale."""
    for scale in (1e-2, 1.0, 1e2):
        goal = scale * torch.ones(1, 4)
        vectors, update = {"clip_l": torch.zeros(1, 4)}, Prodigy({"clip_l": 0.0})
        for step in range(600):
            update.update(vectors, {"clip_l": vectors["clip_l"] - goal}, {"clip_l": 1 - step / 600})
        assert float((vectors["clip_l"] - goal).norm() / goal.norm()) < 0.05


@pytest.mark.parametrize("make", [lambda s: AdamW({"clip_l": 0.1}), direction, lambda s: Prodigy({"clip_l": 0.0})])
def test_a_saved_state_goes_on_bit_for_bit(make):
    start = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    whole, parts = {"clip_l": start.clone()}, {"clip_l": start.clone()}
    one, other = make(start), make(start)
    for i, gradient in enumerate(gradients()):
        one.update(whole, {"clip_l": gradient}, {"clip_l": 0.01})
        if i == 11:
            fresh = make(start)
            fresh.load_state(other.state())
            other = fresh
        other.update(parts, {"clip_l": gradient}, {"clip_l": 0.01})
    assert torch.equal(whole["clip_l"], parts["clip_l"])


def test_state_is_small():
    """N vectors of 768 and 1280 numbers: value, gradient and moments take at most 64 KB a pair."""
    vectors = {"clip_l": torch.randn(1, 768), "clip_g": torch.randn(1, 1280)}
    made = {
        "adamw": AdamW(dict.fromkeys(vectors, 0.0)),
        "direction": Direction(dict.fromkeys(vectors, 0.4), dict.fromkeys(vectors, 0.01), vectors, 0.0),
        "prodigy": Prodigy(dict.fromkeys(vectors, 0.0)),
    }
    for name, update in made.items():
        update.update(vectors, vectors, dict.fromkeys(vectors, 0.01))
        state = sum(t.numel() * t.element_size() for t in update.state().values())
        gradient = sum(t.numel() * t.element_size() for t in vectors.values())
        assert state + gradient <= 64 * 1024, name


def test_clipping():
    block = {"clip_l": torch.tensor([[3.0, 0.0]]), "clip_g": torch.tensor([[0.0, 4.0]])}
    joint = clip(block, "joint", 1.0)
    assert math.hypot(float(joint["clip_l"].norm()), float(joint["clip_g"].norm())) == pytest.approx(1, rel=1e-5)
    assert float(joint["clip_l"].norm() / joint["clip_g"].norm()) == pytest.approx(0.75)
    each = clip(block, "norm", 3.5)
    assert torch.equal(each["clip_l"], block["clip_l"]) and float(each["clip_g"].norm()) == pytest.approx(3.5)
    assert clip(block, "value", 2.0)["clip_g"].tolist() == [[0.0, 2.0]]
    assert torch.equal(clip(block, "off", 0.1)["clip_g"], block["clip_g"])
