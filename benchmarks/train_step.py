"""What a training step costs over the bare model: ``python benchmarks/train_step.py [--quick] [--json] [--host …]``.

Figure: processor time of one whole step of `ti_fix.train.train` (batch, noise, text, UNet, backward, clipping, update,
monitors, events) over that of the bare floor: the same encoders and UNet, one forward and one backward to the vectors,
nothing else. Both are run in turn; the figure is the median over the pairs. Beside it: the way of other trainers, which
put the whole token tables into the optimiser, the bytes of state, and how a step grows.

``--host --webui WEBUI [more flags of check-host]`` measures the same inside an installed WebUI, with its smallest SDXL
checkpoint: the whole step over the same networks called by hand in the same process.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import torch
from PIL import Image
from torch import Tensor

from harness import Figure, arguments, close, median_ratio, paired
from ti_fix.hosts.standalone import Parts, StandaloneModel, parts_of_small
from ti_fix.small import load
from ti_fix.small.concepts import concepts
from ti_fix.small.scenes import render
from ti_fix.tokenizer import encode
from ti_fix.train import StepEvent, TrainConfig, from_images, train
from ti_fix.train.optimise import AdamW

TRIGGER = "zqx-one"
GOAL, HOST_GOAL = 1.05, 1.10
BOS, EOS = 49406, 49407


def pictures(count: int, side: int) -> tuple[list[Image.Image], list[str | None]]:
    """Scenes of one concept with captions of their own."""
    chance = random.Random(0)
    described = [concepts("hue")[0].draw(chance, TRIGGER) for _ in range(count)]
    images = [Image.fromarray(render(each.scene)).resize((side, side)) for each in described]
    return images, [
        f"a {TRIGGER} number {word} on the table" for word in "one two three four five six seven eight".split()
    ][:count]


def our_steps(parts: Parts, *, batch: int, vectors: int, side: int, optimiser: str = "adamw") -> Iterator[StepEvent]:
    """Steps of the real loop, one for each `next`."""
    images, captions = pictures(batch, side)
    settings = TrainConfig(
        name=TRIGGER, start_text="green", vectors=vectors, resolution=side, steps=10**6, batch_size=batch,
        validate_every=0, checkpoint_every=0, self_test=False, optimiser=optimiser,
    )  # fmt: skip
    events = train(settings, StandaloneModel(parts), from_images(images, captions))
    return (event for event in events if isinstance(event, StepEvent))


class Floor:
    """The same modules by hand: fixed latents, noise and ids; forward, backward to the vectors, and no more."""

    def __init__(self, parts: Parts, *, batch: int, vectors: int, side: int, whole_table: bool = False) -> None:
        self.parts, self.batch = parts, batch
        for module in (parts.unet, *parts.text_encoders.values()):
            module.requires_grad_(False).eval()
        generator = torch.Generator().manual_seed(0)
        self.noise = torch.randn(batch, 4, side // 8, side // 8, generator=generator)
        self.noisy = torch.randn(batch, 4, side // 8, side // 8, generator=generator)
        self.times = torch.randint(0, 1000, (batch,), generator=generator)
        self.sizes = torch.tensor([[side, side, 0, 0, side, side]] * batch, dtype=torch.float32)
        self.place = 2  # after the start token and "a"
        self.vectors: dict[str, Tensor] = {}
        self.ids: dict[str, Tensor] = {}
        words = "one two three four five six seven eight".split()
        for key, encoder in parts.text_encoders.items():
            table = encoder.get_input_embeddings()
            self.vectors[key] = table.weight[encode("green")].repeat(vectors, 1).clone().requires_grad_()
            pad = 0 if key == "clip_g" else EOS
            rows = [
                [BOS, *encode("a"), *[0] * vectors, *encode(f"number {w} on the table"), EOS] for w in words[:batch]
            ]
            self.ids[key] = torch.tensor([row + [pad] * (77 - len(row)) for row in rows])
            self.end = len(rows[0]) - 1
            if whole_table:
                table.weight.requires_grad_(True)
            else:
                table.register_forward_hook(self._splice(key))

    def _splice(self, key: str) -> Callable[..., Tensor]:
        def splice(_module: object, _args: object, output: Tensor) -> Tensor:
            own = self.vectors[key].expand(self.batch, -1, -1)
            return torch.cat([output[:, : self.place], own, output[:, self.place + own.shape[1] :]], dim=1)

        return splice

    def loss(self) -> Tensor:
        """Forward."""
        encoders = self.parts.text_encoders
        states = {key: encoder(self.ids[key], output_hidden_states=True) for key, encoder in encoders.items()}
        context = torch.cat([each.hidden_states[-2] for each in states.values()], dim=-1)
        last = states["clip_g"].last_hidden_state
        pooled = encoders["clip_g"].text_projection(last[:, self.end])
        added = {"text_embeds": pooled, "time_ids": self.sizes}
        output = self.parts.unet(self.noisy, self.times, context, added_cond_kwargs=added).sample
        return torch.nn.functional.mse_loss(output, self.noise)

    def step(self) -> None:
        """Forward and backward."""
        torch.autograd.grad(self.loss(), list(self.vectors.values()))


def fresh() -> Parts:
    """A copy of the small model, so that hooks and flags of one way do not touch the other."""
    return parts_of_small(load("sdxl"))


def timed(call: Callable[[], object]) -> Callable[[], float]:
    """Processor seconds of one call."""

    def measure() -> float:
        start = time.process_time()
        call()
        return time.process_time() - start

    return measure


def compare(*, batch: int, vectors: int, side: int, repetitions: int) -> tuple[float, float, float]:
    """Median ratio, our milliseconds, and the floor's."""
    steps = our_steps(fresh(), batch=batch, vectors=vectors, side=side)
    floor = Floor(fresh(), batch=batch, vectors=vectors, side=side)
    next(steps)  # encodes the pictures
    pairs = paired(timed(lambda: next(steps)), timed(floor.step), repetitions)
    ours, bare = (1000 * statistics.median(column) for column in zip(*pairs, strict=True))
    return median_ratio(pairs), ours, bare


def whole_table(batch: int, side: int, repetitions: int) -> float:
    """Milliseconds of a step that keeps both whole tables in torch's AdamW and puts the other rows back after it."""
    floor = Floor(fresh(), batch=batch, vectors=1, side=side, whole_table=True)
    tables = [e.get_input_embeddings().weight for e in floor.parts.text_encoders.values()]
    update = torch.optim.AdamW(tables, lr=1e-3)
    originals = [table.detach().clone() for table in tables]

    def step() -> None:
        update.zero_grad()
        floor.loss().backward()
        update.step()
        with torch.no_grad():
            for table, original in zip(tables, originals, strict=True):
                table[1:] = original[1:]

    return 1000 * statistics.median(timed(step)() for _ in range(repetitions))


def bytes_of_state() -> int:
    """Gradient and optimiser state of one vector pair of the published widths."""
    pair = {"clip_l": torch.ones(1, 768), "clip_g": torch.ones(1, 1280)}
    update = AdamW(dict.fromkeys(pair, 0.0))
    update.update(pair, pair, dict.fromkeys(pair, 0.01))
    return sum(t.numel() * t.element_size() for t in (*pair.values(), *update.state().values()))


def in_host(argv: list[str], flags: argparse.Namespace) -> None:
    """The figure inside a WebUI."""
    from tests.hosts.check_training import step_times

    pairs = step_times(argv, 20 if flags.quick else 60)
    ours, bare = (1000 * statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"whole step {ours:.1f} ms, bare model {bare:.1f} ms (processor)")
    figure = median_ratio(pairs)
    close(
        Figure(name="train_step_host", figure=figure, unit="x the bare model", better="lower", goal=HOST_GOAL,
               n=len(pairs)), flags)  # fmt: skip


def main() -> None:
    place = sys.argv.index("--host") if "--host" in sys.argv else len(sys.argv)
    host, sys.argv = sys.argv[place + 1 :], sys.argv[:place]
    flags = arguments(__doc__ or "")
    if host:
        in_host(host, flags)
        return
    repetitions = 30 if flags.quick else 120
    ratio, ours, bare = compare(batch=8, vectors=1, side=128, repetitions=repetitions)
    table = whole_table(8, 128, 3 if flags.quick else 10)
    print("| way | ms a step (processor) | over the floor |")
    print("|---|---|---|")
    print(f"| bare floor: forward and backward | {bare:.1f} | 1.000 |")
    print(f"| ti_fix, whole step | {ours:.1f} | {ratio:.3f} |")
    print(f"| whole token tables in AdamW (64 wide; 2048 in SDXL) | {table:.1f} | {table / bare:.3f} |")
    print(f"bytes of gradient and optimiser state for one vector pair of SDXL: {bytes_of_state()}")
    if not flags.quick:
        for name, settings in {
            "4 vectors": {"batch": 8, "vectors": 4, "side": 128},
            "16 vectors": {"batch": 8, "vectors": 16, "side": 128},
            "batch 1": {"batch": 1, "vectors": 1, "side": 128},
            "batch 2": {"batch": 2, "vectors": 1, "side": 128},
            "256 pixels": {"batch": 8, "vectors": 1, "side": 256},
        }.items():
            other, ours, bare = compare(**settings, repetitions=repetitions // 4)
            print(f"{name}: ours {ours:.1f} ms, floor {bare:.1f} ms, ratio {other:.3f}")
    close(
        Figure(name="train_step", figure=ratio, unit="x the bare model", better="lower", goal=GOAL, n=repetitions),
        flags,
    )


if __name__ == "__main__":
    main()
