"""Attention maps in a running WebUI through its API: pictures stay as they are, sheets come behind them."""

from __future__ import annotations

import base64
import io
import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.hosts.evaluate_files import NAME
from tests.hosts.table import Faults, Table
from tests.hosts.webui_client import Failed
from tests.hosts.webui_process import Webui

SCRIPT = "TI Fix attention maps"
SIDE, DRAWN = 64, 128
"""Pixels: where only the ways are looked at, and where the small model draws what it was trained on."""

PLAIN = "a red circle on a white background"
LONG = ", ".join(["a quiet long story about nothing at all"] * 12) + f", a {NAME} beside a blue star"
"""More than 77 tokens; the words that are followed stand in the second part."""

HIRES = {
    "enable_hr": True, "hr_scale": 2, "hr_upscaler": "Latent", "denoising_strength": 0.7, "hr_second_pass_steps": 2,
    "hr_additional_modules": ["Use same choices"],
}  # fmt: skip
LABEL = 22
"""Height of a label above each tile of a sheet, pixels."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One way of making pictures.

    Attributes:
        what: in the table.
        words: that are followed, with commas.
        told: names that the infotext must tell of.
        sheets: how many there must be.
        body: of the request, beside what all share.
        img2img: whether it goes there.
    """

    what: str
    words: str = "red, circle"
    told: Sequence[str] = ("red", "circle")
    sheets: int = 1
    body: Mapping[str, Any]
    img2img: bool = False


CASES = (
    Case(what="one picture", body={"prompt": PLAIN}),
    Case(
        what="a prompt of more than 77 tokens",
        words=f"{NAME}, blue star, story",
        told=(NAME, "blue star", "story"),
        body={"prompt": LONG},
    ),
    Case(what="a batch of two", sheets=2, body={"prompt": PLAIN, "batch_size": 2}),
    Case(what="two batches of two", sheets=4, body={"prompt": PLAIN, "batch_size": 2, "n_iter": 2, "steps": 2}),
    Case(what="a picture of 128 x 64", body={"prompt": PLAIN, "width": 128}),
    Case(what="a hires pass, which has a sheet of its own", sheets=2, body={"prompt": PLAIN, **HIRES}),
    Case(
        what="a prompt that changes at half of the steps",
        words="red, blue, circle",
        told=("red", "blue", "circle"),
        body={"prompt": "a [red:blue:0.5] circle on a white background"},
    ),
    Case(
        what="two prompts joined by AND",
        words="red, blue",
        told=("red", "blue"),
        body={"prompt": "a red circle AND a blue square"},
    ),
    Case(what="img2img", img2img=True, body={"prompt": PLAIN, "denoising_strength": 0.7}),
)


@dataclass
class MapsCheck:
    """See the module.

    Attributes:
        webui: runs with the small model.
        shots: where sheets are kept to be looked at.
        table: is continued.
        first, start: the first picture, as an array and as the API wants it for img2img.
    """

    webui: Webui
    shots: Path
    table: Table
    start: str = ""
    first: Any = None

    def run(self) -> None:
        """Every case, then a picture that is broken off."""
        self._made({"prompt": PLAIN, "steps": 1})  # a WebUI may load its model now
        hooks = self.hooks()
        for case in CASES:
            with self.table.row(f"maps: {case.what}: pictures are the same with maps, sheets follow") as faults:
                self._case(case, faults)
                faults.unless(self.hooks() == hooks, f"{self.hooks() - hooks} hooks are left")
        with self.table.row("maps: the first picture again, without maps, is the same") as faults:
            again, _ = self._made(CASES[0].body)
            faults.unless(np.array_equal(again[0], self.first), "another picture")
        with self.table.row("maps: the map of a shape's word lies on the shape that was drawn") as faults:
            self._on_the_shape(faults)
        with self.table.row("maps: Interrupt while they are made leaves no hook") as faults:
            asked = threading.Thread(target=self._quietly, args=({"prompt": PLAIN, "steps": 100},))
            asked.start()
            end, during = time.monotonic() + 60, hooks
            while during <= hooks and time.monotonic() < end:
                time.sleep(0.5)
                during = self.hooks()
            self.webui.post("/sdapi/v1/interrupt", {})
            asked.join()
            faults.unless(during > hooks, "no hook was there meanwhile, so nothing is shown")
            faults.unless(self.hooks() == hooks, f"{self.hooks() - hooks} hooks are left")
        with self.table.row("maps: a group's map, and words that are found by themselves") as faults:
            _, told = self._made({"prompt": PLAIN}, maps=["", True])
            for name in ("red", "circle", "white", "[colour]", "[object]", "[scene]"):
                faults.unless(f"{name}: mass" in told[-1], f"{name} is missing: {told[-1][-200:]}")

    def hooks(self) -> int:
        """Hooks on the UNet, counted inside the WebUI."""
        answer = self.webui.post(
            "/ti_fix_inside/run", {"module": "tests.hosts.inside.hooks", "call": "count", "values": {}}
        )
        if "result" not in answer:
            raise Failed(str(answer.get("error"))[-300:])
        return int(answer["result"])

    def _case(self, case: Case, faults: Faults) -> None:
        body = dict(case.body)
        if case.img2img:
            body["init_images"] = [self.start]
        plain, _ = self._made(body)
        drawn, texts = self._made(body, maps=[case.words, False])
        pictures = len(plain)
        faults.unless(len(drawn) == pictures + case.sheets, f"{len(drawn) - pictures} sheets")
        same = [np.array_equal(one, other) for one, other in zip(plain, drawn, strict=False)]
        faults.unless(all(same), f"pictures changed: {same}")
        for number, sheet in enumerate(drawn[pictures:]):
            Image.fromarray(sheet).save(self.shots / f"maps-{case.what.replace(' ', '-')}-{number}.png")
            self._sheet(case, sheet, texts[pictures + number], plain[-1].shape, faults)
        if not case.img2img and not self.start:
            data = io.BytesIO()
            Image.fromarray(plain[0]).save(data, "PNG")
            self.first = plain[0]
            self.start = base64.b64encode(data.getvalue()).decode()

    def _sheet(self, case: Case, sheet: Any, told: str, shape: tuple[int, ...], faults: Faults) -> None:
        height, width = shape[0] + LABEL, shape[1] * (1 + len(case.told))
        faults.unless(sheet.shape[:2] == (height, width), f"a sheet of {sheet.shape[1]} x {sheet.shape[0]}")
        for name in case.told:
            faults.unless(f"{name}: mass" in told, f"{name} is not told of: {told[-160:]}")
        tiles = [sheet[LABEL:, i * shape[1] : (i + 1) * shape[1]] for i in range(1, len(case.told) + 1)]
        faults.unless(all(tile.std() > 2 for tile in tiles), "a map without any difference")

    def _on_the_shape(self, faults: Faults) -> None:
        """Where the picture is red there the overlay of its word is bright, though red is dark on white."""
        for seed in (1, 2):
            (picture, sheet), _ = self._made(
                {"prompt": PLAIN, "seed": seed, "steps": 8, "width": DRAWN, "height": DRAWN},
                maps=["circle", False],
            )
            red = (picture[..., 0].astype(int) - picture[..., 2]) > 60
            if not 0.02 < red.mean() < 0.7:
                faults.append(f"seed {seed}: {red.mean():.0%} of the picture is red, so nothing is shown")
                continue
            tile = sheet[LABEL:, DRAWN:].astype(float).mean(axis=2)
            faults.unless(tile[red].mean() > tile[~red].mean(), f"seed {seed}: the map lies elsewhere")

    def _quietly(self, body: dict[str, Any]) -> None:
        self._made(body, maps=["red", False])

    def _made(self, body: Mapping[str, Any], maps: Sequence[Any] | None = None) -> tuple[list[Any], list[str]]:
        """Pictures (without a grid) with their infotexts."""
        asked = {
            "seed": 1, "steps": 3, "width": SIDE, "height": SIDE, "cfg_scale": 4, "sampler_name": "Euler",
            "negative_prompt": "", "override_settings": {"return_grid": False}, **body,
        }  # fmt: skip
        if maps is not None:
            asked["alwayson_scripts"] = {SCRIPT: {"args": [True, *maps]}}
        way = "img2img" if "init_images" in body else "txt2img"
        answer = self.webui.post(f"/sdapi/v1/{way}", asked)
        pictures = [np.asarray(Image.open(io.BytesIO(base64.b64decode(i))).convert("RGB")) for i in answer["images"]]
        return pictures, json.loads(answer["info"])["infotexts"]
