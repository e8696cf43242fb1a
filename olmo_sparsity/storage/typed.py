"""JSON and other plain values from disk, checked against the types that their reader expects.

Whatever lies on disk may be damaged, edited by hand, or from somebody else. Nothing of it is used before its type is known, so
that a wrong value ends a command with its file and its key, and not somewhere in the middle of a computation.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from olmo_sparsity.errors import UserError

T = TypeVar("T")


def decode_json(content: bytes | str, *, where: str) -> Any:
    """Return the value of JSON text.

    Args:
        content: the text, in UTF-8.
        where: the file, and where it has several the line, for the error.

    Raises:
        UserError: it is not JSON. Numbers beyond those of 64 bits, and NaN, which Python's own parser allows, are not JSON.
    """
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise UserError(f"{where}: not valid JSON, the file is damaged") from None


def check_type(value: Any, expected: type[T], *, where: Path | str) -> T:
    """Return a plain value as ``expected``: a dataclass, a ``TypedDict``, ``dict[str, int]`` and so on.

    Keys that are not expected are left out. Nothing is converted but whole numbers to ``float``, and lists to tuples; true is no
    number.

    Args:
        value: dicts, lists, texts, numbers, bools and None.
        expected: the type.
        where: the file, for the error.

    Raises:
        UserError: the value is of another type; the message names the key and what was expected.
    """
    try:
        return msgspec.convert(value, expected, strict=True)
    except msgspec.ValidationError as error:
        raise UserError(f"{where}: {_explain(str(error))}") from None
    except UserError as error:  # of a configuration, which checks its values itself
        raise UserError(f"{where}: {error}") from None


def _explain(message: str) -> str:
    """Return msgspec's message in our words: "Expected `int`, got `str` - at `$.a.b`" -> "key a.b: expected int, got str"."""
    reason, _, path = message.partition(" - at ")
    key = path.strip("`").removeprefix("$").removeprefix(".")
    missing = re.fullmatch(r"Object missing required field `(.*)`", reason)
    if missing:
        name = f"{key}." if key else ""
        return f"key {name}{missing[1]} is missing; the file is damaged, or of another version of olmo-sparsity"
    reason = reason.replace("`", "")
    reason = reason[:1].lower() + reason[1:]
    return f"{f'key {key}: ' if key else ''}{reason}; the file is damaged, or was changed"
