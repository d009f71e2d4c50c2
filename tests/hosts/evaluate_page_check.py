"""Attention maps and the Evaluate page in a browser without a screen, in a WebUI with the small real model."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hosts.evaluate_files import NAME
from tests.hosts.table import Faults, Table
from tests.hosts.ways_check import tell
from tests.ui.browser.visit import PATIENCE, Visit, entered

RUN = "ckrun"
PROMPTS = "a [name] on a white background\na [name] on a yellow background"
SIDE = 128
BUSY = 400_000
"""Milliseconds that a run of some twenty pictures may take on a processor."""


@dataclass
class EvaluatePageCheck:
    """One drive over the pages.

    Attributes:
        page: of playwright, open on the WebUI.
        judge: weights of the small CLIP.
        pictures: reference pictures with masks and captions.
        shots: where the pictures go.
        table: is continued.
    """

    page: Any
    judge: Path
    pictures: Sequence[Path]
    shots: Path
    table: Table

    def __post_init__(self) -> None:
        self.visit = Visit(self.page, self.shots, webui=True)

    def first(self) -> None:
        """What a user would do first."""
        for step in (self.maps_in_txt2img, self.maps_with_hires, self.compares, self.finds_the_report_again):
            self._row(step)

    def then(self) -> None:
        """What needs a training run."""
        for step in (self.looks_through, self.compares_steps, self.stops):
            self._row(step)
        with self.table.row("page: no error of a script meanwhile") as faults:
            tell(self.visit, faults)

    def _row(self, step: Callable[[Faults], None]) -> None:
        with self.table.row(f"page: {step.__doc__}") as faults:
            try:
                step(faults)
            except Exception as error:  # noqa: BLE001 - of the browser
                faults.append(f"{type(error).__name__}: {str(error).splitlines()[0][:200]}")
        self.page.screenshot(path=str(self.shots / f"{step.__name__}.png"), full_page=True)

    def _find(self, name: str) -> Any:
        return self.page.locator(f"#ti_fix_evaluate_{name}")

    def _press(self, name: str) -> None:
        """A Gradio button: in some releases the id is on the button, in others around it."""
        self.page.locator(f"button#ti_fix_evaluate_{name}, #ti_fix_evaluate_{name} button").first.click()

    def _fill(self, selector: str, value: object) -> None:
        field = self.page.locator(selector).locator("textarea, input:not([type=range]):not([type=checkbox])").first
        field.fill(str(value))
        field.blur()

    def _check(self, selector: str) -> None:
        self.page.locator(f"{selector} input[type=checkbox]").first.check()

    def _choose(self, name: str, text: str) -> None:
        """An entry of a dropdown."""
        self._find(name).locator("input").first.click()
        self.page.locator("ul.options li, [role=option]").filter(has_text=text).first.click()

    def _said(self, text: str) -> None:
        self._find("status").get_by_text(re.compile(text)).first.wait_for(timeout=BUSY)

    def maps_in_txt2img(self, faults: Faults) -> None:
        """maps in txt2img: a long prompt, a batch of two, 192 x 128"""
        self.page.locator("#tabs > .tab-nav > button", has_text=re.compile("txt2img", re.IGNORECASE)).first.click()
        long = ", ".join(["a quiet long story about nothing at all"] * 12)
        self._fill("#txt2img_prompt", f"{long}, a {NAME} beside a blue star")
        for name, value in {"width": 192, "height": SIDE, "steps": 6, "batch_size": 2, "cfg_scale": 4}.items():
            self._fill(f"#txt2img_{name}", value)
        fold = self.page.locator("#ti_fix_maps_txt2img")
        fold.locator(".label-wrap").first.click()
        self._check("#ti_fix_maps_txt2img_on")
        self._fill("#ti_fix_maps_txt2img_words", f"{NAME}, blue star, story")
        count = self._generated()
        faults.unless(count in (4, 5), f"{count} pictures: two, two sheets and perhaps a grid")

    def maps_with_hires(self, faults: Faults) -> None:
        """maps in txt2img with a hires pass, which has a sheet of its own"""
        self._fill("#txt2img_prompt", f"a {NAME} on a white background")
        for name, value in {"width": SIDE, "steps": 4, "batch_size": 1}.items():
            self._fill(f"#txt2img_{name}", value)
        self._fill("#ti_fix_maps_txt2img_words", NAME)
        self.page.locator("#txt2img_hr-visible-checkbox").first.click()
        count = self._generated()
        faults.unless(count == 3, f"{count} pictures: one, and a sheet for each pass")

    def _generated(self) -> int:
        """Press Generate, wait, look at the last picture, which must tell of maps; how many there are."""
        gallery = self.page.locator("#txt2img_gallery")
        sources = "all => all.map(each => each.src)"
        before = set(gallery.locator("img").evaluate_all(sources))
        self.page.click("#txt2img_generate")
        end = time.monotonic() + BUSY / 1000
        while (now := set(gallery.locator("img").evaluate_all(sources))) <= before and time.monotonic() < end:
            self.page.wait_for_timeout(500)
        self.page.wait_for_timeout(2000)
        small = gallery.locator(".thumbnail-small")
        (small if small.count() else gallery.locator(".thumbnail-item")).last.click()
        self.page.locator("#html_info_txt2img", has_text=f"{NAME}: mass").first.wait_for(timeout=BUSY)
        return len(now - before)

    def compares(self, faults: Faults) -> None:
        """Evaluate compares with, class word and without, and is found again after a reload"""
        self._open()
        self._choose("entry", NAME)
        self._fill("#ti_fix_evaluate_prompts", PROMPTS)
        self._upload("references", [each for path in self.pictures[:-1] for each in (path, beside(path))])
        self._form({"class_word": "star", "seeds": 2})
        self._check("#ti_fix_evaluate_maps")
        self._judge()
        self._press("start")
        self._said(r"of 12|Making")
        self.page.screenshot(path=str(self.shots / "running.png"), full_page=True)
        self._reload()
        self._find("result").locator("table").first.wait_for(timeout=BUSY)
        told = self._find("result").first.inner_text()
        for label in (NAME, "class word", "without", "clip_i", "masked_clip_i", "clip_t", "clip_iqa", "adherence_q"):
            faults.unless(label in told, f"the report does not speak of {label}")
        for words in ("95 % bootstrap interval", "moved by its place", "Judge: judge (", "Attention maps of its word"):
            faults.unless(words in told, f"the report does not say {words!r}")
        better = re.search(rf"{NAME} against without: better in likeness to the references \(\+0\.\d+", told)
        faults.unless(better is not None, f"not better than without: {told[:300]}")
        faults.unless(self._find("downloads").locator("a").count() > 0, "no report to download")

    def finds_the_report_again(self, faults: Faults) -> None:
        """the report stands there after another reload"""
        self._reload()
        self._find("result").locator("table").first.wait_for(timeout=PATIENCE)
        broken = self.page.evaluate(
            "[...document.querySelectorAll('#ti_fix_evaluate_result img')].filter(i => !i.naturalWidth).length"
        )
        faults.unless(broken == 0, f"{broken} pictures are broken")

    def compares_steps(self, faults: Faults) -> None:
        """the steps of a training run, and the best of them by number and picture"""
        self._reload()
        self._choose("entry", RUN)
        self._choose("run_name", RUN)
        self._fill("#ti_fix_evaluate_prompts", "a [name] on a white background")
        self._upload("references", self.pictures[:-1])
        self._form({"class_word": "star", "seeds": 1})
        self._judge()
        self._press("start")
        self._find("result").get_by_text("Best step of the run").first.wait_for(timeout=BUSY)
        told = self._find("result").first.inner_text()
        for words in ("step 2", "step 4", "step 6", "Way of the first vector (clip_l)", "Training"):
            faults.unless(words in told, f"the report does not say {words!r}")

    def stops(self, faults: Faults) -> None:
        """Stop ends a run after its picture, and what is there is scored"""
        self._form({"class_word": "star", "seeds": 200})
        self._press("start")
        self._said(r"\b([7-9]|1\d) of 1,[24]00")  # each of the six sides has a picture
        self._press("stop")
        self._find("start").locator("visible=true").first.wait_for()
        self.page.wait_for_function(
            "(() => { const b = document.querySelector('button#ti_fix_evaluate_start, #ti_fix_evaluate_start button');"
            " return b && !b.disabled; })()",
            timeout=BUSY,
        )
        told = self._find("status").first.inner_text()
        faults.unless("against" in told, f"it says {told[:200]!r}")

    def looks_through(self, faults: Faults) -> None:
        """training pictures: what does not belong, captions that do not fit, before and after"""
        self._find("dataset_fold").locator(".label-wrap").first.click()
        self._upload("dataset", [each for path in self.pictures for each in (path, path.with_suffix(".txt"))])
        self._judge()
        self._press("look")
        self._find("result").get_by_text("Before and after").first.wait_for(timeout=BUSY)
        told = self._find("result").first.inner_text()
        odd = next((line for line in told.splitlines() if self.pictures[-1].name in line), "")
        faults.unless("less like the set" in odd and "caption fits far worse" in odd, f"the odd one: {odd!r}")

    def _reload(self) -> None:
        """As a user does who comes back."""
        self.page.reload(wait_until="domcontentloaded")
        entered(self.visit, webui=True)
        self.visit.tab("Evaluate")
        self.page.wait_for_timeout(2500)

    def _open(self) -> None:
        self.page.locator("#tabs > .tab-nav > button", has_text="TI Fix").first.click()
        self.visit.tab("Evaluate")
        self.page.wait_for_timeout(2500)

    def _form(self, values: dict[str, object]) -> None:
        for name, value in {"width": SIDE, "height": SIDE, "steps": 6, "cfg_scale": 4, **values}.items():
            self._fill(f"#ti_fix_evaluate_{name}", value)

    def _judge(self) -> None:
        field = self._find("judge").locator("textarea, input").first
        if not field.is_visible():
            self.page.locator("#ti_fix_evaluate_page .label-wrap", has_text="Judge").first.click()
        self._fill("#ti_fix_evaluate_judge", self.judge)

    def _upload(self, name: str, paths: Sequence[Path]) -> None:
        """Files into a field that may hold others: those are taken out first."""
        field = self._find(name)
        clear = field.locator("button[aria-label='Clear'], button[aria-label='Remove']")
        if clear.count():
            clear.first.click()
        field.locator("input[type=file]").set_input_files([str(path) for path in paths])
        field.get_by_text(re.compile(rf"{paths[-1].stem[:12]}")).first.wait_for()


def beside(path: Path) -> Path:
    """The mask of a picture."""
    return path.with_name(f"{path.stem}-mask.png")
