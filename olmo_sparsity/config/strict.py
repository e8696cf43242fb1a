"""Finds values of a configuration that OmegaConf would convert without a word: 17 to true, true to 1, ``???`` to nothing."""

from __future__ import annotations

import dataclasses
import types
from typing import Any, NamedTuple, Optional, Union, get_args, get_origin, get_type_hints


class WrongValue(NamedTuple):
    """A key whose value is of another type than the key.

    Attributes:
        dotted: the key.
        reason: what is there, and what it must be; it follows the key.
    """

    dotted: str
    reason: str


def find_wrong_value(values: Any, section: type, *, prefix: str = "") -> Optional[WrongValue]:
    """Return the first wrong value; None if there is none that OmegaConf does not find itself.

    Args:
        values: plain values by key, as they are in the YAML file. Unknown keys are ignored.
        section: the dataclass that they are meant for.
        prefix: of the keys, with a dot at its end.
    """
    if not isinstance(values, dict):
        return None
    hints = get_type_hints(section)
    for name, value in values.items():
        if name not in hints:
            continue
        expected, dotted = hints[name], f"{prefix}{name}"
        found: Optional[WrongValue]
        if dataclasses.is_dataclass(expected) and not isinstance(value, dict):
            found = WrongValue(dotted, " is a section of keys, not a value")
        elif dataclasses.is_dataclass(expected):
            found = find_wrong_value(value, expected, prefix=f"{dotted}.")  # type: ignore[arg-type]
        else:
            reason = _reason(value, expected)
            found = None if reason is None else WrongValue(dotted, reason)
        if found is not None:
            return found
    return None


def _reason(value: Any, expected: Any) -> Optional[str]:
    """Return why a value is none of this type; None where it is, or where OmegaConf says so itself."""
    if isinstance(value, str) and value.strip() == "???":
        return " = ???: this stands for a missing value; write the value out"
    origin = get_origin(expected)
    if origin in (Union, types.UnionType):
        return None if value is None else _reason(value, next(t for t in get_args(expected) if t is not type(None)))
    if origin is list and isinstance(value, dict):
        return ": a mapping of keys to values, where a list was expected"
    if origin is list:
        items = value if isinstance(value, list) else []
        return next((reason for item in items if (reason := _reason(item, get_args(expected)[0])) is not None), None)
    if expected is bool and isinstance(value, (int, float)) and not isinstance(value, bool):
        return f" = {value}: must be true or false"
    if expected in (int, float, str) and isinstance(value, bool):
        return f" = {str(value).lower()}: must be {'text' if expected is str else 'a number'}"
    return None
