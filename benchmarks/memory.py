"""How much memory training takes: ``python benchmarks/memory.py [--quick] [--json]``.

The bytes of a step are counted on tensors without content (`ti_fix.train.memory`). Figure: counted over measured
bytes on the small SDXL, worst of sizes, batches and checkpointing; measured is the peak of what torch's allocator
holds during a real forward and backward, weights apart. Then the count for the published SDXL UNet in half precision,
whose layout is built without weights.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers import UNet2DConditionModel
from torch import Tensor

from harness import Figure, arguments, close
from ti_fix.small import load
from ti_fix.train.memory import Estimate, estimate
from ti_fix.train.recompute import recomputed

GOAL = 0.9
SDXL = {
    "sample_size": 128,
    "in_channels": 4,
    "out_channels": 4,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "block_out_channels": (320, 640, 1280),
    "layers_per_block": 2,
    "transformer_layers_per_block": (1, 2, 10),
    "attention_head_dim": (5, 10, 20),
    "use_linear_projection": True,
    "cross_attention_dim": 2048,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}
"""Stability AI's published ``unet/config.json``."""


def called(unet: Any, batch: int, side: int, device: str) -> Tensor:
    """One forward pass with gradients to the text."""
    kind = next(unet.parameters()).dtype
    width = unet.config.projection_class_embeddings_input_dim - 6 * unet.config.addition_time_embed_dim
    made = {"device": device, "dtype": kind}
    text = torch.ones(batch, 77, unet.config.cross_attention_dim, **made).requires_grad_()
    pooled = torch.ones(batch, width, **made).requires_grad_()
    added = {"text_embeds": pooled, "time_ids": torch.ones(batch, 6, **made)}
    noisy = torch.ones(batch, 4, side // 8, side // 8, **made)
    times = torch.full((batch,), 500, device=device)
    output: Tensor = unet(noisy, times, text, added_cond_kwargs=added).sample
    return output


def counted(unet: Any, batch: int, side: int, *, checkpointing: bool) -> Estimate:
    return estimate(unet, lambda module: called(module, batch, side, "meta"), checkpointing=checkpointing)


def measured(unet: Any, batch: int, side: int, *, checkpointing: bool) -> int:
    """Peak bytes of torch's CPU allocator over a forward and backward, weights apart."""

    def step() -> None:
        called(unet, batch, side, "cpu").square().mean().backward()

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        if checkpointing:
            with recomputed(unet):
                step()
        else:
            step()
    held = peak = 0
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def main() -> None:
    flags = arguments(__doc__ or "")
    small = load("sdxl").unet.requires_grad_(False)
    cases = [(4, 128), (2, 256)] if flags.quick else [(1, 128), (4, 128), (8, 128), (2, 256), (1, 512)]
    ratios = []
    print("| small SDXL | checkpointing | counted MB | measured MB | ratio |\n|---|---|---|---|---|")
    for batch, side in cases:
        for checkpointing in (False, True):
            ours = counted(small, batch, side, checkpointing=checkpointing)
            real = measured(small, batch, side, checkpointing=checkpointing)
            ratios.append(ours.step / real)
            print(f"| batch {batch}, {side} pixels | {'on' if checkpointing else 'off'} | "
                  f"{ours.step / 1e6:.1f} | {real / 1e6:.1f} | {ratios[-1]:.2f} |")  # fmt: skip
    with torch.device("meta"):
        large = UNet2DConditionModel(**SDXL).to(torch.float16).requires_grad_(False)
    print("\n| SDXL UNet, float16 | checkpointing off, GB | on, GB |\n|---|---|---|")
    for side in (512, 768, 1024):
        for batch in (1, 4) if flags.quick else (1, 2, 4):
            plain, again = (counted(large, batch, side, checkpointing=c).total / 2**30 for c in (False, True))
            print(f"| {side} pixels, batch {batch} | {plain:.1f} | {again:.1f} |")
    worst = min(min(r, 1 / r) for r in ratios)
    close(
        Figure(name="memory", figure=worst, unit="counted / measured bytes, worst case (1 is exact)", better="higher",
               goal=GOAL, n=len(ratios)), flags)  # fmt: skip


if __name__ == "__main__":
    main()
