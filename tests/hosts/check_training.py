"""Training inside an installed WebUI: the part ``training`` of check-host.

It compares with the standalone host, so it wants the project's own packages, and a small checkpoint: on a processor a
step of a full-size model takes minutes.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Collection
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tests.hosts.checks import ROOT, Table
from tests.hosts.inside import training
from tests.hosts.page_check import opened
from tests.hosts.training_page import TrainPage
from tests.hosts.webui_process import Failed, Installation, Webui

INSIDE = ROOT / "tests" / "hosts" / "inside"
PROMPTS = ("a cat", "a dog, (red:1.3), [blue]", "a house BREAK a tree")
LEARNED = "zqxlearned"
AGREE = 1e-4
"""Largest relative difference of a loss between this host and the standalone one, in float32."""

ROUGH = 0.05
"""Relative difference of latents up to which another precision of the VAE means rounding."""

PAIRS, SLOWER = 12, 1.10
"""Steps that are timed, and how much longer than the bare model's they may take."""


class CheckTraining:
    """The training part of check-host.

    Args:
        what: the installation.
        data: a data folder of its own.
        models: family -> file name.
        table: where each outcome goes.

    Attributes:
        versions: what the WebUI says of itself.
    """

    def __init__(self, what: Installation, data: Path, models: dict[str, str], table: Table) -> None:
        self.what, self.data, self.models, self.table = what, data, models, table
        self.versions: dict[str, str] = {}

    def run(self, parts: Collection[str], shots: Path) -> None:
        """All of it, in one start of the WebUI.

        Args:
            parts: ``training``, ``train-page`` or both.
            shots: where pictures of the page go.
        """
        pictures(self.data / "pictures")
        what = replace(self.what, extensions=(*self.what.extensions, INSIDE))
        with inside_allowed(), Webui(what, self.data, self.models["sdxl"], ROOT) as webui:
            self.versions = webui.versions()
            if "train-page" in parts:
                with opened(webui.url) as page:
                    TrainPage(page, webui, self.data / "shown", shots, self.table).run()
            if "training" in parts:
                self.training(webui)

    def training(self, webui: Webui) -> None:
        """The adapters of each family from inside, then runs as a program starts them."""
        for family, model in self.models.items():
            webui.options(sd_model_checkpoint=model)
            self.family(webui, family)
        webui.options(sd_model_checkpoint=self.models["sdxl"])
        self.through_the_api(webui)

    def family(self, webui: Webui, family: str) -> None:
        """The adapter of one family, from inside."""
        plain = [webui.picture(prompt) for prompt in PROMPTS]
        with self.table.row(f"{family}: the contract of all adapters") as faults:
            found = ask(webui, "contract")
            faults.unless(len(found["passed"]) > 20, f"only {len(found['passed'])} passed")
            faults.extend(f"{name}: {trace.strip().splitlines()[-1]}" for name, trace in found["failed"].items())
        with self.table.row(f"{family}: gradients in two passes and with checkpointing are the same") as faults:
            for way, difference in ask(webui, "gradients_of_both_ways").items():
                faults.unless(difference < AGREE, f"{way}: {difference:.1e}")
        with self.table.row(f"{family}: an exception at any stage leaves nothing changed") as faults:
            for stage, outcome in ask(webui, "forced").items():
                faults.unless(not outcome["different"], f"{stage}: {outcome['different']}")
                faults.unless(not outcome["said"], f"{stage}: {outcome['said']}")
        with self.table.row(f"{family}: the VAE encodes in another precision when asked and is as before") as faults:
            found = ask(webui, "offered")
            faults.told = ", ".join(f"{kind}: {off:.1e} off" for kind, off in found["off"].items())
            faults.unless(max(found["off"].values()) < ROUGH, faults.told)
            faults.unless(not found["different"], found["different"])
            faults.unless(self.models[family] in found["described"][0], f"called {found['described'][:1]}")
        with self.table.row(f"{family}: ten steps agree with the standalone host") as faults:
            loss, vectors = self.difference(webui, family)
            faults.told = f"losses differ by {loss:.1e}, vectors by {vectors:.1e}"
            faults.unless(loss < AGREE, faults.told)
        with self.table.row(f"{family}: a step takes little more than the bare model in the same process") as faults:
            times = ask(webui, "step_times", count=PAIRS)
            ratio = statistics.median(a / b for a, b in zip(times["ours"], times["floor"], strict=True))
            faults.told = f"{ratio:.3f} of it, median of {PAIRS} pairs, processor time"
            faults.unless(ratio < SLOWER, faults.told)
        with self.table.row(f"{family}: pictures without the trigger are pixel-identical afterwards") as faults:
            for prompt, picture in zip(PROMPTS, plain, strict=True):
                faults.unless(webui.picture(prompt).equals(picture), repr(prompt))

    def difference(self, webui: Webui, family: str) -> tuple[float, float]:
        """Largest relative difference of the losses, and relative distance of the vectors, after ten steps."""
        from ti_fix.hosts.standalone import StandaloneModel, load_checkpoint

        here = training.steps(10, model=StandaloneModel(load_checkpoint(self.what.models / self.models[family])))
        there = ask(webui, "steps", count=10)
        pairs = [(here["fixed"], there["fixed"]), *zip(here["losses"], there["losses"], strict=True)]
        loss = max(abs(a - b) / abs(a) for a, b in pairs)
        blocks = [(torch.tensor(here["vectors"][k]), torch.tensor(there["vectors"][k])) for k in here["vectors"]]
        return loss, max(float((a - b).norm() / a.norm()) for a, b in blocks)

    def through_the_api(self, webui: Webui) -> None:
        """A run as a user starts it, its embedding in the next prompt, Interrupt, a second start."""
        plain = [webui.picture(prompt) for prompt in PROMPTS]
        named = webui.picture(f"a {LEARNED}")
        asked = {
            "name": LEARNED, "folders": [str(self.data / "pictures")], "resolution": 64, "steps": 12, "batch_size": 2,
            "vectors": 2, "start_text": "red tower", "learning_rate": "0.05", "validate_every": 6, "preview_every": 6,
            "preview_steps": 2,
        }  # fmt: skip
        with self.table.row("the API starts a run and refuses a second one meanwhile") as faults:
            faults.unless(webui.post("/ti_fix/v1/train", asked)["status"] == "running", "it does not run")
            faults.unless(refused(webui, asked) == 409, "a second start is not answered with 409")
        with self.table.row("the run ends, told event by event") as faults:
            status = self.wait(webui)
            faults.unless(status["status"] == "done", f"{status['status']}: {status['message']}")
            events = webui.get("/ti_fix/v1/train/events")["events"]
            kinds = [each["event"] for each in events]
            faults.unless(kinds.count("step") == 12 and kinds[-1] == "done", f"events: {kinds[-3:]}")
            faults.unless("preview" in kinds, "no preview")
        with self.table.row("what was learned works in the next prompt without a click") as faults:
            picture = webui.picture(f"a {LEARNED}")
            faults.unless(picture.differs(named) > 1, "the name is plain text")
            faults.unless(LEARNED in picture.infotext.partition("\n")[2], "the infotext does not name it")
        with self.table.row("prompts without the trigger are pixel-identical after the run") as faults:
            for prompt, picture in zip(PROMPTS, plain, strict=True):
                faults.unless(webui.picture(prompt).equals(picture), repr(prompt))
        with self.table.row("a picture that is asked for during a run waits and is the same") as faults:
            webui.post("/ti_fix/v1/train", {**asked, "name": "zqxother", "preview_every": 0})
            faults.unless(webui.picture(PROMPTS[0]).equals(plain[0]), "another picture")
            faults.unless(self.wait(webui)["status"] == "done", "the run did not end well")
        with self.table.row("the WebUI's Interrupt ends a run and keeps what it learned") as faults:
            webui.post("/ti_fix/v1/train", {**asked, "name": "zqxstopped", "steps": 5000, "preview_every": 0})
            self.until(webui, lambda status: status["step"] >= 2)
            webui.post("/sdapi/v1/interrupt", {})
            status = self.wait(webui)
            faults.unless(status["status"] == "stopped", f"{status['status']}: {status['message']}")
            faults.unless((self.data / "embeddings" / "zqxstopped.safetensors").exists(), "nothing was written")
        with self.table.row("the list of runs names them, and one goes on") as faults:
            listed = {run["name"]: run for run in webui.get("/ti_fix/v1/train/runs")["runs"]}
            faults.unless({LEARNED, "zqxother", "zqxstopped"} <= listed.keys(), f"{sorted(listed)}")
            step = listed["zqxstopped"]["step"]
            going_on = {**asked, "name": "zqxstopped", "steps": step + 2, "preview_every": 0, "resume": True}
            webui.post("/ti_fix/v1/train", going_on)
            faults.unless(self.wait(webui)["status"] == "done", "it did not go on")
            first = next(e for e in webui.get("/ti_fix/v1/train/events")["events"] if e["event"] == "step")
            faults.unless(first["step"] == step + 1, f"it went on with step {first['step']} after {step}")

    def wait(self, webui: Webui, seconds: float = 1800) -> Any:
        """The status when the run has ended."""
        return self.until(webui, lambda status: status["status"] not in ("running", "stopping"), seconds)

    def until(self, webui: Webui, true: Any, seconds: float = 1800) -> Any:
        """The status when something is true of it.

        Raises:
            Failed: that takes too long.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            status = webui.get("/ti_fix/v1/train")
            if true(status):
                return status
            time.sleep(0.3)
        raise Failed("the run takes too long")


def refused(webui: Webui, asked: dict[str, Any]) -> int:
    """The HTTP status of a start; 200 where it is not refused."""
    try:
        webui.post("/ti_fix/v1/train", asked)
    except Failed as error:
        return int(str(error).removeprefix("HTTP ").partition(":")[0])
    return 200


def ask(webui: Webui, call: str, **values: Any) -> Any:
    """Have a function of `inside.training` run in the WebUI.

    Raises:
        Failed: it raised; with the end of its trace.
    """
    answer = webui.post("/ti_fix_inside/run", {"module": "tests.hosts.inside.training", "call": call, "values": values})
    if "error" in answer:
        raise Failed(answer["error"][-1500:])
    return answer["result"]


@contextmanager
def inside_allowed() -> Any:
    """While open, a WebUI that is started may run functions of the tests; pytest comes from here if it has none."""
    before = dict(os.environ)
    os.environ["TI_FIX_INSIDE"] = "1"
    os.environ["TI_FIX_INSIDE_PACKAGES"] = str(Path(pytest.__file__).parents[1])
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def pictures(folder: Path) -> None:
    """Three pictures with captions."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, colour in enumerate(("red", "green", "blue")):
        Image.new("RGB", (96, 64), colour).save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text(f"a {LEARNED} in {colour}, a zqxother, a zqxstopped", encoding="utf-8")


def step_times(argv: list[str], count: int) -> list[tuple[float, float]]:
    """Processor seconds of whole steps and of the bare model, in turn, inside a WebUI that is started for it.

    Args:
        argv: the flags of check-host.
        count: pairs to measure.

    Raises:
        Failed: it cannot be started, or not trained in.
        CannotCheck: there is no WebUI, or no Python or checkpoint for it.
    """
    from tests.hosts.check_host import checkpoints, installation, parsed

    with tempfile.TemporaryDirectory(prefix="ti_fix_steps_") as name, inside_allowed():
        folder = Path(name)
        (folder / "models").mkdir()
        what = installation(parsed(argv), folder / "models")
        what = replace(what, extensions=(*what.extensions, INSIDE))
        with Webui(what, folder / "data", checkpoints(what.models)["sdxl"], ROOT) as webui:
            found = ask(webui, "step_times", count=count)
    return list(zip(found["ours"], found["floor"], strict=True))
