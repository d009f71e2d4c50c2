"""The Files page in a browser without a screen: every control pressed in a WebUI, what it did looked up on disk.

Needs the package playwright and a Chromium (TI_FIX_CHROMIUM, or on the path); a picture of each step is kept.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cases import folder
from tests.hosts.table import Faults, Table
from tests.hosts.ways_check import tell
from tests.hosts.webui_client import Client
from tests.ui.browser.visit import FLAGS, PATIENCE, WIDE, Visit, chromium, entered

MANY = 3000
"""Broken files for the batch, so that a browser that gets little of a busy computer has time to stop it."""

STOPS = """() => { const watch = setInterval(() => {
  const stop = document.querySelector("button#ti_fix_files_stop, #ti_fix_files_stop button");
  if (!stop?.offsetParent) return;
  clearInterval(watch);
  stop.click();
}, 50); }"""
"""Presses Stop as soon as it is in sight."""


def put(where: Path, loras: Path) -> None:
    """The files that the page is driven with, and a LoRA that carries an embedding."""
    for case in ("F01", "F02", "S01", "V07", "D04", "X03"):
        shutil.copytree(folder() / "handover" / case, where / case, dirs_exist_ok=True)
    loras.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(folder() / "handover" / "X03" / "bundledXL.safetensors", loras / "ckbundle.safetensors")


@dataclass
class PageCheck:
    """One drive over the page.

    Attributes:
        page: of playwright, open on the WebUI.
        webui: the same WebUI.
        models: family -> file name of a checkpoint.
        root: the embeddings folder.
        shots: where the pictures go.
        table: is continued.
    """

    page: Any
    webui: Client
    models: Mapping[str, str]
    root: Path
    shots: Path
    table: Table

    def run(self) -> None:
        """Everything, in the order in which a user would do it."""
        self.visit = Visit(self.page, self.shots, webui=True)
        for step in (self.opens, self.searches, self.details, self.repairs, self.undoes, self.splits):
            self._row(step)
        for step in (self.exports, self.extracts, self.copies_and_adds, self.stops_a_batch):
            self._row(step)
        self._row(self.cards)
        self._row(self.settings)
        with self.table.row("page: no error of a script meanwhile") as faults:
            tell(self.visit, faults)

    def _row(self, step: Callable[[Faults], None]) -> None:
        with self.table.row(f"page: {step.__doc__}") as faults:
            try:
                step(faults)
            except Exception as error:  # noqa: BLE001 - of the browser
                faults.append(f"{type(error).__name__}: {str(error).splitlines()[0][:200]}")
        self.page.screenshot(path=str(self.shots / f"{step.__name__}.png"))

    def _find(self, name: str) -> Any:
        return self.page.locator(f"#ti_fix_files_{name}")

    def _press(self, name: str) -> None:
        """A Gradio button: in some releases the id is on the button, in others around it."""
        self.page.locator(f"button#ti_fix_files_{name}, #ti_fix_files_{name} button").first.click()

    def _search(self, text: str) -> None:
        self._find("search").locator("textarea, input").first.fill(text)
        self.page.wait_for_timeout(1500)

    def _choose(self, trigger: str) -> None:
        self._search(trigger)
        self._find("table").locator("tr[data-ti-fix] button.name", has_text=trigger).first.click()
        self._find("head").locator("h3", has_text=trigger).wait_for()

    def _said(self, text: str) -> None:
        self._find("status").get_by_text(re.compile(text)).first.wait_for()

    def opens(self, faults: Faults) -> None:
        """it lists the folder when it comes into sight"""
        self.visit.tab("Files")
        self._find("table").locator("tr[data-ti-fix]").first.wait_for()
        counts = self._find("chips").first.inner_text()
        faults.unless(re.search(r"\b6\b", counts) is not None, counts)

    def searches(self, faults: Faults) -> None:
        """search and filter narrow the list"""
        self._search("easyneg")
        rows = self._find("table").locator("tr[data-ti-fix]")
        rows.nth(1).wait_for(state="detached")
        faults.unless(rows.count() == 1, f"{rows.count()} rows for easyneg")
        self._search("")
        self.page.locator('[data-ti-fix="show:reject"]').first.click()
        self._find("table").locator("tr[data-ti-fix]", has_text="long80").wait_for()
        self.page.wait_for_timeout(1000)
        faults.unless(rows.count() == 3, f"{rows.count()} rows that are unusable")
        self.page.locator('[data-ti-fix="show:all"]').first.click()

    def details(self, faults: Faults) -> None:
        """details say what it is and why"""
        self._choose("login")
        self._find("details").get_by_text("Log in").or_(self._find("details").get_by_text("web page")).first.wait_for()
        self._choose("swapped")
        text = self._find("side").inner_text()
        faults.unless("swapped" in text.lower() and "CLIP-L" in text, text[:200])

    def repairs(self, faults: Faults) -> None:
        """Repair on disk keeps the original"""
        self._press("repair")
        self._said("repaired on disk")
        kept = list((self.root / "ti_fix_backup").rglob("swapped*.bak"))
        original = (folder() / "handover" / "S01" / "swapped.safetensors").read_bytes()
        faults.unless(len(kept) == 1 and kept[0].read_bytes() == original, f"backup: {kept}")
        faults.unless((self.root / "S01" / "swapped.safetensors").read_bytes() != original, "not repaired")

    def undoes(self, faults: Faults) -> None:
        """Undo puts it back, byte for byte"""
        self._press("undo")
        self._said("put back")
        original = (folder() / "handover" / "S01" / "swapped.safetensors").read_bytes()
        faults.unless((self.root / "S01" / "swapped.safetensors").read_bytes() == original, "not the original")

    def splits(self, faults: Faults) -> None:
        """Split into parts makes an embedding of 80 vectors usable"""
        self._choose("long80")
        self._press("repair")
        self._said("repaired on disk")
        parts = sorted(path.name for path in (self.root / "V07").glob("*.safetensors"))
        faults.unless(len(parts) == 2, str(parts))

    def exports(self, faults: Faults) -> None:
        """Export gives a file to download"""
        self._choose("hero-step00001250")
        self._press("export")
        link = self._find("downloads").locator("a").first
        link.wait_for()
        faults.unless(bool(link.get_attribute("href")), "no link")

    def extracts(self, faults: Faults) -> None:
        """embeddings are taken out of a LoRA"""
        self._find("loras").locator(".label-wrap").first.click()
        self._press("find_loras")
        self._said("1 LoRA with embeddings")
        self._press("take")
        self._said("taken out")
        faults.unless((self.root / "hero.safetensors").exists(), f"no file: {self._find('status').first.inner_text()}")

    def copies_and_adds(self, faults: Faults) -> None:
        """Copy and Add to txt2img"""
        self._choose("hero-step00001250")
        side = self._find("side")
        side.locator("[data-ti-fix-copy]").first.click()
        side.locator("[data-ti-fix-copy].done").first.wait_for()
        side.locator("[data-ti-fix-add]").first.click()
        prompt = self.page.locator("#txt2img_prompt textarea").input_value()
        faults.unless("hero-step00001250" in prompt, repr(prompt))

    def stops_a_batch(self, faults: Faults) -> None:
        """many at once, stopped"""
        many = self.root / "many"
        many.mkdir()
        for number in range(MANY):
            shutil.copyfile(folder() / "handover" / "S01" / "swapped.safetensors", many / f"ckmany{number}.safetensors")
        self._press("refresh")
        self._search("ckmany")
        self._find("chips").get_by_text(re.compile(f"{MANY:,}")).first.wait_for()
        self._find("batch").locator(".label-wrap").first.click()
        self.page.evaluate(STOPS)
        self._press("repair_shown")
        self._said("Stopped|repaired on disk")
        done = len(list((self.root / "ti_fix_backup").rglob("ckmany*.bak")))
        faults.unless(0 < done < MANY, f"{done} of {MANY} were repaired")
        shutil.rmtree(many)
        self._press("refresh")
        self._find("table").get_by_text("Nothing fits").wait_for()

    def cards(self, faults: Faults) -> None:
        """the WebUI's cards are what prompts can use, also after a switch of the model"""
        self.page.locator("#tabs > .tab-nav > button", has_text=re.compile("txt2img", re.IGNORECASE)).first.click()
        tabs = self.page.locator("#txt2img_extra_tabs > .tab-nav > button")
        tabs.filter(has_text="Textual Inversion").first.click()
        for family in (*self.models, "sdxl"):
            self.webui.options(sd_model_checkpoint=self.models[family])
            self.webui.picture("a cat")  # some WebUIs load a model only when a picture is asked for
            self.page.locator("#txt2img_textual_inversion_extra_refresh >> visible=true").first.click()
            for _ in range(PATIENCE // 500):
                self.page.wait_for_timeout(500)
                shown, wanted = self._cards(), self.webui.loaded()  # which the refresh empties before it fills it again
                if shown == wanted:
                    break
            faults.unless(bool(wanted), f"{family}: nothing is listed")
            faults.unless(shown == wanted, f"{family}: {sorted(shown ^ wanted)[:5]} of {len(shown)}, {len(wanted)}")

    def _cards(self) -> set[str]:
        script = "cards => cards.map(card => card.dataset.name)"
        return set(self.page.locator("#txt2img_textual_inversion_cards .card").evaluate_all(script))

    def settings(self, faults: Faults) -> None:
        """the settings page has its section"""
        self.page.locator("#tabs > .tab-nav > button", has_text="Settings").first.click()
        self.page.locator("#settings button", has_text="TI Fix").first.click()
        self.page.locator("#setting_ti_fix_enabled").wait_for()
        faults.unless(self.page.locator("#setting_ti_fix_sd15").is_visible(), "no SD1.5 setting")


@contextmanager
def opened(url: str) -> Iterator[Any]:
    """The WebUI's page on our tab; other computers are not asked for anything."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium(), args=FLAGS)
        page = browser.new_page(viewport=WIDE)
        page.set_default_timeout(PATIENCE)
        own = (url, "data:", "blob:")
        page.route("**/*", lambda each: each.continue_() if each.request.url.startswith(own) else each.abort())
        page.goto(url, wait_until="domcontentloaded")
        entered(Visit(page, Path()), webui=True)
        yield page
        browser.close()
