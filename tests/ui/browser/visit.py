"""One visit to the pages in a headless Chromium: what was done, and what was wrong."""

from __future__ import annotations

import os
import re
import shutil
import time
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
SHORT = 5_000
"""Milliseconds that something takes which may also never come."""

TABS = "#ti_fix_tabs > .tab-nav > button, #ti_fix_tabs > .tab-nav button[role=tab]"
WIDE, PHONE = {"width": 1360, "height": 950}, {"width": 390, "height": 844}


def chromium() -> str | None:
    """The browser to use."""
    return os.environ.get("TI_FIX_CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUM)), None)


class Visit:
    """One visit to the pages: what was done and what was wrong.

    Attributes:
        did: what was done, in its order.
        faults: what was wrong.
        of_webui: errors that the WebUI's own scripts have without ti_fix as well.
    """

    def __init__(self, page: Any, shots: Path, *, webui: bool = False) -> None:
        self.page, self.shots, self.webui = page, shots, webui
        self.did: list[str] = []
        self.faults: list[str] = []
        self.of_webui: list[str] = []
        page.on("console", self._noted)
        page.on("pageerror", self._broke)
        self._asked: set[Any] = set()
        page.on("request", self._began)
        for over in ("requestfinished", "requestfailed"):
            page.on(over, self._ended)

    def _began(self, request: Any) -> None:
        self._asked.add(request)

    def _ended(self, request: Any) -> None:
        self._asked.discard(request)

    def _broke(self, error: Any) -> None:
        stack = error.stack or ""
        if self.webui and faults.of_webui(str(error), stack):
            self.of_webui.append(str(error))
            return
        frames = " < ".join(line.strip().rsplit("/", 1)[-1] for line in stack.splitlines()[1:4])
        self.fault(f"script: {error} ({frames})")

    def _noted(self, message: Any) -> None:
        elsewhere = self.webui and "ti_fix" not in f"{message.location.get('url')} {message.text}"
        if message.type == "error" and faults.serious(message.text) and not elsewhere:
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

    def choose(self, name: str, text: str) -> None:
        """Pick from the list of a field, as a person does: a list that was opened before it was filled, again."""
        field = self.page.locator(f"#ti_fix_{name} input").first
        option = self.page.locator("ul.options li, [role=option]", has_text=text).locator("visible=true").first
        until = time.monotonic() + PATIENCE / 1000
        while True:
            field.click()
            try:
                option.wait_for(timeout=SHORT)
                break
            except Exception:
                if time.monotonic() > until:
                    raise
                field.blur()
        option.click()
        self.page.keyboard.press("Escape")

    def holds(self, name: str, text: str) -> None:
        """Wait until a field holds something: in its box, or as chosen from a list."""
        self.page.wait_for_function(
            """([id, text]) => { const field = document.getElementById(id);
                const boxes = field ? [...field.querySelectorAll("input, textarea")] : [];
                return field && (boxes.some((b) => b.value.includes(text)) || field.innerText.includes(text)); }""",
            arg=[f"ti_fix_{name}", text],
            timeout=PATIENCE,
        )

    def host_tab(self, word: str) -> None:
        """A tab of the WebUI itself; Forge writes their names in capitals of its own."""
        words = self.page.locator("#tabs > .tab-nav > button")
        words.filter(has_text=re.compile(f"^\\s*{re.escape(word)}\\s*$", re.IGNORECASE)).first.click()

    def press(self, selector: str) -> None:
        self.page.locator(selector).locator("visible=true").first.click()

    def pressed(self, selector: str) -> bool:
        """Press what may go away at any moment, such as a run's buttons; whether it was still there."""
        button = self.page.locator(selector)
        try:
            if button.is_visible():
                button.click(timeout=SHORT)
                return True
        except Exception:
            if button.is_visible():
                raise
        return False

    def tab(self, word: str) -> None:
        """Open one of our pages and wait until it is filled.

        Gradio 4.40 can lose what is pressed at the very moment at which it closes the stream of an earlier answer.
        """
        self.page.locator(TABS, has_text=word).first.click()
        self.page.wait_for_timeout(500)
        until = time.monotonic() + SHORT / 1000  # not longer: a job that runs keeps the stream open
        while self._asked and time.monotonic() < until:
            self.page.wait_for_timeout(100)

    def again(self, word: str) -> None:
        """Reload the page and go to one of ours."""
        self.page.reload(wait_until="domcontentloaded")
        entered(self, webui=self.webui)
        self.tab(word)

    def themes(self, name: str) -> None:
        """Look at the page as it is now in light and dark, on a desk and on a phone."""
        dark = "document.body.classList.toggle('dark', {})".format
        before = self.page.evaluate("document.body.classList.contains('dark')")
        for size, width in ((WIDE, "wide"), (PHONE, "phone")):
            self.page.set_viewport_size(size)
            for theme in ("light", "dark"):
                self.page.evaluate(dark(str(theme == "dark").lower()))
                self.look(f"{name}-{width}-{theme}")
        self.page.evaluate(dark(str(before).lower()))
        self.page.set_viewport_size(WIDE)


def entered(visit: Visit, *, webui: bool = False) -> None:
    """Wait until the page is there."""
    if webui:
        visit.page.wait_for_selector("#txt2img_generate", state="visible", timeout=PATIENCE)
        visit.page.locator("#tabs > .tab-nav > button", has_text="TI Fix").first.click()
    visit.page.wait_for_selector("#ti_fix_tabs", state="visible", timeout=PATIENCE)
    visit.page.wait_for_timeout(1500)
