"""Does training name what goes wrong, and nothing else? ``python benchmarks/faults.py [--quick] [--json]``.

Faults are put into runs on the small SDXL, each must be named by its own code or sentence, and what was learned before
must not be lost; clean runs must not raise an alarm. Figure: named faults less false alarms, as a share of the faults.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from PIL import Image

from harness import Figure, arguments, close
from ti_fix.errors import TiFixError
from ti_fix.hosts.standalone import StandaloneModel, parts_of_small
from ti_fix.protocols import NoiseSchedule
from ti_fix.small import load
from ti_fix.small.concepts import concepts
from ti_fix.small.scenes import render
from ti_fix.train import CheckpointEvent, DoneEvent, FindingEvent, StepEvent, TrainConfig, gather, train

TRIGGER = "zqx-one"
GOAL = 0.9
ALARMS = frozenset({"warning", "error"})


def folder(where: Path, *, caption: str = f"a {TRIGGER} on a table") -> Path:
    """A folder of three pictures with captions."""
    chance = random.Random(0)
    pictures = where / "pictures"
    pictures.mkdir(parents=True)
    for i in range(3):
        Image.fromarray(render(concepts("hue")[0].draw(chance).scene)).save(pictures / f"{i}.png")
        (pictures / f"{i}.txt").write_text(caption, encoding="utf-8")
    return pictures


def settings(where: Path, **changes: Any) -> TrainConfig:
    """A short run on that folder."""
    base = TrainConfig(
        name=TRIGGER,
        folders=(str(where / "pictures"),),
        start_text="green",
        resolution=128,
        steps=6,
        batch_size=2,
        warmup=2,
        validate_every=3,
        validation_timesteps=2,
        checkpoint_every=2,
        out=str(where / "out"),
    )
    return replace(base, **changes)


def told(config: TrainConfig, on: Any) -> tuple[set[str], str, DoneEvent | None]:
    """Codes of warnings and errors, everything that was said, and the end if there was one."""
    codes, said, end = set(), [], None
    try:
        for event in train(config, on, gather(config)):
            if isinstance(event, FindingEvent) and event.finding.severity in ALARMS:
                codes.add(event.finding.code)
                said.append(event.finding.message)
            if isinstance(event, DoneEvent):
                end = event
    except TiFixError as error:
        said.append(str(error))
    return codes, " ".join(said), end


class Changed:
    """The model with something done to its answers."""

    def __init__(self, inner: Any, predict: Callable[[Any, int], Any] | None = None, **others: Any) -> None:
        self._inner, self._predict, self._calls = inner, predict, 0
        self._others = others

    def __getattr__(self, name: str) -> Any:
        return self._others[name] if name in self._others else getattr(self._inner, name)

    def predict(self, noisy: Any, timesteps: Any, conditioning: Any) -> Any:
        output = self._inner.predict(noisy, timesteps, conditioning)
        if self._predict is None or not torch.is_grad_enabled():
            return output
        self._calls += 1
        return self._predict(output, self._calls)


def nan_at(call: int) -> Callable[[Any, int], Any]:
    """NaN in the second row of one answer."""

    def change(output: Any, number: int) -> Any:
        if number != call:
            return output
        output = output.clone()
        output[1] = float("nan")
        return output

    return change


@contextmanager
def full_disk(after: int) -> Iterator[None]:
    """Writing fails after so many files."""
    real, written = os.fsync, []

    def fsync(number: int) -> None:
        written.append(number)
        if len(written) > after:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(number)

    with mock.patch.object(os, "fsync", fsync):
        yield


Fault = Callable[[Path, Any], bool]
"""A place of its own and the model -> whether the fault was named and nothing was lost."""


def rate_too_high(where: Path, on: Any) -> bool:
    folder(where)
    return "rate-high" in told(settings(where, learning_rate="3"), on)[0]


def rate_of_nothing(where: Path, on: Any) -> bool:
    folder(where)
    return "rate-low" in told(settings(where, learning_rate="1e-7"), on)[0]


def corrupt_picture(where: Path, on: Any) -> bool:
    path = folder(where) / "1.png"
    path.write_bytes(path.read_bytes()[:300])
    codes, said, end = told(settings(where), on)
    return "unusable-picture" in codes and "1.png" in said and end is not None


def captions_without_the_name(where: Path, on: Any) -> bool:
    folder(where, caption="a green thing on a table")
    codes, _, end = told(settings(where), on)
    return "trigger-missing" in codes and end is None


def wrong_prediction_type(where: Path, on: Any) -> bool:
    folder(where)
    wrong = NoiseSchedule(alphas_cumprod=on.schedule.alphas_cumprod, prediction_type="v_prediction")
    codes, _, end = told(settings(where), Changed(on, schedule=wrong))
    return "wrong-prediction-type" in codes and end is not None


def nan_in_one_step(where: Path, on: Any) -> bool:
    folder(where)
    codes, said, end = told(settings(where, self_test=False), Changed(on, nan_at(4)))
    return "not-finite" in codes and "timestep" in said and end is not None


def disk_that_fills_up(where: Path, on: Any) -> bool:
    folder(where)
    with full_disk(5):
        _, said, _ = told(settings(where), on)
    return "disk is full" in said and (where / "out" / f"{TRIGGER}.training" / "latest.state").exists()


def name_that_is_taken(where: Path, on: Any) -> bool:
    folder(where)
    taken = where / "out" / f"{TRIGGER}.safetensors"
    taken.parent.mkdir()
    taken.write_bytes(b"precious")
    codes, _, _ = told(settings(where), on)
    return "name-taken" in codes and taken.read_bytes() == b"precious"


def folder_that_cannot_be_written(where: Path, on: Any) -> bool:
    folder(where)
    (where / "out").write_text("a file")
    return "out-unwritable" in told(settings(where), on)[0]


def attention_without_a_gradient(where: Path, on: Any) -> bool:
    folder(where)
    _, said, end = told(settings(where), Changed(on, lambda output, _: output.detach()))
    return "gradient" in said and end is None


def attention_with_a_wrong_gradient(where: Path, on: Any) -> bool:
    folder(where)
    weaker = Changed(on, lambda output, _: output.detach() + 0.3 * (output - output.detach()))
    _, said, end = told(settings(where), weaker)
    return "finite differences" in said and end is None


def gradient_lost_in_half_precision(where: Path, on: Any) -> bool:
    """A UNet that hardly answers to the text: its gradient is below half precision unless the loss is scaled."""
    del on
    folder(where)
    half = parts_of_small(load("sdxl"))
    for module in (half.unet, *half.text_encoders.values()):
        module.half()
    with torch.no_grad():
        half.unet.conv_out.weight.mul_(1e-4)  # without a loss factor every gradient is then exactly 0
    config = settings(where, self_test=False, steps=3, validate_every=0)
    events = list(train(config, StandaloneModel(half), gather(config)))
    steps = [event for event in events if isinstance(event, StepEvent)]
    return len(steps) == 3 and all(min(step.gradients.values()) > 0 for step in steps)


def vae_that_overflows(where: Path, on: Any) -> bool:
    """A VAE that leaves the range of half precision in its first layer: the pictures are encoded all the same."""
    del on
    folder(where)
    broken = parts_of_small(load("sdxl"))
    with torch.no_grad():
        first = broken.vae.encoder.conv_in.weight
        first.mul_(6e4 / first.abs().max())
    broken.vae.half()
    config = settings(where, steps=2, validate_every=0)
    events = list(train(config, StandaloneModel(broken), gather(config)))
    codes = {event.finding.code for event in events if isinstance(event, FindingEvent)}
    return "vae-precision" in codes and isinstance(events[-1], DoneEvent)


class Distilled(Changed):
    """Answers with the end of the model's own path through the noise, which is what distillation teaches."""

    def predict(self, noisy: Any, timesteps: Any, conditioning: Any) -> Any:
        if torch.is_grad_enabled():
            return self._inner.predict(noisy, timesteps, conditioning)
        alphas = self._inner.schedule.alphas_cumprod
        here = alphas[timesteps][:, None, None, None]
        way, latents = [(timesteps * share).long() for share in (1, 0.75, 0.5, 0.25, 0)], noisy
        for now, then in pairwise(way):
            signal, next_signal = alphas[now][:, None, None, None], alphas[then][:, None, None, None]
            noise = self._inner.predict(latents, now, conditioning)
            clean = (latents - (1 - signal).sqrt() * noise) / signal.sqrt()
            latents = next_signal.sqrt() * clean + (1 - next_signal).sqrt() * noise
        return (noisy - here.sqrt() * clean) / (1 - here).sqrt()


def distilled_checkpoint(where: Path, on: Any) -> bool:
    """By its name, and the warning says that the answers agree; answers alone are a note, which is no alarm."""
    folder(where)
    distilled = Distilled(on, described=("shapes-lightning.safetensors",))
    codes, said, end = told(settings(where, steps=2, validate_every=0, self_test=False), distilled)
    return "distilled-checkpoint" in codes and "by its answers" in said and end is not None


def killed_process(where: Path, on: Any) -> bool:
    """The run goes on from its last state."""
    folder(where)
    config = settings(where, steps=10**6, checkpoint_every=1, validate_every=0)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        for event in train(config, on, gather(config)):
            if isinstance(event, CheckpointEvent):
                os.write(writing, b"x")
    for _ in range(3):
        os.read(reading, 1)
    os.kill(child, 9)
    os.waitpid(child, 0)
    events = list(train(replace(config, resume=True, steps=4, overwrite=True), on, gather(config)))
    first = next((event.step for event in events if isinstance(event, StepEvent)), 0)
    return first > 1 and isinstance(events[-1], DoneEvent)


FAULTS: tuple[Fault, ...] = (
    rate_too_high,
    rate_of_nothing,
    corrupt_picture,
    captions_without_the_name,
    wrong_prediction_type,
    nan_in_one_step,
    disk_that_fills_up,
    name_that_is_taken,
    folder_that_cannot_be_written,
    attention_without_a_gradient,
    attention_with_a_wrong_gradient,
    gradient_lost_in_half_precision,
    killed_process,
    vae_that_overflows,
    distilled_checkpoint,
)


def clean(where: Path, on: Any, seed: int) -> set[str]:
    """Alarms of a run in which nothing is wrong."""
    folder(where)
    optimiser = ("adamw", "direction")[seed % 2]
    config = settings(where, seed=seed, steps=60, optimiser=optimiser, validate_every=20, checkpoint_every=0)
    return told(config, on)[0]


def main() -> None:
    flags = arguments(__doc__ or "")
    on = StandaloneModel(parts_of_small(load("sdxl")))
    runs = 2 if flags.quick else 20
    where = Path(tempfile.mkdtemp(prefix="ti_fix_faults_"))
    try:
        found = {fault.__name__.replace("_", " "): fault(where / fault.__name__, on) for fault in FAULTS}
        alarms = [clean(where / f"clean{seed}", on, seed) for seed in range(runs)]
    finally:
        shutil.rmtree(where)
    print("| fault | named, nothing lost |")
    print("|---|---|")
    for name, good in found.items():
        print(f"| {name} | {'yes' if good else 'NO'} |")
    false = [sorted(each) for each in alarms if each]
    print(f"clean runs with an alarm: {len(false)} of {runs} {false}")
    figure = (sum(found.values()) - len(false)) / len(found)
    close(
        Figure(name="faults", figure=figure, unit="of the faults named, less false alarms", better="higher",
               goal=GOAL, n=len(found) + runs), flags)  # fmt: skip


if __name__ == "__main__":
    main()
