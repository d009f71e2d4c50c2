"""Training looked at from inside a WebUI: the contract of all adapters, what is given back, step for step equality.

Called by `check_training` through `scripts/ti_fix_inside.py`; answers are JSON.
"""

from __future__ import annotations

import inspect
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from PIL import Image

from tests.hosts.inside import watch
from ti_fix.hosts.host_model import HostModel
from ti_fix.hosts.text_path import Placeholder, triggers
from ti_fix.protocols import DiffusionModel, ImageRequest, Sizes
from ti_fix.train import Dataset, DoneEvent, StepEvent, TrainConfig, ValidationEvent, from_images, train
from ti_fix.train.recompute import recomputed


def training_host() -> Any:
    """Ours, as the extension made it."""
    from ti_fix.hosts import webui

    (host,) = webui._installed
    return host.training_host()


def contract() -> dict[str, Any]:
    """Run `tests.hosts.contract` against this host: what passed, was skipped, failed."""
    import pytest

    from tests.hosts.contract import HostContract

    host = training_host()
    found: dict[str, Any] = {"passed": [], "skipped": [], "failed": {}}

    for name, test in inspect.getmembers(HostContract, inspect.isfunction):
        if not name.startswith("test_"):
            continue
        case = HostContract()
        fixtures = {"host": lambda: host, "model": host.model}
        wanted = [p for p in inspect.signature(test).parameters if p != "self"]
        try:
            test(case, **{name: fixtures[name]() for name in wanted})
            found["passed"].append(name)
        except pytest.skip.Exception as reason:
            found["skipped"].append(f"{name}: {reason}")
        except BaseException:  # noqa: BLE001 - a report is wanted, whatever it is
            found["failed"][name] = traceback.format_exc()[-2500:]
    return found


def offered() -> dict[str, Any]:
    """What a model offers besides: texts about its checkpoint, and its VAE in another precision for one call."""
    from modules import sd_models

    host = training_host()
    model = host.model()
    ramp = torch.linspace(-1, 1, 64)
    pixels = torch.stack([ramp.expand(64, 64), ramp[:, None].expand(64, 64), ramp.flip(0).expand(64, 64)])[None]

    def run() -> dict[str, Any]:
        own = model.encode_images(pixels)
        before = watch.fingerprint(sd_models.model_data.sd_model)
        wider = {kind: model.encode_images_in(pixels, kind) for kind in ("bfloat16", "float32")}
        after = watch.fingerprint(sd_models.model_data.sd_model)
        off = {kind: float((latents - own).norm() / own.norm()) for kind, latents in wider.items()}
        different = [key for key in before if before[key] != after[key]]
        return {"described": list(model.described), "off": off, "different": ", ".join(different)}

    return host.run(run)


class Forced(Exception):
    """Raised on purpose."""


def settings(**changes: Any) -> TrainConfig:
    """A short run on tiny pictures."""
    values: dict[str, Any] = {
        "name": "zqxlearned", "start_text": "red tower", "vectors": 2, "resolution": 64, "steps": 2, "batch_size": 2,
        "warmup": 0, "validate_every": 1, "validation_pictures": 1, "validation_timesteps": 2, "checkpoint_every": 0,
        "self_test": False, "learning_rate": "0.05", **changes,
    }  # fmt: skip
    return TrainConfig(**values)


def data() -> Dataset:
    """Three pictures of coloured stripes with captions."""
    pictures = []
    for number in range(3):
        colours = torch.tensor([(90 * number + 37 * i) % 256 for i in range(3)])
        stripes = (torch.arange(64)[:, None, None] * (number + 1) + colours).remainder(256).expand(64, 64, 3)
        pictures.append(Image.fromarray(stripes.to(torch.uint8).numpy()))
    return from_images(pictures, [f"a zqxlearned, number {word}" for word in ("one", "two", "three")])


def steps(count: int = 10, model: DiffusionModel | None = None, **changes: Any) -> dict[str, Any]:
    """Losses, gradients and vectors of a run's first steps."""
    chosen = model or training_host().model()
    found: dict[str, Any] = {"losses": [], "gradients": [], "vectors": {}}

    def run() -> None:
        for event in train(settings(steps=count, **changes), chosen, data()):
            if isinstance(event, StepEvent):
                found["losses"].append(event.loss)
                found["gradients"].append(dict(event.gradients))
            if isinstance(event, ValidationEvent) and event.step == 0:
                found["fixed"] = event.loss
            if isinstance(event, DoneEvent):
                found["vectors"] = {key: block.tolist() for key, block in event.embedding.vectors.items()}

    run() if model is not None else training_host().run(run)
    return found


def gradients_of_both_ways() -> dict[str, float]:
    """Largest relative difference between gradients in one pass, in two, and with the UNet computed again."""
    host = training_host()
    loaded = host.model()._loaded

    def once(two: bool, again: bool) -> list[torch.Tensor]:
        model = HostModel(loaded, two_passes=two)
        rows = {
            key: block[[736, 929]].float().clone().requires_grad_() for key, block in model.vocabulary().tables.items()
        }
        latents = torch.randn(2, 4, 16, 16, generator=torch.Generator().manual_seed(0))
        sizes = [Sizes(original=(64, 64), target=(64, 64))] * 2
        with model.trainable(), recomputed(model.unet) if again else nullcontext():
            told = model.encode_prompts(["a zqx cat", "the (zqx:1.2)"], {"zqx": rows}, sizes)
            loss = model.predict(latents, torch.tensor([100, 700]), told).square().mean()
            return list(torch.autograd.grad(loss, list(rows.values())))

    def run() -> dict[str, float]:
        plain = once(two=False, again=False)
        ways = {"two passes": (True, False), "computed again": (False, True), "both": (True, True)}
        return {
            name: max(float((a - b).norm() / b.norm()) for a, b in zip(once(*way), plain, strict=True))
            for name, way in ways.items()
        }

    return host.run(run)


def forced(*, also_interrupts: bool = False) -> dict[str, dict[str, str]]:
    """Force an exception at every stage of a run; what is different afterwards, stage by stage."""
    host = training_host()
    from modules import sd_models

    model = host.model()
    host.generate(ImageRequest(prompt="a cat", width=64, height=64, steps=1))  # the first picture changes the host
    loaded = sd_models.model_data.sd_model
    before = watch.fingerprint(loaded)
    found: dict[str, dict[str, str]] = {}
    for stage in watch.STAGES:
        for error in (Forced, KeyboardInterrupt) if also_interrupts else (Forced,):
            said = "nothing was raised"
            try:
                with watch.failing(stage, model, error):
                    host.run(lambda: _whole_run(host))
            except error:
                said = ""
            except BaseException as other:  # noqa: BLE001 - it is the answer
                said = "" if stage == "preview" else repr(other)
            after = watch.fingerprint(loaded)
            different = [key for key in before if before[key] != after[key]]
            if stage == "preview" and error is Forced and said == "nothing was raised":
                said = ""  # told, and the training goes on
            found[f"{stage}, {error.__name__}"] = {"different": ", ".join(different), "said": said}
    return found


def _whole_run(host: Any) -> None:
    config = settings(steps=1, validate_every=0, preview_every=1, preview_steps=1)
    for _ in train(config, host.model(), data(), generate=host.generate):
        pass


def step_times(count: int = 20, **changes: Any) -> dict[str, list[float]]:
    """Processor seconds of whole steps, and of the bare model (encode, UNet, backward) in turn."""
    host = training_host()
    found: dict[str, list[float]] = {"ours": [], "floor": []}

    def run() -> None:
        config = settings(steps=10**6, validate_every=0, batch_size=3, **changes)
        model = host.model()
        events = (e for e in train(config, model, data()) if isinstance(e, StepEvent))
        next(events)
        floor = bare(model, config)
        for _ in range(count + 1):
            for name, call in (("ours", lambda: next(events)), ("floor", floor)):
                start = time.process_time()
                call()
                found[name].append(time.process_time() - start)
        events.close()

    host.run(run)
    return {name: times[1:] for name, times in found.items()}


def bare(model: HostModel, config: TrainConfig) -> Callable[[], None]:
    """The same networks by hand: chunks that are already cut, one forward pass, one backward pass to the vectors.

    Called while a run holds the weights, or they could not take part in autograd.
    """
    encoders = model.text.encoders
    leaves = {key: table[[736, 929]].float().clone() for key, table in model.vocabulary().tables.items()}
    embedding = Placeholder(config.name, config.vectors)
    embedding.vec = {key: block.requires_grad_() for key, block in leaves.items()}
    prompts = [f"a {config.name}, number {word}" for word in ("one", "two", "three")]
    chunks = []
    for encoder in encoders:
        with triggers(encoder.engine, encoder.database, [embedding]):
            chunks.append([cut[0] for cut in encoder.engine.process_texts(prompts)[0]])
    side = config.resolution
    features = model._loaded.size_features([Sizes(original=(side, side), target=(side, side))] * 3)
    noise = torch.randn(3, 4, side // 8, side // 8, generator=torch.Generator().manual_seed(0))
    unet, times = model.unet, torch.tensor([100.0, 500.0, 900.0])
    own = "transformer_options" in inspect.signature(unet.forward).parameters

    def step() -> None:
        states = []
        for encoder, cut in zip(encoders, chunks, strict=True):
            encoder.slot.fixes = [chunk.fixes for chunk in cut]
            states.append(encoder.engine.process_tokens([c.tokens for c in cut], [c.multipliers for c in cut]))
        pooled = None if features is None else torch.cat([states[-1].pooled, features], dim=1)
        given: dict[str, Any] = {"transformer_options": {}} if own else {}
        output = unet(noise, timesteps=times, context=torch.cat(states, dim=-1), y=pooled, **given)
        loss = torch.nn.functional.mse_loss(output, noise)
        torch.autograd.grad(loss, list(leaves.values()))

    return step
