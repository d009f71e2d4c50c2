"""Names that a package imports when they are asked for (PEP 562).

The WebUI waits for all that the extension imports at its start, and no page needs what trains, evaluates or converts
before a button is pressed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def on_demand(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's ``__getattr__``.

    Args:
        package: its ``__name__``.
        modules: each of its modules with the names that the package has of it, spaces between.
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return find
