"""Goes through the pages like a person, in a headless Chromium, and tells what is wrong with them.

python -m tests.ui.browser.drive URL --pictures FOLDER --shots FOLDER [--webui]

Needs the package playwright and a Chromium (TI_FIX_CHROMIUM, or on the path). The last line is JSON: what was done, and
the faults. `--webui` is for a page inside a running WebUI.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.ui.browser.visit import FLAGS, PATIENCE, WIDE, Visit, chromium, entered
from tests.ui.browser.ways import WAYS


def run(url: str, pictures: Path, shots: Path, *, webui: bool = False, ways: Sequence[str] = ()) -> dict[str, Any]:
    """A visit; the whole one unless only some ways are named."""
    from playwright.sync_api import sync_playwright

    shots.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = playwright.chromium.launch_persistent_context(
            profile, executable_path=chromium(), args=FLAGS, headless=True, viewport=WIDE
        )
        page = browser.new_page()
        page.set_default_timeout(PATIENCE)
        page.route("**/*", lambda r: r.continue_() if r.request.url.startswith((url, "data:", "blob:")) else r.abort())
        visit = Visit(page, shots, webui=webui)
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
