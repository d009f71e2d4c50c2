"""Take the pictures of the README and the guide from the running pages.

.venv-gradio-4.40.0/bin/python docs/make_pictures.py     (after `python3 run.py test`; needs a Chromium)
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from tests.ui.browser.visit import FLAGS, PATIENCE, Visit, chromium, entered
from ti_fix.cli.broken import make_broken_folder
from ti_fix.small.concepts import concepts
from ti_fix.small.scenes import render

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
PORT = 7969
STEPS = 48


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_broken_folder(root / "embeddings")
        photos = training_pictures(root / "photos")
        command = [sys.executable, "-m", "ti_fix", "ui", "--embeddings", str(root / "embeddings"), "--no-browser"]
        with subprocess.Popen([*command, "--port", str(PORT)], cwd=ROOT, stderr=subprocess.PIPE, text=True) as program:
            try:
                assert program.stderr is not None
                while "ti_fix is at" not in (line := program.stderr.readline()):
                    if not line:
                        return 1
                with sync_playwright() as playwright:
                    browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
                    page = browser.new_page(viewport={"width": 1440, "height": 900})
                    page.set_default_timeout(PATIENCE)
                    take(page, photos)
            finally:
                program.terminate()
    return 0


def training_pictures(folder: Path) -> list[str]:
    """Scenes that show one of the shapes for which the small model has no word."""
    folder.mkdir()
    chance = random.Random(3)
    concept = concepts("shape")[0]
    for i in range(8):
        Image.fromarray(render(concept.draw(chance).scene)).save(folder / f"scene-{i + 1}.png")
    return [str(path) for path in sorted(folder.iterdir())]


def take(page: Page, photos: list[str]) -> None:
    """Walk to the places and take a picture of each."""
    page.goto(f"http://127.0.0.1:{PORT}/")
    visit = Visit(page, PICTURES)
    entered(visit)
    visit.expect("#ti_fix_files_table", "swapped-labels")
    visit.press('#ti_fix_files_table button.name:has-text("swapped-labels")')
    visit.expect("#ti_fix_files_side", "Swapped the halves")
    shoot(page, "files")
    visit.tab("Train")
    page.set_input_files("#ti_fix_train_files input[type=file]", photos)
    page.locator("#ti_fix_train_album li").nth(len(photos) - 1).wait_for()
    visit.fill("train_name", "leaf-q")
    visit.fill("train_what", "shape")
    visit.press("#ti_fix_train_options > button")
    for fold in ("Steps and rates", "Checks, previews, saving"):
        visit.press(f'#ti_fix_train_options .ti_fix_fold > .label-wrap:has-text("{fold}")')
    for name, value in {"steps": STEPS, "warmup": 5, "validate_every": 6, "preview_every": 8}.items():
        visit.fill(f"train_{name}", str(value))
    visit.press("#ti_fix_train_options > button")
    visit.press("#ti_fix_train_start")
    page.locator("#ti_fix_train_strip figure").nth(2).wait_for(timeout=1_200_000)
    shoot(page, "train")
    visit.press("#ti_fix_train_stop")
    visit.expect("#ti_fix_train_status", "after")


def shoot(page: Page, name: str) -> None:
    page.mouse.move(0, 0)
    page.evaluate("document.querySelectorAll('.rows').forEach((each) => each.scrollTo(0, 0))")
    time.sleep(0.5)
    page.locator("#ti_fix_root").screenshot(path=str(PICTURES / f"{name}.png"))
    print(PICTURES / f"{name}.png")


if __name__ == "__main__":
    sys.exit(main())
