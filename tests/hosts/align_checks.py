"""Damaged checkpoints in a WebUI: how each fails alone, after ``ti-fix align --out``, and with ti_fix as it is loaded.

The copies are of the installation's own sound checkpoint, so that the picture each must give is known.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.hosts.table import Faults, Table
from tests.hosts.webui_client import Failed, Picture
from tests.hosts.webui_process import Installation, Webui
from ti_fix.cli import main

ROOT = Path(__file__).resolve().parent.parent.parent

PROMPT = "a photo of a cat, red, on grass"
EXTRA = "a photo of extra-1 on grass"
LOADS = 5
"""Loads of each file whose look is timed, after the first."""

LIMIT = 100.0
"""Milliseconds that the look at a known file may take; rows that are not finite are repaired in a copy of the table."""

L_PLACE = "conditioner.embedders.0.transformer.text_model.embeddings."
G_PLACE = "conditioner.embedders.1.model."
TABLES = (f"{L_PLACE}token_embedding.weight", f"{G_PLACE}token_embedding.weight")
CAT = 2368

Weights = dict[str, torch.Tensor]


def rounded(weights: Weights) -> None:
    """Position ids as a merge in half precision leaves them."""
    ids = torch.arange(77, dtype=torch.float16)
    weights[f"{L_PLACE}position_ids"] = (ids * 0.3 + ids * 0.7 - 0.02).clamp(min=0)[None].contiguous()


def extended(weights: Weights) -> None:
    """One added token, a louder cat."""
    for key in TABLES:
        weights[key] = torch.cat([weights[key], 1.5 * weights[key][CAT : CAT + 1]])


def not_finite(weights: Weights) -> None:
    """NaN in a row that the prompt uses."""
    weights[TABLES[1]] = weights[TABLES[1]].clone()
    weights[TABLES[1]][CAT, 3] = float("nan")


DAMAGES: dict[str, Callable[[Weights], None]] = {"rounded": rounded, "extended": extended, "nan": not_finite}
CODES = {"rounded": "position-ids", "extended": "table-rows", "nan": "table-values"}
"""What the report calls it."""


@dataclass
class AlignCheck:
    """One run over one installation.

    Attributes:
        what: the installation.
        data: the data folder, thrown away afterwards.
        models: family -> file name of a checkpoint.
        table: is continued.
        versions: what the WebUI says of itself.
        sound: the picture of the sound checkpoint.
        noise: mean grey levels by which it differs when the sound checkpoint is loaded anew.
        _alone: damage -> the picture without ti_fix, None where it is refused.
        _first: checkpoint -> milliseconds of the first look at it.
    """

    what: Installation
    data: Path
    models: dict[str, str]
    table: Table
    versions: dict[str, str] = field(default_factory=dict)
    sound: Picture | None = None
    noise: float = 0.0
    _alone: dict[str, Picture | None] = field(default_factory=dict)
    _first: dict[str, float] = field(default_factory=dict)

    def run(self) -> None:
        """Everything, in two starts."""
        folder = self.data / "models" / "Stable-diffusion"
        folder.mkdir(parents=True)
        (self.data / "embeddings").mkdir()
        for name, damage in DAMAGES.items():
            with self.table.row(f"align: ti-fix align --out mends {name}") as faults:
                self._write(folder, name, damage, faults)
        with Webui(self.what, self.data, self.models["sdxl"], None) as webui:
            self.alone(webui)
        (self.data / "embeddings" / "extra-1.safetensors").unlink(missing_ok=True)
        with Webui(self.what, self.data, self.models["sdxl"], ROOT) as webui:
            self.repaired(webui)
            self.timed(webui)

    def _write(self, folder: Path, name: str, damage: Callable[[Weights], None], faults: Faults) -> None:
        sound = self.what.models / self.models["sdxl"]
        weights = load_file(sound)
        damage(weights)
        broken, mended = folder / f"{name}.safetensors", folder / f"{name}_mended.safetensors"
        save_file(weights, broken)
        command = ["align", str(broken), "--out", str(mended)]
        if damage is extended:
            command += ["--embeddings", str(self.data / "embeddings")]
        faults.unless(main(command) == 0, "it ends with an error")
        config = sound.with_suffix(".yaml")  # AUTOMATIC1111 is told the tiny checkpoint's sizes by it
        for path in (broken, mended) if config.exists() else ():
            shutil.copyfile(config, path.with_suffix(".yaml"))

    def alone(self, webui: Webui) -> None:
        """Without ti_fix in the WebUI."""
        self.versions = webui.versions()
        sdxl = Path(self.models["sdxl"]).stem
        self.sound = drawn(webui, sdxl)
        if self.sound is None:
            raise Failed("the sound checkpoint gives no picture")
        for name in DAMAGES:
            self._alone[name] = drawn(webui, name)
        again = drawn(webui, sdxl)
        self.noise = again.differs(self.sound) if again else 0.0
        for name in ("rounded", "extended"):
            with self.table.row(f"align: {name}, mended on disk, gives the sound checkpoint's picture") as faults:
                self._as_sound(drawn(webui, f"{name}_mended"), faults)
        with self.table.row("align: nan, mended on disk, gives a picture again") as faults:
            faults.unless(_is_picture(drawn(webui, "nan_mended")), "black or refused")
        with self.table.row("align: the added token's row, written as a file, works as an embedding") as faults:
            picture = drawn(webui, "extended_mended", EXTRA)
            used = picture is not None and "extra-1" in picture.infotext.partition("TI")[2]
            faults.unless(used, "extra-1 was not used")

    def repaired(self, webui: Webui) -> None:
        """With ti_fix, which repairs as a model is loaded."""
        with self.table.row("align: a sound checkpoint gives the same picture with ti_fix, in silence") as faults:
            said = len(webui.log())
            self._as_sound(drawn(webui, Path(self.models["sdxl"]).stem), faults)
            faults.unless("TI Fix" not in webui.log()[said:], webui.log()[said:][-200:])
            seen = webui.get("/ti_fix/v1/model")["at_load"]
            self._first[Path(self.models["sdxl"]).stem] = seen["milliseconds"]
            faults.unless(seen["lines"] == [], "the look at load is not silent")
        for name in DAMAGES:
            self._repaired(webui, name)
        with self.table.row("align: the added token's row works while its checkpoint is loaded") as faults:
            one, other = drawn(webui, "extended", EXTRA), drawn(webui, "extended", EXTRA.replace("extra-1", "an"))
            faults.unless(one is not None and other is not None and one.differs(other) > 1, "it changes nothing")

    def _repaired(self, webui: Webui, name: str) -> None:
        harmless = name == "rounded" and self._unharmed(self._alone[name])  # Forge counts positions itself
        gives = "a picture" if name == "nan" else "the sound checkpoint's picture"
        with self.table.row(f"align: {name}, {self._failure(name)} without ti_fix, gives {gives} with it") as faults:
            faults.unless(harmless or not self._unharmed(self._alone[name]), "the damage does not show")
            picture = drawn(webui, name)
            if name == "nan":
                faults.unless(_is_picture(picture), "black or refused")
            else:
                self._as_sound(picture, faults)
            report = webui.get("/ti_fix/v1/model")
            self._first[name] = report["at_load"]["milliseconds"]
            mended = [each["code"] for each in report["checks"] if each.get("mended")]
            faults.unless(harmless or CODES[name] in mended, f"repaired: {mended}")

    def timed(self, webui: Webui) -> None:
        """How long the look takes at each load after the first of a file, the files in turn; the best load is judged,
        as other work on the computer can only make one longer."""
        names = (Path(self.models["sdxl"]).stem, *DAMAGES)
        times = [{name: self._looked(webui, name) for name in names} for _ in range(LOADS)]
        busy = f"; load average {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
        for name in names:
            taken = [each[name] for each in times]
            told = (
                f"best of {LOADS}: {min(taken):.0f} ms, median {statistics.median(taken):.0f}, worst {max(taken):.0f}, "
                f"{self._first.get(name, 0):.0f} ms at first{busy}"
            )
            limit = 10 * LIMIT if name == "nan" else LIMIT
            what = f"align: the look at {name} takes under {limit:.0f} ms when it is loaded again"
            self.table.add(what, min(taken) < limit, told)

    def _looked(self, webui: Webui, name: str) -> float:
        """Milliseconds of the look at a checkpoint that is loaded now."""
        drawn(webui, name)
        return float(webui.get("/ti_fix/v1/model")["at_load"]["milliseconds"])

    def _unharmed(self, picture: Picture | None) -> bool:
        return picture is not None and self.sound is not None and picture.differs(self.sound) <= self.noise

    def _as_sound(self, picture: Picture | None, faults: Faults) -> None:
        faults.unless(self._unharmed(picture), "refused" if picture is None else "another picture")

    def _failure(self, name: str) -> str:
        picture = self._alone[name]
        if picture is None:
            return "refused"
        return "the right picture all the same" if self._unharmed(picture) else "a wrong picture"


def _is_picture(picture: Picture | None) -> bool:
    return picture is not None and float(picture.pixels.std()) > 1


def drawn(webui: Webui, checkpoint: str, prompt: str = PROMPT) -> Picture | None:
    """A checkpoint's picture; None where the WebUI refuses it."""
    with contextlib.suppress(Failed):
        webui.options(sd_model_checkpoint=f"{checkpoint}.safetensors")
    try:
        picture = webui.picture(prompt)
    except Failed:
        return None
    return picture if f"Model: {checkpoint}," in picture.infotext else None
