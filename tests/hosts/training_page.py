"""The Train page of a WebUI, driven in a headless Chromium as a person would: from pictures to the next prompt.

What is learned is a concept that the small SDXL has no word for; how well is measured in the WebUI's own pictures and
compared with the standalone host. Needs the package playwright and a Chromium; a picture of each step is kept.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hosts import held_out
from tests.hosts.table import Faults, Table
from tests.hosts.ways_check import tell
from tests.hosts.webui_process import Webui
from tests.ui.browser.drive import PATIENCE, Visit, entered

CAPTION = f"a {held_out.NAME} on a plain ground"
MEASURED = 12
"""Pictures of new scenes."""

WHOLE_RUN = 1_500_000
"""Milliseconds that a run may take."""

CLOSE = 0.05
"""Difference of the mean errors up to which two hosts count as equal when the interval lies beside 0."""


@dataclass
class TrainPage:
    """One drive over the page.

    Attributes:
        page: of playwright, open on the WebUI.
        webui: the same, asked over HTTP.
        pictures: a folder for the pictures that are uploaded.
        shots: where pictures of the page go.
        table: is continued.
    """

    page: Any
    webui: Webui
    pictures: Path
    shots: Path
    table: Table

    def run(self) -> None:
        """Everything, in the order in which a user would do it."""
        self.shots.mkdir(parents=True, exist_ok=True)
        self.visit = Visit(self.page, self.shots, webui=True)
        for step in (
            self.takes_pictures, self.checks, self.trains, self.is_found_again, self.stops, self.goes_on,
            self.works_in_a_prompt,
        ):  # fmt: skip
            self._row(step)
        with self.table.row("train page: nothing stands out, overlaps or cannot be read") as faults:
            tell(self.visit, faults)
        with self.table.row("train page: what was learned is what the standalone host learns") as faults:
            self.measured(faults)

    def _row(self, step: Callable[[Faults], None]) -> None:
        with self.table.row(f"train page: {step.__doc__}") as faults:
            try:
                step(faults)
            except Exception as error:  # noqa: BLE001 - of the browser
                faults.append(f"{type(error).__name__}: {str(error).splitlines()[0][:200]}")
                self.page.screenshot(path=str(self.shots / f"failed-{step.__name__}.png"), full_page=True)

    def _find(self, name: str) -> Any:
        return self.page.locator(f"#ti_fix_train_{name}")

    def _press(self, name: str) -> None:
        """A Gradio button: in some releases the id is on the button, in others around it."""
        self.page.locator(f"button#ti_fix_train_{name}, #ti_fix_train_{name} button").first.click()

    def _unfold(self, where: str) -> None:
        self.page.locator(f"{where} > button, {where} > .label-wrap").first.click()

    def _said(self, text: str, patience: float = PATIENCE) -> str:
        found = self._find("status").get_by_text(re.compile(text)).first
        found.wait_for(timeout=patience)
        return str(found.inner_text())

    def takes_pictures(self, faults: Faults) -> None:
        """pictures are dropped, a caption is changed in place, settings are entered"""
        self.visit.tab("Train")
        files = [str(path) for path in held_out.put(self.pictures)]
        self.page.set_input_files("#ti_fix_train_files input[type=file]", files)
        self._find("album").locator("li").nth(4).wait_for()
        caption = self._find("album").locator("textarea").first
        faults.unless(held_out.NAME in caption.input_value(), "the caption file was not taken")
        before = caption.input_value()
        for text in (CAPTION, before):  # what is learned from is as it was
            caption.fill(text)
            caption.blur()
            self.page.wait_for_timeout(1500)
        self.visit.fill("train_name", held_out.NAME)
        self.visit.fill("train_what", held_out.concept().class_word)
        self._unfold("#ti_fix_train_options")
        for fold in ("Pictures", "Steps and rates", "Checks, previews, saving"):
            self.visit.press(f'#ti_fix_train_options .ti_fix_fold > .label-wrap:has-text("{fold}")')
        for name, value in {**held_out.SETTINGS, "preview_every": 1}.items():  # so that there is time for Stop
            if name != "schedule":
                self.visit.fill(f"train_{name}", str(value))
        schedule = self._find("schedule").locator("input").first
        schedule.fill(held_out.SETTINGS["schedule"])
        schedule.press("Enter")
        faults.unless(schedule.input_value() == held_out.SETTINGS["schedule"], schedule.input_value())
        self.visit.look("train-options")
        self._unfold("#ti_fix_train_options")

    def checks(self, faults: Faults) -> None:
        """a look before the run tells what was noticed"""
        self._press("check")
        self._said("Ready to train")
        self.visit.look("train-checked")

    def trains(self, faults: Faults) -> None:
        """a run shows its steps, its validation loss and, at a second start elsewhere, that it runs"""
        self._press("start")
        self._said(rf"of {held_out.SETTINGS['steps']}")
        answer = self.page.request.post(
            f"{self.webui.url}/ti_fix/v1/train", data={"name": "zqxother", "folders": [str(self.pictures)]}
        )
        faults.unless(answer.status == 409, f"a second start is answered with {answer.status}")
        self._find("live").get_by_text("Validation loss").first.wait_for()

    def is_found_again(self, faults: Faults) -> None:
        """a reload of the page stops nothing and shows the run again"""
        self.page.reload(wait_until="domcontentloaded")
        entered(self.visit, webui=True)
        self.visit.tab("Train")
        self._said(rf"of {held_out.SETTINGS['steps']}")
        name = self._find("name").locator("textarea, input").first.input_value()
        faults.unless(name == held_out.NAME, f"the form shows {name!r}")
        self._find("live").locator("svg.curve").first.wait_for()
        self.visit.look("train-runs")

    def stops(self, faults: Faults) -> None:
        """Stop ends it after a step and keeps what it learned"""
        self._press("stop")
        said = self._said("Stopped after|Finished")
        faults.unless("Stopped after" in said, said)
        faults.unless((self.webui.data / "embeddings" / f"{held_out.NAME}.safetensors").exists(), "nothing was written")

    def goes_on(self, faults: Faults) -> None:
        """Resume in the list of runs goes on to the end"""
        self._unfold("#ti_fix_train_history_fold")
        entry = self._find("history").locator("li", has_text=held_out.NAME).first
        entry.get_by_text("Resume", exact=True).first.click()
        self._said(rf"Finished after {held_out.SETTINGS['steps']} steps", WHOLE_RUN)
        self._find("strip").locator("img").first.wait_for()
        self.visit.look("train-done")

    def works_in_a_prompt(self, faults: Faults) -> None:
        """Add to txt2img and Generate: the name works without another click"""
        self._find("live").get_by_text("Add to txt2img").first.click()
        self.page.locator("#tabs > .tab-nav > button").first.click()
        prompt = self.page.locator("#txt2img_prompt textarea").first
        faults.unless(prompt.input_value().strip() == held_out.NAME, f"the prompt is {prompt.input_value()!r}")
        prompt.fill(held_out.prompts(held_out.NAME, 1)[0])
        values = {"width": held_out.SIDE, "height": held_out.SIDE, "steps": held_out.STEPS, "cfg_scale": held_out.CFG}
        for name, value in values.items():
            number = self.page.locator(f"#txt2img_{name} input[type=number]").first
            number.fill(str(value))
            number.blur()
        self.page.locator("#txt2img_generate").first.click()
        info = self.page.locator("#html_info_txt2img").first  # some releases of Gradio give the id twice
        info.get_by_text("Steps:").first.wait_for()
        told = info.inner_text()
        faults.unless(re.search(rf"TI[^:]*: .*{held_out.NAME}", told) is not None, f"infotext: {told[:200]}")
        self.page.screenshot(path=str(self.shots / "train-prompt.png"))

    def measured(self, faults: Faults) -> None:
        """Errors of pictures of new scenes, here and in the standalone host."""
        word = held_out.concept().class_word
        plain, here = (self._errors(each) for each in (word, held_out.NAME))
        there = held_out.standalone(self.pictures, MEASURED)
        differences = [a - b for a, b in zip(here, there, strict=True)]
        low, high = held_out.interval(differences)
        mean = statistics.mean(differences)
        faults.told = (
            f"error {statistics.mean(here):.3f}, standalone {statistics.mean(there):.3f}, difference {mean:+.3f} "
            f"(95 %: {low:+.3f} to {high:+.3f}, n={MEASURED}); the word {word!r} {statistics.mean(plain):.3f}"
        )
        faults.unless(low <= 0 <= high or abs(mean) < CLOSE, faults.told)

    def _errors(self, word: str) -> list[float]:
        side = held_out.SIDE
        how = {"width": side, "height": side, "steps": held_out.STEPS, "cfg_scale": held_out.CFG}
        texts = held_out.prompts(word, MEASURED)
        return [held_out.error(self.webui.picture(text, seed=i, **how).pixels) for i, text in enumerate(texts)]
