"""Take the pictures of the README and the guide from the running pages, on the small model.

.venv-gradio-4.40.0/bin/python docs/make_pictures.py     (after `python3 run.py test`; needs a Chromium)
.venv-gradio-4.40.0/bin/python docs/make_pictures.py files convert model     only these; train takes evaluate along
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import safetensors.torch
import torch
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from tests.ui.browser.visit import FLAGS, PATIENCE, Visit, chromium, entered
from ti_fix.cli.broken import make_broken_folder
from ti_fix.small import load
from ti_fix.small.captions import plain_caption
from ti_fix.small.concepts import concepts
from ti_fix.small.scenes import render

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
PORT = 7969
SETTINGS = {"steps": 60, "warmup": 5, "validate_every": 6, "preview_every": 10}
LONG = 1_800_000
"""Milliseconds that a training may take on a slow computer."""

RUN = ".ti_fix_columns > :nth-child(2)"
"""The half of the Train page that shows the run."""


@dataclass(frozen=True)
class Example:
    """A worked example of the guide: something that the small model has no word for."""

    name: str
    what: str
    kind: str
    style: bool = False


EXAMPLES = (
    Example("leaf-q", "shape", "shape"),
    Example("weave-q", "pattern", "texture", style=True),
    Example("harle-q", "pattern", "two-tone"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=" ".join(PAGES))
    wanted = parser.parse_args().pages
    if not set(wanted) <= set(PAGES):
        parser.error(f"pages are {', '.join(PAGES)}")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_broken_folder(root / "embeddings")
        write_old_file(root / "embeddings" / "blue-cat.safetensors")
        photos = {each.name: training_pictures(root / each.name, each) for each in EXAMPLES}
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
                    take(page, photos, wanted or list(PAGES))
            finally:
                program.terminate()
    return 0


def write_old_file(path: Path) -> None:
    """An SD1.5 file: a word, a sum of two words, and something between a word and noise, at CLIP-L's real width."""
    model = load("sdxl")
    table, tokens = model.text_encoders["clip_l"].get_input_embeddings().weight, model.tokenizers["clip_l"]
    cat, blue, soft = (
        table[tokens(word, add_special_tokens=False)["input_ids"][0]].detach() for word in ("cat", "blue", "fur")
    )
    noise = torch.randn(soft.shape, generator=torch.Generator().manual_seed(1)) * soft.norm() / 8
    rows = torch.stack([cat, 0.7 * blue + 0.7 * cat, soft + 0.25 * noise])
    safetensors.torch.save_file({"emb_params": rows.repeat(1, 12)}, path)


def training_pictures(folder: Path, example: Example) -> list[str]:
    """Scenes that show it; for a style with captions that say all but that."""
    folder.mkdir()
    chance = random.Random(3)
    concept = concepts(example.kind)[0]
    for i in range(8):
        drawn = concept.draw(chance, "")
        Image.fromarray(render(drawn.scene)).save(folder / f"scene-{i + 1}.png")
        if example.style:
            (folder / f"scene-{i + 1}.txt").write_text(plain_caption(drawn, chance), encoding="utf-8")
    return [str(path) for path in sorted(folder.iterdir())]


def take(page: Page, photos: dict[str, list[str]], wanted: list[str]) -> None:
    """Walk to the places and take a picture of each."""
    page.goto(f"http://127.0.0.1:{PORT}/")
    visit = Visit(page, PICTURES)
    entered(visit)
    for name in wanted:
        PAGES[name](visit, photos)


def files(visit: Visit) -> None:
    """One embedding of the list with its details."""
    visit.tab("Files")
    visit.expect("#ti_fix_files_table", "swapped-labels")
    visit.press('#ti_fix_files_table button.name:has-text("swapped-labels")')
    visit.expect("#ti_fix_files_side", "Swapped the halves")
    shoot(visit.page, "files")


def convert(visit: Visit) -> None:
    """What would come out of an SD1.5 file."""
    visit.tab("Convert")
    visit.choose("convert_files", "blue-cat")
    visit.press("#ti_fix_convert_look")
    visit.expect("#ti_fix_convert_cards", "not written yet")
    shoot(visit.page, "convert")


def model(visit: Visit) -> None:
    """The model's lamp and a prompt taken apart."""
    visit.tab("Model")
    visit.expect("#ti_fix_model_report h3", "")
    visit.fill("model_prompt", "a photo of healthy-style, (red figure:1.2) BREAK on a table")
    visit.press("#ti_fix_model_apart")
    visit.expect("#ti_fix_model_tokens", "figure")
    shoot(visit.page, "model")


def examples(visit: Visit, photos: dict[str, list[str]]) -> None:
    """The three examples of the guide, trained, and the report of the first."""
    page = visit.page
    visit.tab("Train")
    options = "#ti_fix_train_options > button, #ti_fix_train_options > .label-wrap"
    visit.press(options)
    for fold in ("Steps and rates", "Checks, previews, saving"):
        visit.press(f'#ti_fix_train_options .ti_fix_fold > .label-wrap:has-text("{fold}")')
    for name, value in SETTINGS.items():
        visit.fill(f"train_{name}", str(value))
    visit.press(options)
    for number, example in enumerate(EXAMPLES):
        train(visit, example, photos[example.name])
        if number == 0:
            page.locator("#ti_fix_train_strip figure").nth(2).wait_for(timeout=LONG)
            shoot(page, "train")
        page.locator("#ti_fix_train_status", has_text="Finished after").first.wait_for(timeout=LONG)
        shoot(page, f"train-{example.kind}", RUN)
    evaluate(visit, photos[EXAMPLES[0].name])


def train(visit: Visit, example: Example, photos: list[str]) -> None:
    """Begin one of the examples."""
    visit.press("#ti_fix_train_fresh")
    visit.expect("#ti_fix_train_album", "No pictures yet")
    visit.page.set_input_files("#ti_fix_train_files input[type=file]", photos)
    visit.page.locator("#ti_fix_train_album li").nth(7).wait_for()
    visit.fill("train_name", example.name)
    visit.fill("train_what", example.what)
    word = "A style" if example.style else "A thing"
    visit.press(f'#ti_fix_train_kind label:has-text("{word}")')
    visit.press("#ti_fix_train_start")
    visit.expect("#ti_fix_train_status", f"Training {example.name}")


def evaluate(visit: Visit, photos: list[str]) -> None:
    """The first example's report."""
    visit.tab("Evaluate")
    visit.choose("evaluate_entry", EXAMPLES[0].name)
    visit.page.set_input_files("#ti_fix_evaluate_references input[type=file]", photos)
    visit.fill("evaluate_prompts", "a red [name] on a white background\na blue [name]")
    for name, value in {"class_word": "blob", "seeds": 4, "steps": 14}.items():
        visit.fill(f"evaluate_{name}", str(value))
    visit.press("#ti_fix_evaluate_start")
    visit.page.locator("#ti_fix_evaluate_result .report h2").first.wait_for(timeout=LONG)
    shoot(visit.page, "evaluate", "#ti_fix_evaluate_result", upper=1395)


PAGES: dict[str, Callable[[Visit, dict[str, list[str]]], None]] = {
    "files": lambda visit, _: files(visit),
    "convert": lambda visit, _: convert(visit),
    "model": lambda visit, _: model(visit),
    "train": examples,
}


def shoot(page: Page, name: str, what: str = "#ti_fix_root", upper: int | None = None) -> None:
    """Write what is seen there, or the upper so many pixels of it, in 256 colours: a third of the bytes."""
    page.mouse.move(0, 0)
    page.evaluate("document.querySelectorAll('.rows').forEach((each) => each.scrollTo(0, 0))")
    time.sleep(0.5)
    path = PICTURES / f"{name}.png"
    page.locator(what).locator("visible=true").first.screenshot(path=str(path))
    with Image.open(path) as image:
        shown = image.convert("RGB").crop((0, 0, image.width, min(upper or image.height, image.height)))
    shown.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    print(path)


if __name__ == "__main__":
    sys.exit(main())
