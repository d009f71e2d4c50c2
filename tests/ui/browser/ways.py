"""What is done on each page: its main way, and its main failure."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tests.ui.browser.visit import PATIENCE, Visit

CAPTION = "a red figure on a table"


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
    visit.fill("files_search", "")
    visit.press('#ti_fix_files_table button.name:has-text("swapped-xq")')
    visit.expect("#ti_fix_files_side", "Swapped the halves")
    visit.themes("files")


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
    page.locator("#ti_fix_announced", has_text="%").wait_for(state="attached")  # what screen readers are told
    visit.again("Train")
    visit.expect("#ti_fix_train_live", "Validation loss")
    if page.locator("#ti_fix_train_name input, #ti_fix_train_name textarea").first.input_value() != "redfig-xq":
        visit.fault("after a reload the form does not show the run")
    if page.locator("#ti_fix_train_album textarea").nth(1).input_value() != CAPTION:
        visit.fault("a caption that was typed is not there after a reload")
    if visit.pressed("#ti_fix_train_pause"):
        status = page.locator("#ti_fix_train_status")
        paused, over = (page.locator("#ti_fix_train_status", has_text=said) for said in ("at step", "after"))
        paused.or_(over).first.wait_for(timeout=PATIENCE)
        if "at step" in status.inner_text():  # the button comes a moment after the words
            page.locator("#ti_fix_train_resume").wait_for(timeout=PATIENCE)
            visit.look("train-paused")
            visit.press("#ti_fix_train_resume")
    visit.expect("#ti_fix_train_status", "Finished after 12 steps")
    visit.press("#ti_fix_train_history_fold > button, #ti_fix_train_history_fold > .label-wrap")
    visit.expect("#ti_fix_train_history", "redfig-xq")
    visit.themes("train-done")


def convert(visit: Visit) -> None:
    """Nothing chosen; then a look, found again after a reload, and a file that is written."""
    visit.tab("Convert")
    visit.expect("#ti_fix_convert_cards", "press Look first")
    visit.press("#ti_fix_convert_look")
    visit.expect("#ti_fix_convert_status", "Choose one or more embeddings")
    visit.look("convert-nothing")
    visit.choose("convert_files", "old-xq")
    visit.press("#ti_fix_convert_look")
    visit.expect("#ti_fix_convert_cards", "not written yet")
    visit.again("Convert")
    visit.expect("#ti_fix_convert_cards", "not written yet")
    visit.choose("convert_files", "old-xq")
    visit.press("#ti_fix_convert_write")
    visit.expect("#ti_fix_convert_cards", "Written to")
    visit.themes("convert")


def evaluate(visit: Visit, judge: str = "") -> None:
    """Nothing chosen; then an evaluation that is left and found again, up to its report."""
    page = visit.page
    visit.tab("Evaluate")
    page.locator("#ti_fix_evaluate_start").locator("visible=true").first.wait_for(timeout=PATIENCE)
    visit.press("#ti_fix_evaluate_start")
    visit.expect("#ti_fix_evaluate_status", "Choose an embedding first")
    visit.look("evaluate-nothing")
    visit.choose("evaluate_entry", "ready-xq")
    visit.fill("evaluate_prompts", "a [name]")
    for name, value in {"class_word": "cat", "seeds": 3, "steps": 4, "width": 64, "height": 64}.items():
        visit.fill(f"evaluate_{name}", str(value))
    if judge:
        visit.press("#ti_fix_evaluate_page .ti_fix_fold > .label-wrap:has-text('Judge')")
        visit.fill("evaluate_judge", judge)
    visit.press("#ti_fix_evaluate_start")
    visit.expect("#ti_fix_evaluate_status", "Evaluating ready-xq")
    visit.again("Evaluate")
    page.locator("#ti_fix_evaluate_result .report h2").first.wait_for(timeout=PATIENCE)
    page.locator("#ti_fix_evaluate_start:enabled, #ti_fix_evaluate_start button:enabled").first.wait_for()
    visit.themes("evaluate")


def model(visit: Visit) -> None:
    """The model's lamp, a prompt that is too long, one that is taken apart, and the thorough look."""
    visit.tab("Model")
    visit.expect("#ti_fix_model_report h3", "")
    visit.fill("model_prompt", "long " * 5000)
    visit.press("#ti_fix_model_apart")
    visit.expect("#ti_fix_model_tokens", "are taken apart here")
    visit.look("model-too-long")
    visit.fill("model_prompt", "a photo of ready-xq, (red figure:1.2) BREAK on a table")
    visit.press("#ti_fix_model_apart")
    visit.expect("#ti_fix_model_tokens", "figure")
    if not visit.page.locator("#ti_fix_model_tokens .token.vector").count():
        visit.fault("the embedding of the prompt is not shown among its tokens")
    visit.press("#ti_fix_model_check")
    visit.expect("#ti_fix_model_ways th", "Fidelity")
    visit.again("Model")
    visit.expect("#ti_fix_model_ways th", "Fidelity")
    visit.themes("model")


def sends(visit: Visit) -> None:
    """From a file of the list to the page that converts it, and to the one that evaluates it."""
    for trigger, button, page, field in (
        ("old-xq", "Convert it", "Convert", "convert_files"),
        ("ready-xq", "Evaluate it", "Evaluate", "evaluate_entry"),
    ):
        visit.tab("Files")
        visit.fill("files_search", trigger)
        visit.press(f'#ti_fix_files_table button.name:has(bdi:text-is("{trigger}"))')
        visit.page.locator(f'#ti_fix_files_head h3 bdi:text-is("{trigger}")').wait_for(timeout=PATIENCE)
        visit.press(f'#ti_fix_files_head button:has-text("{button}")')
        visit.holds(field, trigger)
        visit.look(f"sent-to-{page.lower()}")


GALLERY = """(picture) => document.body.insertAdjacentHTML("afterbegin",
  `<div id="stand_in"><div id="txt2img_gallery"><img alt="" width="64" src="${picture}"></div>
  <div id="image_buttons_txt2img"></div></div>`)"""
"""What of txt2img our script looks for, where no WebUI is."""


def pictures_sent(visit: Visit) -> None:
    """A picture with an infotext, in a stand-in for the WebUI's gallery, to Train and Evaluate."""
    page, packed, about = visit.page, io.BytesIO(), PngInfo()
    about.add_text("parameters", "a ready-xq on a table\nNegative prompt: dull\nSteps: 7, CFG scale: 6, Size: 64x64")
    Image.new("RGB", (64, 64), "#456").save(packed, "PNG", pnginfo=about)
    page.evaluate(GALLERY, f"data:image/png;base64,{base64.b64encode(packed.getvalue()).decode()}")
    visit.press('#ti_fix_send_txt2img button:has-text("Train on it")')
    page.locator("#ti_fix_train_album li").first.wait_for(timeout=PATIENCE)
    visit.press('#ti_fix_send_txt2img button:has-text("Evaluate against it")')
    visit.expect("#ti_fix_evaluate_status", "Pictures to compare with")
    visit.press('#ti_fix_send_txt2img button:has-text("Evaluate its embedding")')
    visit.expect("#ti_fix_evaluate_status", "Prompt and settings are those of the picture")
    visit.holds("evaluate_entry", "ready-xq")
    visit.holds("evaluate_prompts", "a [name] on a table")
    visit.holds("evaluate_steps", "7")
    visit.look("sent-settings")
    page.evaluate("document.getElementById('stand_in').remove()")


def sends_of_webui(visit: Visit, picture: Path) -> None:
    """A picture of txt2img to Train and Evaluate; another one's prompt and settings by way of PNG Info."""
    page = visit.page
    visit.host_tab("txt2img")
    page.locator("#txt2img_prompt textarea").first.fill("a ready-xq")
    for name, value in {"steps": 2, "width": 64, "height": 64}.items():
        page.locator(f"#txt2img_{name} input[type=number]").first.fill(str(value))
        page.locator(f"#txt2img_{name} input[type=number]").first.blur()
    visit.press("#txt2img_generate")
    page.locator("#txt2img_gallery img").first.wait_for(timeout=PATIENCE)
    visit.press('#ti_fix_send_txt2img button:has-text("Train on it")')
    page.locator("#ti_fix_train_album li").first.wait_for(timeout=PATIENCE)
    visit.look("sent-to-train")
    visit.host_tab("txt2img")
    visit.press('#ti_fix_send_txt2img button:has-text("Evaluate against it")')
    visit.expect("#ti_fix_evaluate_status", "Pictures to compare with")
    visit.look("sent-references")
    visit.host_tab("PNG Info")
    page.locator("#pnginfo_image input[type=file]").first.set_input_files(str(picture))
    visit.press('#ti_fix_send_pnginfo button:has-text("Evaluate its embedding")')
    visit.expect("#ti_fix_evaluate_status", "Prompt and settings are those of the picture")
    visit.holds("evaluate_entry", "ready-xq")
    visit.holds("evaluate_prompts", "a [name] on a table")
    visit.holds("evaluate_steps", "7")
    visit.look("sent-settings")


MAIN = {
    "Files": ("search", "refresh"),
    "Train": ("what", "kind", "start", "check"),
    "Convert": ("files", "method", "look", "write"),
    "Evaluate": ("entry", "prompts", "start"),
    "Model": ("check", "prompt", "apart"),
}
"""What must be reached by the keyboard, on each page."""

FOCUSED = """() => {
  const at = document.activeElement, seen = [];
  for (let e = at, n = 0; e && n < 4; e = e.parentElement, n++) {
    const style = getComputedStyle(e);
    seen.push(style.outlineStyle !== "none" && style.outlineWidth !== "0px", style.boxShadow !== "none");
  }
  return [at.closest('[id^="ti_fix_"]')?.id || "", seen.some(Boolean), at.id || at.innerText || at.tagName];
}"""
"""Where the keyboard is, whether one can see it, and what it is called."""

REDRAWN = """async () => {
  document.querySelector('[data-ti-fix="show:all"]').focus();
  const chips = document.querySelector("#ti_fix_files_chips .chips").parentElement;
  chips.innerHTML = chips.innerHTML;
  await new Promise((go) => setTimeout(go, 500));
  return document.activeElement.dataset.tiFix || "";
}"""
"""Draws the buttons above the list anew, as a refresh does, while the keyboard is on one of them; where it is then."""


def keyboard(visit: Visit) -> None:
    """The Tab key reaches what is to be done on each page, and shows where it is."""
    visit.did.append("keyboard")
    visit.tab("Convert")
    if "old-xq" not in visit.page.locator("#ti_fix_convert_files").first.inner_text():
        visit.choose("convert_files", "old-xq")  # what is chosen lies on the keyboard's way
    for word, wanted in MAIN.items():
        visit.tab(word)
        visit.page.wait_for_timeout(1000)
        visit.page.evaluate(f"document.querySelector('#ti_fix_{word.lower()}_page').setAttribute('tabindex', '-1')")
        visit.page.evaluate(f"document.querySelector('#ti_fix_{word.lower()}_page').focus()")
        reached = set()
        for _ in range(50):
            visit.page.keyboard.press("Tab")
            place, shown, called = visit.page.evaluate(FOCUSED)
            if f"ti_fix_{word.lower()}_" not in place:
                break
            reached.add(place)
            if not shown:
                visit.fault(f"{word}: one cannot see that the keyboard is at {called[:40]!r}")
        for name in wanted:
            if f"ti_fix_{word.lower()}_{name}" not in reached:
                visit.fault(f"{word}: the Tab key does not reach {name}")
    visit.tab("Files")
    if visit.page.evaluate(REDRAWN) != "show:all":
        visit.fault("Files: the keyboard loses its place when what it is on is drawn anew")


WAYS: dict[str, Callable[[Visit, Path], None]] = {
    "files": lambda visit, _: files(visit),
    "train": train,
    "convert": lambda visit, _: convert(visit),
    "evaluate": lambda visit, _: evaluate(visit),
    "model": lambda visit, _: model(visit),
    "sends": lambda visit, _: sends(visit),
    "pictures-sent": lambda visit, _: pictures_sent(visit),
    "keyboard": lambda visit, _: keyboard(visit),
}
"""What a visit is made of; none needs another before it."""
