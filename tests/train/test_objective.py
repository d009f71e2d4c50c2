"""The loss against diffusers' own schedulers, and its weights by hand."""

from __future__ import annotations

import math

import pytest
import torch
from diffusers import DDIMScheduler, DDPMScheduler
from diffusers.schedulers.scheduling_ddim import rescale_zero_terminal_snr

from tests.train.making import config
from ti_fix.errors import WrongUse
from ti_fix.protocols import NoiseSchedule
from ti_fix.train.objective import direction_prior, draw_timesteps, norm_prior, objective, zero_terminal

BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
TIMES = torch.tensor([0, 1, 250, 700, 999])


def schedule(prediction="epsilon", **more):
    made = DDPMScheduler(**BETAS, prediction_type=prediction, **more)
    return made, NoiseSchedule(alphas_cumprod=made.alphas_cumprod, prediction_type=prediction)


def tensors(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(5, 4, 8, 8, generator=generator) for _ in range(3))


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
def test_noise_and_targets_are_diffusers(prediction):
    theirs, given = schedule(prediction)
    ours = objective(config(), given)
    latents, noise, output = tensors()
    torch.testing.assert_close(ours.noisy(latents, noise, TIMES), theirs.add_noise(latents, noise, TIMES))
    target = noise if prediction == "epsilon" else theirs.get_velocity(latents, noise, TIMES)
    torch.testing.assert_close(ours.target(latents, noise, TIMES), target)
    expected = torch.nn.functional.mse_loss(output, target, reduction="none").mean(dim=(1, 2, 3))
    torch.testing.assert_close(ours.losses(output, target, TIMES), expected)


def test_velocity_by_hand():
    alphas = torch.tensor([0.64])
    ours = objective(config(), NoiseSchedule(alphas_cumprod=alphas, prediction_type="v_prediction"))
    latents, noise = torch.full((1, 1, 1, 1), 2.0), torch.full((1, 1, 1, 1), 3.0)
    assert float(ours.target(latents, noise, torch.tensor([0]))) == pytest.approx(0.8 * 3 - 0.6 * 2)
    assert float(ours.noisy(latents, noise, torch.tensor([0]))) == pytest.approx(0.8 * 2 + 0.6 * 3)


def test_zero_terminal_schedule_is_the_papers():
    scheduler = DDIMScheduler(**BETAS)
    betas = rescale_zero_terminal_snr(scheduler.betas)
    theirs = torch.cumprod(1 - betas, dim=0)
    ours = zero_terminal(scheduler.alphas_cumprod)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)
    assert ours[-1] == 0 and ours[0] == scheduler.alphas_cumprod[0]


def test_a_checkpoint_with_zero_terminal_snr_is_trained_as_such():
    made, given = schedule("v_prediction", rescale_betas_zero_snr=True)
    ours = objective(config(), given)
    latents, noise, _ = tensors()
    last = torch.full((5,), 999)
    torch.testing.assert_close(ours.noisy(latents, noise, last), noise, rtol=0, atol=1e-6)
    torch.testing.assert_close(ours.target(latents, noise, last), -latents, rtol=0, atol=1e-6)
    assert float(made.alphas_cumprod[-1]) < 1e-7


def test_pure_noise_and_epsilon_do_not_go_together():
    _, given = schedule()
    with pytest.raises(WrongUse, match="pure noise"):
        objective(config(zero_snr="on"), given)


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
def test_weights_by_hand(prediction):
    """Signal 0.5: SNR 1; 0.99: 99; 0: 0."""
    given = NoiseSchedule(
        alphas_cumprod=torch.tensor([0.99, 0.5, 0.0 if prediction != "epsilon" else 0.1]), prediction_type=prediction
    )
    snr = [99.0, 1.0, 0.0 if prediction != "epsilon" else 0.1 / 0.9]
    for weighting, rule in {
        "none": lambda s: 1.0,
        "min-snr": (lambda s: min(s, 5) / s) if prediction == "epsilon" else (lambda s: min(s, 5) / (s + 1)),
        "debiased": (lambda s: 1 / math.sqrt(s)) if prediction == "epsilon" else (lambda s: 1 / (max(s, 1e-3) + 1)),
    }.items():
        found = objective(config(weighting=weighting), given).weights(torch.arange(3))
        assert found.tolist() == pytest.approx([rule(s) for s in snr], rel=1e-4), weighting


def test_huber_is_quadratic_near_and_linear_far():
    _, given = schedule()
    ours = objective(config(loss="huber", huber_delta=0.1), given)
    zero = torch.zeros(1, 1, 1, 1)
    near, far = (float(ours.losses(zero + d, zero, torch.tensor([5]))) for d in (1e-3, 100.0))
    assert near == pytest.approx(1e-6, rel=1e-3)
    assert far == pytest.approx(2 * 0.1 * 100, rel=2e-3)


def test_a_mask_leaves_out_what_it_covers():
    _, given = schedule()
    ours = objective(config(), given)
    latents, _, output = tensors()
    mask = torch.zeros(5, 1, 8, 8)
    mask[..., :4] = 1
    expected = (output - latents)[..., :4].square().mean(dim=(1, 2, 3))
    torch.testing.assert_close(ours.losses(output, latents, TIMES, mask), expected)


def test_noise_offset_shifts_each_channel():
    _, given = schedule()
    latents = torch.zeros(2, 4, 64, 64)
    plain, shifted = (
        objective(config(noise_offset=offset), given).noise(latents, torch.Generator().manual_seed(1))
        for offset in (0.0, 0.5)
    )
    difference = shifted - plain
    assert float(difference.std(dim=(2, 3)).max()) < 1e-5
    assert float(difference[:, :, 0, 0].std()) > 0.1


def test_stratified_timesteps_cover_the_schedule_and_stay_uniform():
    drawn = [draw_timesteps(8, 1000, torch.Generator().manual_seed(seed), stratified=True) for seed in range(400)]
    for each in drawn:
        assert sorted((each // 125).tolist()) == list(range(8))
    first = torch.stack(drawn)[:, 0].float()
    assert abs(float(first.mean()) - 499.5) < 4 * 288.7 / math.sqrt(400)
    assert abs(float(first.std()) - 288.7) < 30


def test_priors_by_hand():
    block = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    assert float(norm_prior(block, 2.5)) == pytest.approx((1.0 + 0.36) / 2)
    assert float(direction_prior(block, torch.tensor([[4.0, 3.0], [0.0, 2.0]]))) == pytest.approx((1 - 24 / 25) / 2)
