"""What the Files page costs with 2,000 files: reading the folder for the first time, and each search after that.

The figure is the slowest of many searches (filter, table, details and buttons as HTML), in processor time, as the page
must answer while pictures are made. Printed beside it: the first reading and a refresh without changes.

    .venv/bin/python benchmarks/files_page.py [--quick] [--json]
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from harness import Figure, arguments, close
from load import mixed
from ti_fix.embedding import SDXL, Family
from ti_fix.ui.desk import Desk
from ti_fix.ui.files_handlers import commanded, searched
from ti_fix.ui.files_table import View

FILES = 2000
GOAL = 300.0
"""Milliseconds."""

FIRST_READING_GOAL = 3.0
"""Seconds."""

SEARCHES = ("", "style", "other0001", "sd1.5", "style00 x", "nothing at all")


class Folder:
    """A host with one folder."""

    name = "benchmark"
    lora_folders = ()

    def __init__(self, folder: Path) -> None:
        self.embedding_folders = [folder]

    def family(self) -> Family:
        return SDXL

    def used_in_last_image(self) -> frozenset[str]:
        return frozenset({"style00002x"})


def seconds(work: Callable[[], object]) -> float:
    """Processor time of a call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    flags = arguments(__doc__ or "")
    with tempfile.TemporaryDirectory() as name:
        mixed(Path(name), FILES)
        desk = Desk(Folder(Path(name)))
        first = seconds(desk.library.refreshed)
        again = seconds(desk.library.refreshed)
        repetitions = 3 if flags.quick else 20
        times = [seconds(partial(searched, desk, View(), text)) for text in SEARCHES for _ in range(repetitions)]
        ids = [entry.id for entry in desk.library.entries[:: FILES // 20]]
        times += [seconds(partial(commanded, desk, View(), f"open:{each}", "")) for each in ids]
    print(
        f"first reading of {FILES:,} files: {first:.2f} s (goal at most {FIRST_READING_GOAL}); unchanged: {again:.3f} s"
    )
    figure = Figure(name="files_page", figure=1000 * max(times), unit="ms", better="lower", goal=GOAL, n=len(times))
    close(figure, flags)


if __name__ == "__main__":
    main()
