"""Write the table of training settings into docs/train.md: ``python docs/write_settings.py``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ti_fix.options import options
from ti_fix.train import TrainConfig

PAGE = Path(__file__).parent / "train.md"
START, END = "<!-- settings: docs/write_settings.py -->", "<!-- end of settings -->"


def table() -> str:
    """One row a setting: argument, default, allowed values, help."""
    rows = ["| argument | default | values | what it does |", "|---|---|---|---|"]
    for field, about in options(TrainConfig):
        default = " ".join(map(str, field.default)) if isinstance(field.default, tuple) else str(field.default)
        if about.choices:
            values = ", ".join(map(str, about.choices))
        elif about.minimum is not None and about.maximum is not None:
            values = f"{about.minimum:g} to {about.maximum:g}"
        else:
            values = ""
        name = f"`--{field.name.replace('_', '-')}`"
        rows.append(f"| {name} | {f'`{default}`' if default else ''} | {values} | {about.help.replace('|', '/')} |")
    return "\n".join(rows)


def page() -> str:
    """The page with the table as it should be."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(START)
    return f"{before}{START}\n{table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
