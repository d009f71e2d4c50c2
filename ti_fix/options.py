"""A setting is written once: default, label, range and help stand on the dataclass field.

Forms, command-line arguments, API schema and the tables in the docs are generated from these fields.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ti_fix.errors import WrongUse

T = TypeVar("T")
_KEY = "ti_fix.option"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """What a form, a command line or a table needs to know about one setting.

    Attributes:
        label: short name shown to the user.
        help: one sentence, with the unit.
        minimum, maximum: inclusive bounds of a number.
        choices: the allowed values.
        expert: folded away in forms.
    """

    label: str
    help: str
    minimum: float | None = None
    maximum: float | None = None
    choices: Sequence[Any] | None = None
    expert: bool = False


def option(
    default: T,
    label: str,
    help: str,  # noqa: A002 - the word that argparse and gradio users know
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Sequence[T] | None = None,
    expert: bool = False,
) -> T:
    """A dataclass field with everything that is to be said about the setting.

    Typed as its default, so that ``steps: int = option(500, …)`` reads and checks like a plain default.
    """
    about = Option(label=label, help=help, minimum=minimum, maximum=maximum, choices=choices, expert=expert)
    return dataclasses.field(default=default, metadata={_KEY: about})


def options(config: Any) -> Iterator[tuple[dataclasses.Field[Any], Option]]:
    """The settings of a config class or instance in the order in which they are written."""
    for each in dataclasses.fields(config):
        if _KEY in each.metadata:
            yield each, each.metadata[_KEY]


def validate(config: Any) -> None:
    """Check every setting against its range and choices.

    Raises:
        WrongUse: names the first setting that is out of bounds and says what is allowed.
    """
    for each, about in options(config):
        value = getattr(config, each.name)
        if about.choices is not None and value not in about.choices:
            allowed = ", ".join(map(str, about.choices))
            raise WrongUse(f"{about.label} ({each.name}) is {value!r}; choose one of: {allowed}.")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        low, high = about.minimum, about.maximum
        if math.isnan(value) or (low is not None and value < low) or (high is not None and value > high):
            raise WrongUse(f"{about.label} ({each.name}) is {value}; give a number from {low} to {high}.")
