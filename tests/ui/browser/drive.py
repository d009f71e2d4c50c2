"""Goes through the pages like a person, in a headless Chromium, and tells what is wrong with them.

python -m tests.ui.browser.drive URL --pictures FOLDER --shots FOLDER [--webui]

Needs the package playwright and a Chromium (TI_FIX_CHROMIUM, or on the path). The last line is JSON: what was done, and
the faults. `--webui` is for a page inside a running WebUI.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from run import CHROMIUM
from tests.ui.browser import faults

FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
PATIENCE = 240_000
"""Milliseconds; the computer may be slow."""

TABS = "#ti_fix_tabs > .tab-nav > button, #ti_fix_tabs > .tab-nav button[role=tab]"
CAPTION = "a red figure on a table"
WIDE, PHONE = {"width": 1360, "height": 950}, {"width": 390, "height": 844}


def chromium() -> str | None:
    """The browser to use."""
    return os.environ.get("TI_FIX_CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUM)), None)


class Visit:
    """One visit to the pages: what was done and what was wrong."""

    def __init__(self, page: Any, shots: Path) -> None:
        self.page, self.shots = page, shots
        self.did: list[str] = []
        self.faults: list[str] = []
        page.on("console", self._noted)
        page.on("pageerror", lambda error: self.fault(f"script: {error}"))

    def _noted(self, message: Any) -> None:
        if message.type == "error" and faults.serious(message.text):
            self.fault(f"console: {message.text[:200]}")

    def fault(self, text: str) -> None:
        self.faults.append(f"{self.did[-1] if self.did else 'start'}: {text}")

    def look(self, name: str) -> None:
        """Measure the page and keep its picture."""
        self.did.append(name)
        self.page.wait_for_timeout(400)
        for each in (*faults.of_layout(self.page), *faults.of_contrast(self.page)):
            self.fault(each)
        self.page.screenshot(path=str(self.shots / f"{name}.png"), full_page=True)

    def expect(self, selector: str, text: str) -> None:
        """Wait until an element says something."""
        try:
            self.page.locator(selector, has_text=text).first.wait_for(timeout=PATIENCE)
        except Exception:
            said = self.page.locator(selector).first
            self.fault(f"{selector} does not say {text!r} but {said.inner_text()[:200]!r}" if said.count() else text)
            raise

    def fill(self, name: str, value: str) -> None:
        """Write into a field of a form as a person does."""
        field = self.page.locator(f"#ti_fix_{name}").locator("textarea, input:not([type=range])").first
        field.fill(value)
        field.blur()

    def press(self, selector: str) -> None:
        self.page.locator(selector).first.click()

    def tab(self, word: str) -> None:
        self.page.locator(TABS, has_text=word).first.click()


def files(visit: Visit) -> None:
    """The list, one embedding, a repair and its undoing; a search that finds nothing."""
    visit.tab("Files")
    visit.expect("#ti_fix_files_table", "swapped-xq")
    visit.look("files")
    visit.press('#ti_fix_files_table button.name:has-text("swapped-xq")')
    visit.expect("#ti_fix_files_side", "Swapped the halves")
    visit.look("files-details")
    visit.press("#ti_fix_files_repair")
    visit.expect("#ti_fix_files_status", "1 embedding repaired on disk")
    visit.press("#ti_fix_files_undo")
    visit.expect("#ti_fix_files_status", "put back")
    visit.fill("files_search", "nothing is called so")
    visit.expect("#ti_fix_files_table", "Nothing fits")
    visit.look("files-nothing")


def train(visit: Visit, pictures: Path) -> None:
    """Nothing entered; then a run that is checked, started, left, found again, saved, paused, resumed and finished."""
    page = visit.page
    visit.tab("Train")
    visit.expect("#ti_fix_train_album", "No pictures yet")
    visit.look("train-empty")
    visit.press("#ti_fix_train_start")
    visit.expect("#ti_fix_train_status", "Give it a name first")
    visit.look("train-no-name")
    page.set_input_files("#ti_fix_train_files input[type=file]", [str(p) for p in sorted(pictures.iterdir())])
    page.locator("#ti_fix_train_album li").nth(1).wait_for(timeout=PATIENCE)
    caption = page.locator("#ti_fix_train_album textarea").nth(1)
    caption.fill(CAPTION)
    caption.blur()
    visit.fill("train_name", "redfig-xq")
    visit.fill("train_what", "red circle")
    visit.press("#ti_fix_train_options > button, #ti_fix_train_options > .label-wrap")
    for fold in ("Steps and rates", "Checks, previews, saving"):
        visit.press(f'#ti_fix_train_options .ti_fix_fold > .label-wrap:has-text("{fold}")')
    for name, value in {"steps": 12, "batch_size": 2, "warmup": 1, "validate_every": 3, "preview_every": 6}.items():
        visit.fill(f"train_{name}", str(value))
    visit.look("train-options")
    visit.press("#ti_fix_train_check")
    visit.expect("#ti_fix_train_status", "Ready to train")
    visit.press("#ti_fix_train_start")
    visit.expect("#ti_fix_train_status", "of 12")
    page.reload(wait_until="domcontentloaded")
    entered(visit)
    visit.tab("Train")
    visit.expect("#ti_fix_train_live", "Validation loss")
    if page.locator("#ti_fix_train_name input, #ti_fix_train_name textarea").first.input_value() != "redfig-xq":
        visit.fault("after a reload the form does not show the run")
    if page.locator("#ti_fix_train_album textarea").nth(1).input_value() != CAPTION:
        visit.fault("a caption that was typed is not there after a reload")
    if page.locator("#ti_fix_train_pause").is_visible():
        visit.press("#ti_fix_train_pause")
        page.locator("#ti_fix_train_status", has_text="at step").or_(
            page.locator("#ti_fix_train_status", has_text="after")
        ).first.wait_for(timeout=PATIENCE)
    if page.locator("#ti_fix_train_resume").is_visible():
        visit.look("train-paused")
        visit.press("#ti_fix_train_resume")
    visit.expect("#ti_fix_train_status", "Finished after 12 steps")
    visit.press("#ti_fix_train_history_fold > button, #ti_fix_train_history_fold > .label-wrap")
    visit.expect("#ti_fix_train_history", "redfig-xq")
    visit.look("train-done")


def themes(visit: Visit) -> None:
    """Every page in the dark, and on a phone in both."""
    words = [tab.inner_text().strip() for tab in visit.page.locator(TABS).all()]
    for size, width in ((WIDE, "wide"), (PHONE, "phone")):
        visit.page.set_viewport_size(size)
        for theme in ("light", "dark"):
            visit.page.evaluate(f"document.body.classList.toggle('dark', {str(theme == 'dark').lower()})")
            for word in words:
                visit.tab(word)
                visit.page.wait_for_timeout(300)
                visit.look(f"{word.lower()}-{width}-{theme}")
    visit.page.evaluate("document.body.classList.remove('dark')")
    visit.page.set_viewport_size(WIDE)


def keyboard(visit: Visit) -> None:
    """The Tab key reaches what is to be done on the Train page, and shows where it is."""
    visit.did.append("keyboard")
    visit.tab("Train")
    visit.page.locator("#ti_fix_train_name textarea, #ti_fix_train_name input").first.focus()
    reached = set()
    for _ in range(60):
        visit.page.keyboard.press("Tab")
        reached.add(visit.page.evaluate("document.activeElement.closest('[id^=\"ti_fix_train_\"]')?.id || ''"))
    for wanted in ("what", "kind", "start", "check"):
        if f"ti_fix_train_{wanted}" not in reached:
            visit.fault(f"the Tab key does not reach ti_fix_train_{wanted}")


def entered(visit: Visit, *, webui: bool = False) -> None:
    """Wait until the page is there."""
    if webui:
        visit.page.wait_for_selector("#txt2img_generate", state="visible", timeout=PATIENCE)
        visit.page.locator("#tabs > .tab-nav > button", has_text="TI Fix").first.click()
    visit.page.wait_for_selector("#ti_fix_tabs", state="visible", timeout=PATIENCE)
    visit.page.wait_for_timeout(1500)


WAYS: dict[str, Callable[[Visit, Path], None]] = {
    "files": lambda visit, _: files(visit),
    "train": train,
    "keyboard": lambda visit, _: keyboard(visit),
    "themes": lambda visit, _: themes(visit),
}
"""What a visit is made of; each leaves the page as the next one wants it."""


def run(url: str, pictures: Path, shots: Path, *, webui: bool = False, ways: Sequence[str] = ()) -> dict[str, Any]:
    """A visit; the whole one unless only some ways are named."""
    from playwright.sync_api import sync_playwright

    shots.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as profile:
        browser = playwright.chromium.launch_persistent_context(
            profile, executable_path=chromium(), args=FLAGS, headless=True, viewport=WIDE
        )
        page = browser.new_page()
        page.set_default_timeout(PATIENCE)
        page.route("**/*", lambda r: r.continue_() if r.request.url.startswith((url, "data:", "blob:")) else r.abort())
        visit = Visit(page, shots)
        page.goto(url, wait_until="domcontentloaded", timeout=PATIENCE)
        entered(visit, webui=webui)
        for name in ways or WAYS:
            _tried(name, visit, pictures)
        browser.close()
    return {"did": visit.did, "faults": list(dict.fromkeys(visit.faults))}


def _tried(name: str, visit: Visit, pictures: Path) -> None:
    """What stops one way is a fault; the other pages are still worth a look."""
    try:
        WAYS[name](visit, pictures)
    except Exception as error:  # noqa: BLE001 - whatever the browser raises
        visit.fault(f"{type(error).__name__}: {str(error).splitlines()[0]}")
        visit.page.screenshot(path=str(visit.shots / f"failed-{len(visit.did)}.png"), full_page=True)


def main(argv: list[str]) -> int:
    """Carry out a command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--pictures", type=Path, required=True, help="a folder with a few pictures to train on")
    parser.add_argument("--shots", type=Path, required=True, help="where screenshots go")
    parser.add_argument("--webui", action="store_true", help="the pages are a tab of a running WebUI")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=[], help="only these")
    given = parser.parse_args(argv)
    result = run(given.url, given.pictures, given.shots, webui=given.webui, ways=given.ways)
    sys.stdout.write(json.dumps(result) + "\n")
    return int(bool(result["faults"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
