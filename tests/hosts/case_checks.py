"""The public reports in an installed WebUI: each case alone and with ti_fix, and what must never change."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.hosts import host_cases, sample_files
from tests.hosts.checks import HIRES, ROOT, Check
from tests.hosts.host_cases import CONTROLS, Row, Tried, names, tried
from tests.hosts.webui_client import Client, Failed, Picture
from tests.hosts.webui_process import Webui

LORA = "photo of one dog <lora:cklora:1>"
CANARY = "TI_FIX_CANARY executed"
"""What the hostile pickle of case D09 prints when its code runs."""


def controls(webui: Client, *, lora: bool, hires: bool) -> dict[str, Picture]:
    """Pictures of prompts that name no file of the folder."""
    drawn = {prompt: webui.picture(prompt) for prompt in (*CONTROLS, *([LORA] if lora else []))}
    if hires:
        drawn["hires pass"] = webui.picture(CONTROLS[0], **HIRES)
    return drawn


def unequal(ones: dict[str, Picture], others: dict[str, Picture]) -> list[str]:
    """The prompts whose pictures are not the same pixel for pixel."""
    return [repr(prompt) for prompt, picture in ones.items() if not picture.equals(others[prompt])]


@dataclass
class CaseCheck:
    """The part of a check that is about the cases.

    Attributes:
        check: the whole; its table is continued.
        words: family -> prompt -> picture while no case is there.
        alone: what each name does in the WebUI without ti_fix, by its prompt.
        rows: the table of names.
        identical: how often a control prompt was drawn with ti_fix on and off, and how often that was one picture.
    """

    check: Check
    words: dict[str, dict[str, Picture]] = field(default_factory=dict)
    alone: dict[str, Tried] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    identical: list[int] = field(default_factory=lambda: [0, 0])

    def run(self) -> None:
        """Three starts: without the cases, with them, with them and ti_fix."""
        data, models = self.check.data / "cases", self.check.models
        sample_files.lora(data / "models" / "Lora" / "cklora.safetensors", self.check.what.models / models["sdxl"])
        start = lambda own: Webui(self.check.what, data, models["sdxl"], own)  # noqa: E731
        with start(None) as webui:
            for family, model in models.items():
                webui.options(sd_model_checkpoint=model)
                self.words[family] = host_cases.plain(webui)
        host_cases.put(data / "embeddings")
        with start(None) as webui:
            self.alone = {n.prompt: tried(webui, self.words["sdxl"], n.prompt) for n in names()}
            drawn = controls(webui, lora=True, hires=True)
            with self.check.table.row("a LoRA changes the picture") as faults:
                faults.unless(not drawn[LORA].equals(drawn[CONTROLS[0]]), "it does not")
        host_cases.put(data / "embeddings")  # some WebUIs rename what they cannot read
        with start(ROOT) as webui:
            self._with_ti_fix(webui)

    def _with_ti_fix(self, webui: Webui) -> None:
        self._controls(webui, "")
        sdxl = {n.prompt: tried(webui, self.words["sdxl"], n.prompt) for n in names()}
        listed = webui.loaded()
        webui.post("/sdapi/v1/refresh-embeddings", {})
        self._controls(webui, "after a refresh: ")
        with self.check.table.row("cases: Reload UI"):
            webui.reload_page()
        self._controls(webui, "after Reload UI: ")
        sd15 = self._switches(webui)
        for name in names():
            row = Row(name, name.text in listed, sdxl[name.prompt], self.alone[name.prompt], sd15.get(name.prompt))
            self.rows.append(row)
            with self.check.table.row(f"{name.case} {name.text}: {'usable' if name.usable else 'left out'}") as faults:
                faults.extend(row.faults)
        self._aftermath(webui)

    def _switches(self, webui: Webui) -> dict[str, Tried]:
        """To SD1.5 and back, twice, with both models kept in memory where the WebUI can do that."""
        models = self.check.models
        found: dict[str, Tried] = {}
        if "sd15" not in models:
            return found
        with contextlib.suppress(Failed):  # Forge has no such option
            webui.options(sd_checkpoints_limit=2)
        for turn in ("first", "second"):
            webui.options(sd_model_checkpoint=models["sd15"])
            self._controls(webui, f"SD1.5, {turn} time: ", lora=False)
            found = found or {n.prompt: tried(webui, self.words["sd15"], n.prompt) for n in names()}
            webui.options(sd_model_checkpoint=models["sdxl"])
            self._controls(webui, f"back to SDXL, {turn} time: ")
        return found

    def _controls(self, webui: Webui, when: str, *, lora: bool = True) -> None:
        """The same prompts with ti_fix on, off and on again, pixel for pixel."""
        what = "prompts without a name of the folder are pixel-identical with ti_fix on and off"
        with self.check.table.row(f"cases, {when}{what}") as faults:
            draw: Callable[[], dict[str, Picture]] = lambda: controls(webui, lora=lora, hires=True)  # noqa: E731
            on = draw()
            webui.options(ti_fix_enabled=False)
            off = draw()
            webui.options(ti_fix_enabled=True)
            again = draw()
            wrong = {*unequal(on, off), *unequal(again, off)}
            faults.extend(sorted(wrong))
            self.identical[0] += len(on) - len(wrong)
            self.identical[1] += len(on)

    def _aftermath(self, webui: Webui) -> None:
        with self.check.table.row("cases: no code of a file ran, no error of ti_fix in the console") as faults:
            for words in (CANARY, "ti_fix failed here", "ti_fix_webui.py"):
                faults.unless(words not in webui.log(), f"{words!r} is in it")
        with self.check.table.row("cases: no file was renamed") as faults:
            faults.extend(path.name for path in (self.check.data / "cases" / "embeddings").rglob("*.corrupted"))
