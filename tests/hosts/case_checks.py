"""The public reports in a WebUI with ti_fix: what each name does, and what must never change.

One and the same for a WebUI of one's own and for one that runs already; only what needs the former (Reload UI, another
model, a LoRA) is left out there.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.hosts import host_cases
from tests.hosts.host_cases import CONTROLS, Name, Row, Tried, tried
from tests.hosts.table import Table
from tests.hosts.webui_client import Client, Failed, Picture
from tests.hosts.webui_process import Webui

HIRES = {
    "enable_hr": True,
    "hr_scale": 1.5,
    "hr_upscaler": "Latent",
    "denoising_strength": 0.7,
    "hr_additional_modules": ["Use same choices"],
}
LORA = "photo of one dog <lora:cklora:1>"
CANARY = "TI_FIX_CANARY executed"
"""What the hostile pickle of case D09 prints when its code runs."""


@dataclass
class CaseCheck:
    """One run over the cases.

    Attributes:
        webui: with ti_fix, and without any of the cases in its folder.
        folder: where the cases are to lie, below its embeddings folder.
        names: those to try.
        table: is continued.
        models: family -> checkpoint, to switch between; empty: stay with the one that is loaded.
        lora: whether there is a LoRA ``cklora``.
        rows: the table of names.
        identical: how many control pictures were the same with ti_fix on and off, and how many there were.
    """

    webui: Client
    folder: Path
    names: Sequence[Name]
    table: Table
    models: dict[str, str] = field(default_factory=dict)
    lora: bool = False
    rows: list[Row] = field(default_factory=list)
    identical: list[int] = field(default_factory=lambda: [0, 0])

    def run(self) -> None:
        """All of it; the cases are left in the folder."""
        words = {"sdxl": self.words("sdxl"), "sd15": self.words("sd15")}
        before = self.controls(CONTROLS)
        if self.lora:
            with self.table.row("a LoRA changes the picture") as faults:
                faults.unless(not before[LORA].equals(before[CONTROLS[0]]), "it does not")
        host_cases.put(self.folder, {name.case for name in self.names})
        read_again(self.webui)
        with self.table.row(
            "prompts without a name of the folder: the same picture with and without the files"
        ) as faults:
            faults.extend(unequal(before, self.controls(CONTROLS)))
        self.on_and_off("after a refresh", CONTROLS)
        listed = self.webui.loaded()
        sdxl = {name: tried(self.webui, words["sdxl"], name.prompt) for name in self.names}
        if isinstance(self.webui, Webui):
            with self.table.row("cases: Reload UI"):
                self.webui.reload_page()
            self.on_and_off("after Reload UI", CONTROLS[1:2])
        sd15 = self.switches(words["sd15"])
        for name in self.names:
            row = Row(name, name.text in listed, sdxl[name], sd15.get(name))
            self.rows.append(row)
            with self.table.row(row.title) as faults:
                faults.extend(row.faults)
        if isinstance(self.webui, Webui):
            self.aftermath(self.webui)

    def words(self, family: str) -> dict[str, Picture]:
        """Prompt -> picture of the same words while none of the files is there; the SDXL model is loaded afterwards."""
        if family == "sdxl":
            return {name.prompt: self.webui.picture(name.prompt, steps=1) for name in self.names}
        if family not in self.models:
            return {}
        self.webui.options(sd_model_checkpoint=self.models[family])
        drawn = {name.prompt: self.webui.picture(name.prompt, steps=1) for name in self.names if name.sd15}
        self.webui.options(sd_model_checkpoint=self.models["sdxl"])
        return drawn

    def controls(self, prompts: Sequence[str], *, lora: bool = True) -> dict[str, Picture]:
        """Pictures of prompts that name no file of the folder, one with a LoRA and one with a hires pass among them."""
        drawn = {p: self.webui.picture(p, steps=2) for p in (*prompts, *([LORA] if lora and self.lora else []))}
        drawn["hires pass"] = self.webui.picture(CONTROLS[0], steps=2, **HIRES)
        return drawn

    def on_and_off(self, when: str, prompts: Sequence[str], *, lora: bool = True) -> None:
        """The same prompts with ti_fix on and off, pixel for pixel; the setting is given back."""
        if not self.webui.get("/sdapi/v1/options").get("ti_fix_enabled", True):
            self.table.add(f"{when}: ti_fix on and off", False, "it is switched off in the settings")
            return
        what = "prompts without a name of the folder are pixel-identical with ti_fix on and off"
        with self.table.row(f"{when}: {what}") as faults:
            on = self.controls(prompts, lora=lora)
            try:
                self.webui.options(ti_fix_enabled=False)
                wrong = unequal(on, self.controls(prompts, lora=lora))
            finally:
                self.webui.options(ti_fix_enabled=True)
                read_again(self.webui)
            faults.extend(wrong)
            self.identical[0] += len(on) - len(wrong)
            self.identical[1] += len(on)

    def switches(self, words: dict[str, Picture]) -> dict[Name, Tried]:
        """To SD1.5 and back, twice, with both models kept in memory where the WebUI can do that."""
        found: dict[Name, Tried] = {}
        if "sd15" not in self.models:
            return found
        with contextlib.suppress(Failed):  # Forge has no such option
            self.webui.options(sd_checkpoints_limit=2)
        for turn in ("first", "second"):
            self.webui.options(sd_model_checkpoint=self.models["sd15"])
            self.on_and_off(f"SD1.5, {turn} time", CONTROLS[1:2], lora=False)
            found = found or {n: tried(self.webui, words, n.prompt) for n in self.names if n.sd15}
            self.webui.options(sd_model_checkpoint=self.models["sdxl"])
            self.on_and_off(f"back to SDXL, {turn} time", CONTROLS[1:2])
        return found

    def aftermath(self, webui: Webui) -> None:
        """What is left behind."""
        with self.table.row("cases: no code of a file ran, no error of ti_fix in the console") as faults:
            for words in (CANARY, "ti_fix failed here", "ti_fix_webui.py"):
                faults.unless(words not in webui.log(), f"{words!r} is in it")
        with self.table.row("cases: no file was renamed") as faults:
            faults.extend(path.name for path in self.folder.rglob("*.corrupted"))


def unequal(ones: dict[str, Picture], others: dict[str, Picture]) -> list[str]:
    """The prompts whose pictures are not the same pixel for pixel."""
    return [repr(prompt) for prompt, picture in ones.items() if not picture.equals(others[prompt])]


def read_again(webui: Client) -> None:
    """Let the WebUI read its embeddings."""
    webui.post("/sdapi/v1/refresh-embeddings", {})
    time.sleep(1)  # ti_fix looks at a folder at most every few hundredths of a second
