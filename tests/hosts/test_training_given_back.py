"""Whatever ends a run, all that it borrowed of a WebUI is given back; what cannot work is refused at the start."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.hosts.inside import watch
from tests.hosts.training_runs import REQUEST, SIZE, config, pictures
from ti_fix.errors import TiFixError, WrongUse
from ti_fix.jobs import Job
from ti_fix.train import DoneEvent, PreviewEvent, StepEvent, train


@pytest.mark.parametrize(
    ("stage", "error"),
    [
        *((stage, RuntimeError) for stage in watch.STAGES),
        ("text", KeyboardInterrupt),
        ("unet block", KeyboardInterrupt),
    ],
)
def test_everything_is_given_back_when_a_stage_fails(both, stage, error):
    webui, host = both
    model = host.model()
    plain = np.asarray(host.generate(REQUEST))
    before = watch.fingerprint(webui.model)
    with watch.failing(stage, model, error), pytest.raises((error, TiFixError)):
        host.run(lambda: _use_everything(host))
    assert watch.fingerprint(webui.model) == before
    assert np.array_equal(np.asarray(host.generate(REQUEST)), plain)


def _use_everything(host):
    for event in train(config(preview_every=1, preview_steps=1), host.model(), pictures(), generate=host.generate):
        if (
            not isinstance(event, PreviewEvent)
            and getattr(getattr(event, "finding", None), "code", "") == "preview-failed"
        ):
            raise TiFixError("told, and the training would go on")


def test_everything_is_given_back_after_a_whole_run_and_after_a_stop(both):
    webui, host = both
    plain = np.asarray(host.generate(REQUEST))
    before = watch.fingerprint(webui.model)
    how = config(preview_every=1, preview_steps=2)
    events = host.run(lambda: list(train(how, host.model(), pictures(), generate=host.generate)))
    assert isinstance(events[-1], DoneEvent) and sum(isinstance(e, PreviewEvent) for e in events) == 3
    assert watch.fingerprint(webui.model) == before
    assert np.array_equal(np.asarray(host.generate(REQUEST)), plain)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the kill itself
def test_everything_is_given_back_when_the_worker_is_killed(both):
    webui, host = both
    before = watch.fingerprint(webui.model)

    def events(stop):
        for event in train(config(), host.model(), pictures()):
            yield event
            if isinstance(event, StepEvent):
                raise SystemExit

    job = Job()
    job.start("killed", events, run=host.run)
    assert job.wait(600).status == "failed"
    for thread in threading.enumerate():
        if thread.name == "ti_fix killed":
            thread.join(60)  # or the next test is told of its end
    assert watch.fingerprint(webui.model) == before
    assert not webui.modules["modules.call_queue"].queue_lock.locked()


# refused


def refusals_of_a1111(webui):
    commands = webui.modules["modules.shared"].cmd_opts
    unet = webui.modules["modules.sd_unet"]
    model = webui.model
    return {
        "--lowvram": lambda: setattr(commands, "lowvram", True),
        "SD3": lambda: setattr(model, "is_sd3", True),
        "inpainting": lambda: setattr(model.model.diffusion_model, "in_channels", 9),
        "refiner": lambda: model.conditioner.embedders.pop(0),
        "TRT": lambda: setattr(unet, "current_unet_option", SimpleNamespace(label="[TRT] x")),
        "ldm_patched": lambda: setattr(model, "forge_objects", object()),
        "not in memory": lambda: model.model.to("meta"),
    }


def refusals_of_forge(webui):
    model = webui.model
    kernel = model.forge_objects.unet.model
    weight = next(kernel.parameters())
    return {
        "SD3": lambda: setattr(model, "is_sd3", True),
        "inpainting": lambda: setattr(model, "is_inpaint", True),
        "refiner": lambda: delattr(model, "text_processing_engine_l"),
        "'const'": lambda: setattr(kernel.predictor, "prediction_type", "const"),
        "GGUF": lambda: setattr(weight, "gguf_cls", object),
        "nf4": lambda: setattr(weight, "bnb_quantized", True),
    }


@pytest.mark.parametrize(
    ("kind", "named"),
    [("a1111", name) for name in ("--lowvram", "SD3", "inpainting", "refiner", "TRT", "ldm_patched", "not in memory")]
    + [("forge", name) for name in ("SD3", "inpainting", "refiner", "'const'", "GGUF", "nf4")],
)
def test_what_cannot_work_is_refused_before_the_first_step(begin, kind, named):
    webui, host = begin(kind)
    host.model()
    (refusals_of_a1111 if kind == "a1111" else refusals_of_forge)(webui)[named]()
    with pytest.raises(WrongUse) as refused:
        host.model()
    assert named.lower() in str(refused.value).lower() and str(refused.value).count(". ") == 0


def test_vectors_of_another_width_are_refused(both):
    _, host = both
    model = host.model()
    with pytest.raises(WrongUse, match="wide"), model.trainable():
        model.encode_prompts(["zqx"], {"zqx": {"clip_l": torch.ones(1, 64)}}, [SIZE])
