"""Arguments made from the fields of a settings class."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from typing import Any, get_args, get_type_hints

from ti_fix.options import options


def count(text: str) -> int:
    """The value of an argument that is a whole number from 1 on; for `argparse`."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is too few; give 1 or more")
    return number


def add_settings(group: Any, kind: type, by_model: Collection[str] = ()) -> None:
    """An argument for each setting; what is not given is absent.

    Args:
        group: a parser or a group of one.
        kind: the class with `option` fields.
        by_model: settings that the command takes from the model where they are not given.
    """
    types = get_type_hints(kind)
    for field, about in options(kind):
        default = " ".join(map(str, field.default)) if isinstance(field.default, tuple) else field.default
        default = "what the model is made for" if field.name in by_model else default
        shown = f"{about.help} (default: {default})" if default != "" else about.help
        how: dict[str, Any] = {"default": argparse.SUPPRESS, "help": shown.replace("%", "%%"), "dest": field.name}
        hint = types[field.name]
        if hint is bool:
            how["action"] = argparse.BooleanOptionalAction
        elif get_args(hint):
            how.update(type=get_args(hint)[0], nargs="+", metavar=field.name.upper())
        else:
            how.update(type=hint, choices=about.choices)
            how |= {} if about.choices else {"metavar": field.name.upper()}
        group.add_argument(f"--{field.name.replace('_', '-')}", **how)


def given(arguments: argparse.Namespace, kind: type) -> dict[str, Any]:
    """The settings that were given; lists as tuples."""
    found = {field.name: getattr(arguments, field.name) for field, _ in options(kind) if field.name in arguments}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
