"""The route ``POST /ti_fix/v1/extract``."""

from __future__ import annotations

from typing import Any

from ti_fix.repair import carries
from ti_fix.ui.api import Refused, Values, confined_entries, wanted
from ti_fix.ui.desk import Desk


def extract_files(desk: Desk, values: Values) -> dict[str, Any]:
    """Take embeddings out of files that carry them, by ``id``, ``path`` or a list of ``ids``; the files stay.

    What is taken out lies in the first embeddings folder and can be used in the next prompt.
    """
    confined, _ = confined_entries(desk)
    entries = wanted(confined, values)
    others = [entry.where[0] for entry in entries if not carries(entry.judged)]
    if others:
        raise Refused(400, "nothing-inside", f"{others[0]} carries no embeddings; leave it out.")
    root = desk.output_folder
    with desk.writing():
        written = [path for entry in entries for path in desk.extract(entry.where[0], entry.paths[0])]
    desk.library.refreshed()
    desk.host.refresh_embeddings()
    return {"written": [path.relative_to(root).as_posix() for path in written]}
