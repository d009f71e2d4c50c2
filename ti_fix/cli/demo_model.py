"""``ti-fix demo-model``: a small real model in the sizes and layouts that WebUIs load, to try things without a GPU."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ti_fix.cli.output import show
from ti_fix.errors import WrongUse

LAYOUTS = ("a1111", "forge", "diffusers")

_EXAMPLE = """examples:
  ti-fix demo-model --layout a1111 --out models/Stable-diffusion/ti-fix-small.safetensors
  ti-fix demo-model --layout diffusers --out small_sdxl/"""


def register(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "demo-model",
        help="write the small model that ships with the project as a checkpoint",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--layout", choices=LAYOUTS, required=True, help="who is to load it")
    parser.add_argument("--out", required=True, metavar="F", help="a .safetensors file; for diffusers a folder")
    parser.add_argument("--model", default="sdxl", metavar="NAME", help="which small model (sdxl)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Expand and write."""
    from ti_fix.small import load  # torch models: seconds that the other commands need not wait for
    from ti_fix.small.write_checkpoint import write_demo_model

    try:
        model = load(arguments.model)
    except (KeyError, FileNotFoundError) as error:
        raise WrongUse(f"the project ships no small model {arguments.model!r} ({error}).") from None
    for path in write_demo_model(model, arguments.layout, Path(arguments.out)):
        show(f"written: {path}")
    return 0
