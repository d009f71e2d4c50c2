"""The ways through our pages (`tests.ui.browser.ways`) inside a running WebUI, and every page in light and dark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tests.hosts.table import Faults, Table
from tests.ui.browser import ways
from tests.ui.browser.visit import TABS, Visit
from tests.ui.folders import fill

SEEN = "a ready-xq on a table\nNegative prompt: blurry\nSteps: 7, Sampler: Euler, CFG scale: 6, Seed: 1, Size: 64x64"
"""Infotext of a picture that is sent by way of PNG Info."""


def put(embeddings: Path, shots: Path) -> Path:
    """The files that the ways go by, and a picture with an infotext; where that lies."""
    fill(embeddings)
    about = PngInfo()
    about.add_text("parameters", SEEN)
    place = shots / "sent.png"
    Image.new("RGB", (64, 64), "#456").save(place, pnginfo=about)
    return place


def drive(page: Any, shots: Path, picture: Path, table: Table) -> None:
    """Go through them, a row for each; a fault of one does not keep the next from being tried."""
    visit = Visit(page, shots, webui=True)
    done: tuple[tuple[str, Callable[[Visit], None]], ...] = (
        ("Convert", ways.convert),
        ("Model", ways.model),
        ("from the list to Convert and Evaluate", ways.sends),
        ("pictures of txt2img, PNG Info", lambda each: ways.sends_of_webui(each, picture)),
        ("the keyboard", ways.keyboard),
        ("every page, light and dark, desk and phone", looks),
    )
    for name, way in done:
        with table.row(f"page: {name}") as faults:
            visit.host_tab("TI Fix")
            try:
                way(visit)
            except Exception as error:  # noqa: BLE001 - of the browser
                faults.append(f"{type(error).__name__}: {str(error).splitlines()[0][:200]}")
                page.screenshot(path=str(shots / f"failed-{name.split()[0]}.png"), full_page=True)
            tell(visit, faults)


def tell(visit: Visit, faults: Faults) -> None:
    """Hand over what a visit has noted so far; errors of the WebUI's own scripts are told, and no fault."""
    faults.extend(dict.fromkeys(visit.faults))
    own = dict.fromkeys(visit.of_webui)
    faults.told = "; ".join([*filter(None, [faults.told]), *(f"the WebUI's own script: {each}" for each in own)])
    visit.faults.clear()
    visit.of_webui.clear()


def looks(visit: Visit) -> None:
    """Each page as it stands."""
    for word in [tab.inner_text().strip() for tab in visit.page.locator(TABS).all()]:
        visit.tab(word)
        visit.page.wait_for_timeout(1000)
        visit.themes(f"host-{word.lower()}")
