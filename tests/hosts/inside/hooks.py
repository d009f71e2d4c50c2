"""How many hooks hang on the loaded model's UNet."""

from __future__ import annotations


def count() -> int:
    """Of all its modules, before and after their forward pass."""
    from modules import shared

    model = shared.sd_model
    forge = getattr(model, "forge_objects", None)
    unet = model.model.diffusion_model if forge is None else forge.unet.model.diffusion_model
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in unet.modules())
