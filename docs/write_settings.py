"""Write the tables of settings into the pages that have one: ``python docs/write_settings.py``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ti_fix.options import options
from ti_fix.repair.on_load import Policy
from ti_fix.train import TrainConfig

DOCS = Path(__file__).parent
START, END = "<!-- settings: docs/write_settings.py -->", "<!-- end of settings -->"

TABLES: dict[str, tuple[type, bool]] = {"train.md": (TrainConfig, True), "files-page.md": (Policy, False)}
"""Page -> whose settings it lists, and whether by their arguments (or else by their labels)."""


def table(config: type, *, by_argument: bool) -> str:
    """One row a setting: name, default, allowed values, help."""
    rows = [f"| {'argument' if by_argument else 'setting'} | default | values | what it does |", "|---|---|---|---|"]
    for field, about in options(config):
        default = " ".join(map(str, field.default)) if isinstance(field.default, tuple) else str(field.default)
        if about.choices:
            values = ", ".join(map(str, about.choices))
        elif about.minimum is not None and about.maximum is not None:
            values = f"{about.minimum:g} to {about.maximum:g}"
        else:
            values = ""
        name = f"`--{field.name.replace('_', '-')}`" if by_argument else about.label
        rows.append(f"| {name} | {f'`{default}`' if default else ''} | {values} | {about.help.replace('|', '/')} |")
    return "\n".join(rows)


def page(name: str) -> str:
    """A page with its table as it should be."""
    config, by_argument = TABLES[name]
    before, rest = (DOCS / name).read_text(encoding="utf-8").split(START)
    return f"{before}{START}\n{table(config, by_argument=by_argument)}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    for each in TABLES:
        (DOCS / each).write_text(page(each), encoding="utf-8")
        print(DOCS / each)
