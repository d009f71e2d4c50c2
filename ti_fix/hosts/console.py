"""What the user reads in the console: one line per file and session, a summary per folder."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

log = logging.getLogger("ti_fix")

LEVELS = {"all": logging.INFO, "problems": logging.WARNING, "nothing": logging.CRITICAL}
WAYS = {
    "pass": "fine as they are",
    "register": "repaired",
    "halved": "used with one half",
    "complete": "converted when used",
    "skip": "not used",
    "refuse": "unusable",
}


class Console:
    """Says each thing once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def level(self, name: str) -> None:
        """``all``, ``problems`` or ``nothing``; what fails in ti_fix itself is always said."""
        log.setLevel(LEVELS.get(name, logging.INFO))

    def say(self, line: str, *, problem: bool = False) -> None:
        """One line, unless it was said before."""
        if line and line not in self._said:
            self._said.add(line)
            log.log(logging.WARNING if problem else logging.INFO, "%s", line)

    def summarise(self, family: str, ways: Iterable[str]) -> None:
        """How many files of a folder went which of the `WAYS`."""
        count = Counter(ways)
        parts = [f"{count[way]} {words}" for way, words in WAYS.items() if count[way]]
        if parts:
            self.say(f"Embeddings for {family}: {', '.join(parts)}. More on the tab TI Fix, Files.")


def open_console() -> None:
    """Let our lines be seen: the WebUIs set up logging only when asked to, and Python then shows warnings alone."""
    if log.handlers or logging.root.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("[TI Fix] %(message)s"))
    log.addHandler(handler)
    log.propagate = False
