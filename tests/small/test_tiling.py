"""Repeating channels leaves what the networks compute unchanged."""
from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")

from ti_fix.small import tiling  # noqa: E402
from ti_fix.small.training.diffusion import UNET  # noqa: E402
from ti_fix.small.training.vae import CONFIG as VAE  # noqa: E402


def randomised(module: torch.nn.Module) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            fan_in = parameter[0].numel() if parameter.ndim > 1 else 1
            spread = fan_in**-0.5 if parameter.ndim > 1 else 0.3
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread + (parameter.ndim == 1))
    return module.eval()


@pytest.mark.parametrize("family", ["sdxl", "sd15"])
@torch.no_grad()
def test_tiled_unet_computes_the_same(family: str) -> None:
    small = randomised(diffusers.UNet2DConditionModel(**UNET[family]))
    config, state = tiling.tile_unet(small.state_dict(), UNET[family], 4)
    wide = diffusers.UNet2DConditionModel(**config)
    wide.load_state_dict(state)
    generator = torch.Generator().manual_seed(1)
    x, t = torch.randn(2, 4, 16, 16, generator=generator), torch.tensor([20, 800])
    context = torch.randn(2, 77, small.config.cross_attention_dim, generator=generator)
    added = {"text_embeds": torch.randn(2, 64, generator=generator), "time_ids": torch.ones(2, 6) * 128}
    kwargs = {"added_cond_kwargs": added} if family == "sdxl" else {}
    a, b = (m(x, t, context, **kwargs).sample for m in (small, wide.eval()))
    assert wide.config.norm_num_groups == 32
    assert a.std() > 0.05
    torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-4)


@torch.no_grad()
def test_tiled_autoencoder_computes_the_same() -> None:
    small = randomised(diffusers.AutoencoderKL(**VAE))
    config, state = tiling.tile_vae(small.state_dict(), VAE, 4)
    wide = diffusers.AutoencoderKL(**config)
    wide.load_state_dict(state)
    wide.eval()
    x = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(2)) * 2 - 1
    z, z_wide = (m.encode(x).latent_dist.mean for m in (small, wide))
    torch.testing.assert_close(z, z_wide, rtol=2e-4, atol=2e-4)
    torch.testing.assert_close(small.decode(z).sample, wide.decode(z).sample, rtol=2e-4, atol=5e-4)
