"""An update of ti_fix in a running WebUI: its files change on disk, then "Apply and restart UI"."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from tests.hosts import sample_files as files
from tests.hosts.table import Table
from tests.hosts.webui_client import Client, Failed
from tests.hosts.webui_process import Installation, Webui

ROOT = Path(__file__).resolve().parent.parent.parent
PARTS = ("ti_fix", "scripts", "javascript", "localizations", "style.css", "metadata.ini", "install.py")

BROKEN = "a ckrenamed"
RESTART = "ti_fix was updated while a job runs"


def copied(to: Path) -> Path:
    """The extension's folder as a user has it."""
    to.mkdir(parents=True)
    for name in PARTS:
        part = ROOT / name
        (shutil.copytree if part.is_dir() else shutil.copy)(part, to / name)
    return to


def renumbered(extension: Path, version: str) -> None:
    """Another release on disk: the number that the API tells is in a module that is imported at the start."""
    place = extension / "ti_fix" / "__init__.py"
    lines = place.read_text(encoding="utf-8").splitlines()
    changed = [f'__version__ = "{version}"' if line.startswith("__version__") else line for line in lines]
    place.write_text("\n".join(changed) + "\n", encoding="utf-8")


@dataclass
class UpdateCheck:
    """One run over one installation.

    Attributes:
        what: the installation.
        data: the data folder, thrown away afterwards.
        checkpoint: file name of an SDXL checkpoint.
        table: is continued.
        versions: what the WebUI says of itself.
    """

    what: Installation
    data: Path
    checkpoint: str
    table: Table
    versions: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        """All of it, in one start."""
        extension = copied(self.data / "release")
        files.put(self.data / "embeddings", [s for s in files.samples() if s.trigger == "ckrenamed"])
        with Webui(self.what, self.data, self.checkpoint, extension) as webui:
            self.versions = webui.versions()
            before = webui.picture(BROKEN)
            webui.options(ti_fix_enabled=False)
            plain = webui.picture(BROKEN)
            webui.options(ti_fix_enabled=True)
            with self.table.row("an update is used after Reload UI, and its hooks are there once") as faults:
                renumbered(extension, "9.0.1")
                webui.reload_page()
                faults.unless(_version(webui) == "9.0.1", f"the old code runs: {_version(webui)}")
                faults.unless(webui.picture(BROKEN).equals(before), "a repaired file gives another picture")
                webui.options(ti_fix_enabled=False)
                faults.unless(webui.picture(BROKEN).equals(plain), "switched off, the old hooks still repair")
                webui.options(ti_fix_enabled=True)
            with self.table.row(
                "an update while a picture is made is used, or asked for in words and used by the next Reload UI"
            ) as faults:
                renumbered(extension, "9.0.2")
                with generating(webui):
                    webui.reload_page()  # which interrupts the picture in some WebUIs
                if RESTART in webui.log():
                    webui.reload_page()
                faults.unless(_version(webui) == "9.0.2", f"the old code runs: {_version(webui)}")
            with self.table.row("an update while a training runs: the console asks for a restart") as faults:
                renumbered(extension, "9.0.3")
                said = len(webui.log())
                with training(webui, self.data / "pictures"):
                    webui.reload_page()
                faults.unless(RESTART in webui.log()[said:], "it does not")
            with self.table.row("and the next Reload UI takes the update") as faults:
                webui.reload_page()
                faults.unless(_version(webui) == "9.0.3", f"the old code runs: {_version(webui)}")
                faults.unless(webui.picture(BROKEN).equals(before), "a repaired file gives another picture")
                faults.unless("ti_fix_webui.py" not in webui.log(), "an error in the console")


def _version(webui: Client) -> str:
    return str(webui.get("/ti_fix/v1/files")["version"])


@contextlib.contextmanager
def generating(webui: Client) -> Iterator[None]:
    """While open, a picture is made that takes long."""

    def generate() -> None:
        with contextlib.suppress(Failed):
            webui.picture("a cat", steps=150, width=512, height=512)

    thread = threading.Thread(target=generate)
    thread.start()
    try:
        _wait(webui, busy=True)
        yield
    finally:
        with contextlib.suppress(Failed):
            webui.post("/sdapi/v1/interrupt", {})
        thread.join()
        _wait(webui, busy=False)


@contextlib.contextmanager
def training(webui: Webui, folder: Path) -> Iterator[None]:
    """While open, a training runs; the reload ends it, or the end of this."""
    folder.mkdir()
    for number, colour in enumerate(("red", "green")):
        Image.new("RGB", (256, 256), colour).save(folder / f"{number}.png")
    about = {"name": "ckupdate", "folders": [str(folder)], "resolution": 256, "steps": 5000, "self_test": False}
    webui.post("/ti_fix/v1/train", about)
    try:
        for _ in range(100):
            if webui.get("/ti_fix/v1/train")["step"]:
                break
            time.sleep(0.5)
        yield
    finally:
        time.sleep(5)  # a step that it is in


def _wait(webui: Client, *, busy: bool) -> None:
    for _ in range(600):
        if bool(webui.get("/sdapi/v1/progress?skip_current_image=true")["state"]["job_count"]) == busy:
            return
        time.sleep(0.2)
    raise Failed(f"it is {'not busy' if busy else 'still busy'} after two minutes")
