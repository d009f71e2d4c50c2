"""The cases in a WebUI that runs already: written into a sub-folder of its embeddings folder, removed afterwards."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.hosts.case_checks import CaseCheck, read_again
from tests.hosts.host_cases import Name
from tests.hosts.table import Table
from tests.hosts.webui_client import Client, Failed

FOLDER = "ti_fix_check"


def check_running(webui: Client, embeddings: Path, names: Sequence[Name], table: Table) -> CaseCheck:
    """Every case in the running WebUI, as it is configured, with the checkpoint that it has loaded."""
    where = embeddings / FOLDER
    where.mkdir()
    check = CaseCheck(webui, where, names, table)
    try:
        check.run()
    finally:
        shutil.rmtree(where)
        with suppress(Failed):
            read_again(webui)
    with table.row("afterwards the names are plain text again") as faults:
        still = webui.loaded()
        faults.extend(name.text for name in names if name.text in still)
    return check
