"""Forms made from option dataclasses: one field a setting, with its label, help, range and choices.

A form and a config are two writings of the same values; `Form.config` and `Form.values` go from one to the other.
Drawing is `ti_fix.ui.form_view`'s, so that nothing here knows Gradio.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar, get_args, get_type_hints

from ti_fix.errors import WrongUse
from ti_fix.options import Option, options, validate

T = TypeVar("T")

Kind = Literal["text", "switch", "whole", "number", "choice", "list"]

SLIDER_UP_TO = 300
"""Largest span of whole numbers that a slider is good for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One setting of a form.

    Attributes:
        name: of the dataclass field.
        kind: which control it gets; a ``list`` is written as text with commas between.
        of: the Python type of the value, for a list that of its items.
        default: as the config has it.
        about: label, help, range.
    """

    name: str
    kind: Kind
    of: type
    default: Any
    about: Option

    @property
    def slider(self) -> bool:
        """Whether both ends of its range are near enough for a slider."""
        low, high = self.about.minimum, self.about.maximum
        if low is None or high is None or self.kind not in ("whole", "number"):
            return False
        return high - low <= (SLIDER_UP_TO if self.kind == "whole" else 1)

    def shown(self, value: Any) -> Any:
        """A value of the config as its control shows it."""
        return ", ".join(map(_plain, value)) if self.kind == "list" else value

    def read(self, value: Any) -> Any:
        """What a control holds as a value of the config.

        Raises:
            WrongUse: it is no such value; names the setting and what to enter.
        """
        if self.kind == "list":
            return tuple(self._one(part) for part in re.split(r"[,\n]", value or "") if part.strip())
        return self._one(value)

    def _one(self, value: Any) -> Any:
        if self.of is bool:
            return bool(value)
        if self.of is str:
            return str(value if value is not None else "").strip()
        number = _number(value)
        if number is None or (self.of is int and not number.is_integer()):
            kind = "a whole number" if self.of is int else "a number"
            given = "is empty" if value in (None, "") else f"is {str(value).strip()!r}"
            raise WrongUse(f"{self.about.label} ({self.name}) {given}; enter {kind}{self._range()}.")
        return self.of(number)

    def _range(self) -> str:
        low, high = self.about.minimum, self.about.maximum
        return "" if low is None or high is None else f" from {low:g} to {high:g}"


class Form(Generic[T]):
    """The fields of an option dataclass.

    Args:
        of: the dataclass.
        leave_out: settings that the page asks for in another way; they keep the values of the base config.
    """

    def __init__(self, of: type[T], *, leave_out: Collection[str] = ()) -> None:
        self.of = of
        self._left_out = frozenset(leave_out)

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """In the order in which they are written."""
        types = get_type_hints(self.of)
        return tuple(
            _field(each, about, types[each.name]) for each, about in options(self.of) if each.name not in self._left_out
        )

    def values(self, config: T) -> list[Any]:
        """What the controls show for a config, in the order of `fields`."""
        return [field.shown(getattr(config, field.name)) for field in self.fields]

    def config(self, values: Sequence[Any], base: T | None = None, **others: Any) -> T:
        """A config of what the controls hold.

        Args:
            values: in the order of `fields`.
            base: has the settings that are not on the form; the defaults by default.
            others: settings by name that win over both.

        Raises:
            WrongUse: a value is no number, out of range or none of the choices.
        """
        read = {field.name: field.read(value) for field, value in zip(self.fields, values, strict=True)}
        start = self.of() if base is None else base
        made = dataclasses.replace(start, **{**read, **others})  # type: ignore[type-var]
        validate(made)
        return made


def typed(base: T, given: Mapping[str, Any]) -> T:
    """A config with values that have come as JSON.

    Args:
        base: has the other values.
        given: by the names of settings.

    Raises:
        WrongUse: a value is of another type, out of range or none of the choices.
    """
    for name, value in given.items():
        default = getattr(base, name)
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) if isinstance(default, float) else False
        if isinstance(default, tuple):
            fits = isinstance(value, list) and all(isinstance(each, str) for each in value)
        elif not fits:
            fits = type(value) is type(default)
        if not fits:
            raise WrongUse(f"{name} is {value!r}; give a {type(default).__name__}.")
    changes: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    made = dataclasses.replace(base, **changes)  # type: ignore[type-var]
    validate(made)
    return made


def option_texts(*configs: type) -> dict[str, str]:
    """Labels and helps of option dataclasses, for a page's table of words: a key each and the text."""
    found = {}
    for config in configs:
        for each, about in options(config):
            found[f"{config.__name__}.{each.name}"] = about.label
            found[f"{config.__name__}.{each.name}.help"] = about.help
    return found


def _field(each: dataclasses.Field[Any], about: Option, kind: Any) -> Field:
    inner = get_args(kind)
    default = each.default
    if inner:
        return Field(name=each.name, kind="list", of=inner[0], default=default, about=about)
    if about.choices is not None:
        return Field(name=each.name, kind="choice", of=kind, default=default, about=about)
    kinds: dict[type, Kind] = {bool: "switch", int: "whole", float: "number"}
    return Field(name=each.name, kind=kinds.get(kind, "text"), of=kind, default=default, about=about)


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None
