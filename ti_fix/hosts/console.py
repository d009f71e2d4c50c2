"""What the user reads in the console: one line per file and session, a summary per folder."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

log = logging.getLogger("ti_fix")

LEVELS = {"all": logging.INFO, "problems": logging.WARNING, "nothing": logging.CRITICAL}
ACTIONS = {
    "pass": "left to the WebUI",
    "register": "repaired",
    "complete": "completed at first use",
    "skip": "for other models",
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

    def summarise(self, family: str, actions: Iterable[str]) -> None:
        """How many files of a folder went which way."""
        count = Counter(actions)
        parts = [f"{count[action]} {words}" for action, words in ACTIONS.items() if count[action]]
        if parts:
            self.say(f"Embeddings for {family}: {', '.join(parts)}.")


def open_console() -> None:
    """Let our lines be seen: the WebUIs set up logging only when asked to, and Python then shows warnings alone."""
    if log.handlers or logging.root.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("[TI Fix] %(message)s"))
    log.addHandler(handler)
    log.propagate = False
