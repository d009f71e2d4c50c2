"""Write the tables of settings into the pages that have one: ``python docs/write_settings.py``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ti_fix.convert import ConvertConfig
from ti_fix.evaluate import EvalConfig
from ti_fix.heatmap import MapSettings
from ti_fix.options import options
from ti_fix.repair.on_load import Policy
from ti_fix.train import TrainConfig

DOCS = Path(__file__).parent
START, END = "<!-- settings: docs/write_settings.py -->", "<!-- end of settings -->"

BY_ARGUMENT, BY_LABEL = True, False

TABLES: dict[str, tuple[tuple[type, bool], ...]] = {
    "train.md": ((TrainConfig, BY_ARGUMENT),),
    "convert.md": ((ConvertConfig, BY_ARGUMENT),),
    "evaluate.md": ((EvalConfig, BY_ARGUMENT), (MapSettings, BY_ARGUMENT)),
    "files-page.md": ((Policy, BY_LABEL),),
}
"""Page -> whose settings its tables list, in their order, and whether by their arguments or by their labels."""


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
    """A page with its tables as they should be."""
    first, *rest = (DOCS / name).read_text(encoding="utf-8").split(START)
    for (config, by_argument), each in zip(TABLES[name], rest, strict=True):
        first += f"{START}\n{table(config, by_argument=by_argument)}\n{END}{each.split(END)[1]}"
    return first


if __name__ == "__main__":
    for each in TABLES:
        (DOCS / each).write_text(page(each), encoding="utf-8")
        print(DOCS / each)
