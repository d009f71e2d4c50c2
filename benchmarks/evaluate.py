"""Pictures a second of a judge over the bare forward pass. ``python benchmarks/evaluate.py [--quick] [--json]``

A ViT-B/32 of random weights and real size reads the same pictures twice: through our judge, which starts at PIL
pictures, and as a bare forward of open_clip's own model on pixels that are ready. Where open_clip is not installed, the
bare forward is our own tower's, and the output says so. Figure: bare time over our time, median of pairs; processor
time in one thread, which other programs hardly disturb.
"""

from __future__ import annotations

import time
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from harness import Figure, arguments, close, median_ratio, paired, run_benchmark
from ti_fix.evaluate import from_state
from ti_fix.evaluate.backbone import BATCH, Preprocessing

GOAL = 0.95
WIDTH, LAYERS, PATCH, SIDE, FEATURES = 768, 12, 32, 224, 512
TEXT_WIDTH, TEXT_LAYERS, VOCABULARY, CONTEXT = 512, 1, 49408, 77


def random_state() -> dict[str, Tensor]:
    """ViT-B/32's image tower with a text tower of one layer, in open_clip's layout."""
    torch.manual_seed(0)
    state = {
        "visual.class_embedding": torch.randn(WIDTH) * 0.02,
        "visual.positional_embedding": torch.randn((SIDE // PATCH) ** 2 + 1, WIDTH) * 0.02,
        "visual.proj": torch.randn(WIDTH, FEATURES) * 0.02,
        "visual.conv1.weight": torch.randn(WIDTH, 3, PATCH, PATCH) * 0.02,
        "positional_embedding": torch.randn(CONTEXT, TEXT_WIDTH) * 0.02,
        "token_embedding.weight": torch.randn(VOCABULARY, TEXT_WIDTH) * 0.02,
        "text_projection": torch.randn(TEXT_WIDTH, FEATURES) * 0.02,
        "logit_scale": torch.tensor(4.6),
        **_norm("visual.ln_pre", WIDTH),
        **_norm("visual.ln_post", WIDTH),
        **_norm("ln_final", TEXT_WIDTH),
    }
    for number in range(LAYERS):
        state |= _block(f"visual.transformer.resblocks.{number}.", WIDTH)
    for number in range(TEXT_LAYERS):
        state |= _block(f"transformer.resblocks.{number}.", TEXT_WIDTH)
    return state


def _norm(name: str, width: int) -> dict[str, Tensor]:
    return {f"{name}.weight": torch.ones(width), f"{name}.bias": torch.zeros(width)}


def _block(name: str, width: int) -> dict[str, Tensor]:
    shapes = {"attn.in_proj_": (3 * width, width), "attn.out_proj.": (width, width)}
    shapes |= {"mlp.c_fc.": (4 * width, width), "mlp.c_proj.": (width, 4 * width)}
    tensors = {f"{name}{key}weight": torch.randn(shape) * 0.02 for key, shape in shapes.items()}
    tensors |= {f"{name}{key}bias": torch.zeros(shape[0]) for key, shape in shapes.items()}
    return tensors | _norm(f"{name}ln_1", width) | _norm(f"{name}ln_2", width)


def bare_forward(state: dict[str, Tensor], judge: Any) -> tuple[Any, str]:
    """Pixels to features, and whose."""
    if find_spec("open_clip") is None or find_spec("torchvision") is None:
        return judge._tower.encode_image, "our own tower (open_clip is not installed)"  # noqa: SLF001 - measured alone
    import open_clip

    model = open_clip.create_model("ViT-B-32", pretrained=None)
    own = {key: value for key, value in state.items() if key.startswith("visual.")}
    model.load_state_dict(own, strict=False)
    model.eval()
    return lambda pixels: torch.nn.functional.normalize(model.encode_image(pixels), dim=-1), "open_clip's model"


@torch.no_grad()
def main() -> None:
    """Measure, and see that the features agree."""
    flags = arguments(__doc__ or "")
    repetitions, count = (4, BATCH // 4) if flags.quick else (12, 2 * BATCH)
    state = random_state()
    judge = from_state(state, "ViT-B-32", {})
    rng = np.random.RandomState(0)
    pictures = [Image.fromarray(rng.randint(0, 256, (512, 512, 3), dtype=np.uint8)) for _ in range(count)]
    pixels = Preprocessing(size=SIDE, resize=SIDE).pixels(pictures)
    forward, whose = bare_forward(state, judge)

    def ours() -> float:
        start = time.process_time()
        judge.pictures(pictures)
        return time.process_time() - start

    def bare() -> float:
        start = time.process_time()
        for part in pixels.split(BATCH):
            forward(part)
        return time.process_time() - start

    agree = (judge.pictures(pictures[:4]) - forward(pixels[:4])).abs().max()
    pairs = paired(bare, ours, repetitions)
    print(f"the bare forward is of {whose}; features differ by {float(agree):.1e} at most")
    print(f"{count / sorted(b for _, b in pairs)[len(pairs) // 2]:.1f} pictures of 512 x 512 a second")
    figure = Figure(
        name="evaluate", figure=median_ratio(pairs), unit="of bare throughput", better="higher", goal=GOAL, n=len(pairs)
    )
    close(figure, flags)


if __name__ == "__main__":
    run_benchmark(main)
