"""The cases in a WebUI that runs already: written into a sub-folder of its embeddings folder, removed afterwards."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.hosts import host_cases
from tests.hosts.case_checks import controls, unequal
from tests.hosts.checks import Table
from tests.hosts.host_cases import Row, names, tried
from tests.hosts.webui_client import Client, Failed

FOLDER = "ti_fix_check"


@contextmanager
def files_in(webui: Client, embeddings: Path) -> Iterator[None]:
    """The cases are in the WebUI's folder, and gone afterwards in any case."""
    where = embeddings / FOLDER
    where.mkdir()
    try:
        host_cases.put(where)
        _read_again(webui)
        yield
    finally:
        shutil.rmtree(where)
        with suppress(Failed):
            _read_again(webui)


def _read_again(webui: Client) -> None:
    webui.post("/sdapi/v1/refresh-embeddings", {})
    time.sleep(1)  # ti_fix looks at a folder at most every few hundredths of a second


def check_running(webui: Client, embeddings: Path, table: Table) -> list[Row]:
    """Every case in the running WebUI, as it is configured, with the checkpoint that it has loaded."""
    ours = webui.has_ti_fix()
    table.add("the WebUI answers", True, "with ti_fix" if ours else "without ti_fix: the table says what it does alone")
    without, before = host_cases.plain(webui), controls(webui, lora=False, hires=True)
    rows = []
    with files_in(webui, embeddings):
        listed = webui.loaded()
        for name in names():
            row = Row(name, name.text in listed, tried(webui, without, name.prompt))
            rows.append(row)
            with table.row(f"{name.case} {name.text}: {'usable' if name.usable else 'left out'}") as faults:
                faults.extend(row.faults)
        with table.row("prompts without a name of the folder are pixel-identical with and without the files") as faults:
            faults.extend(unequal(before, controls(webui, lora=False, hires=True)))
        if ours:
            _switched(webui, table)
    with table.row("afterwards all names are plain text again") as faults:
        faults.extend(n.text for n in names()[:5] if not webui.picture(n.prompt).equals(without[n.prompt]))
    return rows


def _switched(webui: Client, table: Table) -> None:
    """With ti_fix on and off, if it is on; the setting is given back."""
    if not webui.get("/sdapi/v1/options").get("ti_fix_enabled", True):
        table.add("prompts with ti_fix on and off", False, "it is switched off in the settings")
        return
    with table.row("prompts without a name of the folder are pixel-identical with ti_fix on and off") as faults:
        on = controls(webui, lora=False, hires=True)
        try:
            webui.options(ti_fix_enabled=False)
            faults.extend(unequal(on, controls(webui, lora=False, hires=True)))
        finally:
            webui.options(ti_fix_enabled=True)
