"""Training on a graphics card, full-size SDXL: ``python benchmarks/device.py [--quick] [--json] [--tiny]``.

The model has SDXL's published layout and random weights, so nothing is fetched; under eight minutes. Measured:
the cosine of half-precision gradients to those of float32, the share of their numbers that vanish without a loss
factor, the peak memory of steps under caps of 8 and 12 GiB, and the figure: seconds of a whole step over the bare
model's forward and backward pass. Without a CUDA device it says so and exits with 3; ``--tiny`` runs all of it on a
small layout and any device, so that it cannot rot.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from torch import Tensor
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from harness import Figure, arguments, close, median_ratio
from memory import SDXL as UNET
from ti_fix.embedding import SDXL, VOCABULARY_SIZE
from ti_fix.hosts.standalone import Parts, StandaloneModel
from ti_fix.hosts.standalone.load import vae_dtype
from ti_fix.protocols import Conditioning, Sizes
from ti_fix.tokenizer import encode
from ti_fix.train import Dataset, StepEvent, TrainConfig, from_images, train
from ti_fix.train.recompute import recomputed

GOAL = 1.05
TRIGGER = "zqx-one"
GIB = 2**30
CAPS = (8, 12)
ROOM_FOR_FLOAT32 = 20 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Sizes of a model and of the pictures.

    Attributes:
        unet, vae: diffusers' configurations.
        text: encoder key -> (width, layers, heads, activation).
        side: pixels.
    """

    unet: dict[str, Any]
    vae: dict[str, Any]
    text: dict[str, tuple[int, int, int, str]]
    side: int


VAE = {
    "down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4,
    "latent_channels": 4, "scaling_factor": 0.13025,
}  # fmt: skip
FULL = Layout(
    unet=UNET,
    vae={**VAE, "block_out_channels": (128, 256, 512, 512), "layers_per_block": 2},
    text={"clip_l": (768, 12, 12, "quick_gelu"), "clip_g": (1280, 32, 20, "gelu")},
    side=1024,
)
TINY = Layout(
    unet={
        **UNET, "sample_size": 8, "block_out_channels": (32, 64, 64), "layers_per_block": 1,
        "transformer_layers_per_block": (1, 1, 1), "attention_head_dim": (2, 2, 2), "cross_attention_dim": 128,
        "projection_class_embeddings_input_dim": 64 + 6 * 256, "norm_num_groups": 8,
    },
    vae={**VAE, "block_out_channels": (8, 8, 8, 8), "layers_per_block": 1, "norm_num_groups": 4},
    text={"clip_l": (64, 1, 1, "quick_gelu"), "clip_g": (64, 1, 1, "gelu")},
    side=128,
)  # fmt: skip
SCHEDULE = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "prediction_type": "epsilon"}


def parts(layout: Layout, device: torch.device, dtype: torch.dtype) -> Parts:
    """A model with random weights, the same for each precision."""
    torch.manual_seed(0)

    def made(build: Callable[[], Any], kind: torch.dtype = dtype) -> Any:
        with device:
            return build().to(kind).requires_grad_(False).eval()

    def text(key: str) -> Any:
        width, layers, heads, act = layout.text[key]
        config = CLIPTextConfig(
            vocab_size=VOCABULARY_SIZE, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers,
            num_attention_heads=heads, hidden_act=act, projection_dim=width, bos_token_id=49406, eos_token_id=49407,
        )  # fmt: skip
        return (CLIPTextModelWithProjection if key == "clip_g" else CLIPTextModel)(config)

    return Parts(
        family=SDXL,
        unet=made(lambda: UNet2DConditionModel(**layout.unet)),
        vae=made(lambda: AutoencoderKL(**layout.vae), vae_dtype(dtype)),
        text_encoders={key: made(lambda key=key: text(key)) for key in layout.text},  # type: ignore[misc]
        scheduler_config=SCHEDULE,
    )


def gradients(model: StandaloneModel, layout: Layout, device: torch.device, scale: float) -> Tensor:
    """Of a loss to one vector in each encoder, joined, in float32; unscaled after the backward pass."""
    tables = model.vocabulary().tables
    leaves = {key: table[encode("green")[0]][None].float().clone().requires_grad_() for key, table in tables.items()}
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(1, 4, layout.side // 16, layout.side // 16, generator=generator).to(device)
    size = [Sizes(original=(layout.side, layout.side), target=(layout.side, layout.side))]
    found = torch.zeros(sum(block.numel() for block in leaves.values()))
    with model.trainable(), recomputed(model.unet):
        for step in (50, 350, 650, 950):
            told = model.encode_prompts([f"a photo of {TRIGGER}"], {TRIGGER: leaves}, size)
            output = model.predict(noise, torch.tensor([step]), told)
            loss = (output.float() - noise.roll(1, 0)).square().mean()
            blocks = torch.autograd.grad(loss * scale, list(leaves.values()))
            found += torch.cat([block.flatten() for block in blocks]).cpu() / scale
    return found


def precision(layout: Layout, device: torch.device) -> list[tuple[str, float, float]]:
    """(precision, cosine to float32, share of numbers that vanish unscaled); empty where float32 has no room."""
    if device.type == "cuda" and torch.cuda.mem_get_info(device)[0] < ROOM_FOR_FLOAT32:
        return []
    exact = gradients(StandaloneModel(parts(layout, device, torch.float32)), layout, device, 1.0)
    rows = []
    for kind in (torch.float16, torch.bfloat16):
        emptied(device)
        model = StandaloneModel(parts(layout, device, kind))
        scaled = gradients(model, layout, device, 2.0**12 if kind == torch.float16 else 1.0)
        plain = gradients(model, layout, device, 1.0)
        lost = float(((plain == 0) & (exact != 0)).float().mean())
        cosine = float(torch.nn.functional.cosine_similarity(scaled.double(), exact.double(), dim=0))
        rows.append((str(kind).removeprefix("torch."), cosine, lost))
    return rows


def data(layout: Layout) -> Dataset:
    """Two pictures of noise."""
    from PIL import Image

    generator = torch.Generator().manual_seed(2)
    made = [torch.randint(0, 256, (layout.side, layout.side, 3), generator=generator).byte().numpy() for _ in range(2)]
    return from_images([Image.fromarray(each) for each in made], [f"a photo of {TRIGGER}"] * 2)


def steps(model: StandaloneModel, layout: Layout, side: int, batch: int, checkpointing: str) -> Iterator[StepEvent]:
    """Steps of the real loop, one for each `next`."""
    config = TrainConfig(
        name=TRIGGER, start_text="green", resolution=side, steps=10**6, batch_size=batch, validate_every=0,
        checkpoint_every=0, self_test=False, checkpointing=checkpointing,
    )  # fmt: skip
    return (event for event in train(config, model, data(layout)) if isinstance(event, StepEvent))


def peak(layout: Layout, device: torch.device, cap: float | None, side: int) -> float | None:
    """GiB at the peak of two steps under a cap of so many GiB; None where they do not fit."""
    emptied(device)
    model = StandaloneModel(parts(layout, device, torch.float16 if device.type == "cuda" else torch.float32))
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, (cap or total) * (GIB if cap else 1) / total), device)
        torch.cuda.reset_peak_memory_stats(device)
    try:
        running = steps(model, layout, side, 1, "on")
        for _ in range(2):
            next(running)
        running.close()  # type: ignore[attr-defined]
    except (torch.cuda.OutOfMemoryError, RuntimeError) as error:
        if "memory" not in str(error):
            raise
        return None
    finally:
        if device.type == "cuda":
            torch.cuda.set_per_process_memory_fraction(1.0, device)
    return torch.cuda.max_memory_allocated(device) / GIB if device.type == "cuda" else 0.0


def pace(layout: Layout, device: torch.device, repetitions: int) -> tuple[float, float, float]:
    """Median ratio of a whole step to the bare model, and both in milliseconds; blocks computed again in both."""
    emptied(device)
    model = StandaloneModel(parts(layout, device, torch.float16 if device.type == "cuda" else torch.float32))
    running = steps(model, layout, layout.side, 1, "on")
    next(running)
    bare = _bare(model, layout, device)
    pairs = [(timed(lambda: next(running), device), timed(bare, device)) for _ in range(repetitions + 1)][1:]
    running.close()  # type: ignore[attr-defined]
    ours, floor = (1000 * statistics.median(column) for column in zip(*pairs, strict=True))
    return median_ratio(pairs), ours, floor


def _bare(model: StandaloneModel, layout: Layout, device: torch.device) -> Callable[[], None]:
    """One forward and one backward pass with fixed inputs; called while a run has the blocks checkpointed."""
    tables = model.vocabulary().tables
    leaves = {key: table[encode("green")[0]][None].float().clone().requires_grad_() for key, table in tables.items()}
    noise = torch.randn(1, 4, layout.side // 8, layout.side // 8).to(device)
    time_, size = torch.tensor([500]), [Sizes(original=(layout.side,) * 2, target=(layout.side,) * 2)]

    def step() -> None:
        told: Conditioning = model.encode_prompts([f"a photo of {TRIGGER}"], {TRIGGER: leaves}, size)
        loss = model.predict(noise, time_, told).float().square().mean()
        torch.autograd.grad(loss * 4096, list(leaves.values()))

    return step


def timed(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, until the device has done it."""
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def emptied(device: torch.device) -> None:
    """Give back what torch keeps of a former model."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def measure(layout: Layout, device: torch.device, repetitions: int) -> float:
    """Measure and print all; the figure."""
    print("| precision | cosine of the gradient to float32 | numbers that vanish unscaled |\n|---|---|---|")
    for kind, cosine, lost in precision(layout, device):
        print(f"| {kind} | {cosine:.5f} | {lost:.2%} |")
    print("\n| cap, GiB | pixels | peak, GiB |\n|---|---|---|")
    for cap in CAPS if device.type == "cuda" else CAPS[:1]:  # elsewhere nothing holds to a cap
        for side in (layout.side // 2, layout.side):
            found = peak(layout, device, cap, side)
            print(f"| {cap} | {side} | {'does not fit' if found is None else f'{found:.2f}'} |")
    ratio, ours, floor = pace(layout, device, repetitions)
    print(f"\nstep {ours:.1f} ms, bare model {floor:.1f} ms")
    return ratio


def main() -> None:
    tiny = "--tiny" in sys.argv
    sys.argv = [each for each in sys.argv if each != "--tiny"]
    flags = arguments(__doc__ or "")
    if not tiny and not torch.cuda.is_available():
        print("not measured: there is no CUDA device here (--tiny runs it in small on any device)")
        sys.exit(3)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    repetitions = 3 if flags.quick or tiny else 10
    ratio = measure(TINY if tiny else FULL, device, repetitions)
    close(Figure(name="device", figure=ratio, unit="x the bare model", better="lower", goal=GOAL, n=repetitions), flags)


if __name__ == "__main__":
    main()
