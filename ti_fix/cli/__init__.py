"""The command line: one file per command, each with `register` (its arguments) and a function that runs it.

With ``--json`` standard output holds JSON only; everything said to a person goes to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from ti_fix import __version__
from ti_fix.errors import TiFixError

COMMANDS = (
    "inspect", "repair", "convert", "train", "evaluate", "heatmap", "align", "tokens", "demo", "demo-model", "ui"
)  # fmt: skip
"""Each is a module of this folder; only the one that is called is imported, as PyTorch takes seconds."""

_QUIET = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "DIFFUSERS_VERBOSITY": "error", "TRANSFORMERS_VERBOSITY": "error"}
"""The libraries' own bars and advice would stand between ours; set before they are imported, the user's value wins."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line: the usage of `train` alone fills a screen."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments without the program's name; those of the process by default.

    Returns:
        0 when it could do all that was asked, 2 for wrong use, 1 for what a command's own help says.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        asked = list(sys.argv[1:] if argv is None else argv)
        arguments = _parser(asked[:1]).parse_args(asked)
        return int(arguments.run(arguments))
    except SystemExit as stop:  # argparse has said what was wrong, or printed help
        return int(stop.code or 0)
    except TiFixError as error:
        print(f"ti-fix: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of a pipe has gone; what it did not read is not missed
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("ti-fix: stopped.", file=sys.stderr)
        return 130
    except Exception:
        logging.getLogger("ti_fix").exception("ti-fix failed; please report this with the lines below")
        return 1


def _parser(called: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser of one command; of all of them where none is called."""
    parser = _Parser(prog="ti-fix", description="Textual Inversion embeddings for SDXL and SD1.5.")
    parser.add_argument("--version", action="version", version=f"ti-fix {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in called if set(called) <= set(COMMANDS) and called else COMMANDS:
        import_module(f"ti_fix.cli.{name.replace('-', '_')}").register(commands)
    return parser
