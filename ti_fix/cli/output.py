"""What the commands share: paths that must exist, JSON and lines on standard output. It imports no PyTorch."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ti_fix.errors import WrongUse, printable

_MAX_LINE = 20_000
"""Characters of a printed line: the paths of a pair may be long, and are wanted whole."""


def existing(names: Sequence[str]) -> list[Path]:
    """The paths, all of which must exist.

    Raises:
        WrongUse: names the first that does not.
    """
    paths = [Path(name) for name in names]
    for name, path in zip(names, paths, strict=True):
        if not path.exists():
            if name.startswith("small:"):
                raise WrongUse(
                    f"this command reads models from disk, {name} is none; write it there first: ti-fix demo-model "
                    f"--model {name.removeprefix('small:')} --layout a1111 --out small.safetensors"
                )
            raise WrongUse(f"there is no file or folder {str(path)!r}; check the spelling.")
    return paths


def print_json(objects: Iterable[dict[str, Any]]) -> None:
    """A JSON list on standard output."""
    print_object(list(objects))


def print_object(content: Any) -> None:
    """JSON on standard output; names that no encoding can show are escaped."""
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = json.dumps(json.loads(text), indent=1)
    sys.stdout.write(text + "\n")


def show(line: str) -> None:
    """Print a line; what the terminal cannot show, and what would command it, is escaped."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    line = printable(line, _MAX_LINE)
    print(line.encode(encoding, "backslashreplace").decode(encoding))
