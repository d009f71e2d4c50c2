"""What a check of a WebUI came to, as Markdown."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from tests.hosts.host_cases import Row, markdown
from ti_fix import __version__

UNKNOWN = "an unnamed WebUI"
CASES = """Each case is a public report (tests/data/README.md) in a sub-folder of the embeddings folder; the picture of
"photo of NAME" is compared with that of the same words without the files, in mean grey levels."""


@dataclass(frozen=True)
class Report:
    """The outcome of one run.

    Attributes:
        checks: (what, whether it is right, note).
        rows: the table of cases.
        versions: what the WebUI says of itself.
        identical: how many control pictures were the same with ti_fix on and off, and how many there were.
    """

    checks: list[tuple[str, bool, str]]
    rows: list[Row]
    versions: dict[str, str]
    identical: tuple[int, ...] = ()

    @property
    def wrong(self) -> list[tuple[str, bool, str]]:
        """The checks that failed."""
        return [each for each in self.checks if not each[1]]

    @property
    def summary(self) -> str:
        """One row: what was checked, when, and the counts."""
        cases = {row.name.case for row in self.rows}
        right = cases - {row.name.case for row in self.rows if row.faults}
        told = self.versions
        about = f"{told.get('repository', UNKNOWN)} {told.get('version', '')}".strip()
        parts = ", ".join(f"{key} {told[key]}" for key in ("gradio", "torch", "python") if key in told)
        same = f"{self.identical[0]} of {self.identical[1]}" if self.identical else "–"
        day = dt.datetime.now(tz=dt.timezone.utc).date().isoformat()
        passed = f"{len(self.checks) - len(self.wrong)} of {len(self.checks)}"
        return f"| {about} | {parts} | {day} | {len(right)} of {len(cases)} | {same} | {passed} |"

    def markdown(self) -> str:
        """The whole."""
        wrong = "\n".join(f"- {what}: {note}" for what, _, note in self.wrong) or "None."
        others = "\n".join(map(_line, self._others()))
        cases = f"## Cases\n\n{CASES}\n\n{markdown(self.rows)}\n\n" if self.rows else ""
        return f"""# A WebUI checked with ti_fix {__version__}

Written by `python3 run.py check-host`.

| WebUI | with | day | cases as expected | pictures the same with ti_fix on and off | checks passed |
| --- | --- | --- | --- | --- | --- |
{self.summary}

## Not as expected

{wrong}

{cases}## All other checks

{others}
"""

    def _others(self) -> list[tuple[str, bool, str]]:
        titles = {row.title for row in self.rows}
        return [each for each in self.checks if each[0] not in titles]


def _line(check: tuple[str, bool, str]) -> str:
    what, right, note = check
    return f"- {'ok' if right else 'FAIL'}: {what}{f' ({note})' if right and note else ''}"
