"""What was checked in a WebUI, row by row."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.hosts.webui_client import Failed


class Faults(list[str]):
    """What is wrong with one thing that is checked.

    Attributes:
        told: a figure that is worth telling when nothing is wrong.
    """

    told = ""

    def unless(self, right: bool, fault: str) -> None:
        """Note a fault, unless all is right."""
        if not right:
            self.append(fault)


@dataclass
class Table:
    """What was checked: (what, whether it is right, note)."""

    rows: list[tuple[str, bool, str]] = field(default_factory=list)

    def add(self, what: str, right: bool, note: str = "") -> None:
        """One more row, shown at once."""
        self.rows.append((what, right, note))
        print(f"{'ok  ' if right else 'FAIL'} {what}{'  | ' + note if note else ''}", flush=True)  # noqa: T201

    @contextlib.contextmanager
    def row(self, what: str) -> Iterator[Faults]:
        """A row that fails with the faults that are noted, or with the WebUI's error."""
        faults = Faults()
        try:
            yield faults
        except Failed as error:
            faults.append(str(error)[:300])
        self.add(what, not faults, "; ".join(faults) or faults.told)
