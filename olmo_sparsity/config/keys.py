"""Declares and checks the keys of a configuration."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, Optional

from olmo_sparsity.errors import UserError

LARGEST_LENGTH = 2**24  # tokens of a context; a table of rotary frequencies of this length takes some gigabytes
LONGEST_NUMBER = 30  # digits in a message
HALF_A_PAIR = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Range:
    """The numbers that a key accepts; None: no bound on this side. Infinity and NaN are never accepted."""

    least: Optional[float] = None
    above: Optional[float] = None
    most: Optional[float] = None
    below: Optional[float] = None

    def holds(self, value: float) -> bool:
        """Return True if a number lies in the range."""
        return (
            (isinstance(value, int) or math.isfinite(value))
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    @property
    def words(self) -> str:
        """The range in words, such as ``at least 1 and at most 4,096``; empty if every number lies in it."""
        if (self.least, self.above, self.most, self.below) == (None, 0, None, None):
            return "positive"
        bounds = (("at least", self.least), ("above", self.above), ("at most", self.most), ("below", self.below))
        return " and ".join(f"{name} {bound:,}" for name, bound in bounds if bound is not None)


def key(
    default: Any,
    help: str,
    *,
    least: Optional[float] = None,
    above: Optional[float] = None,
    most: Optional[float] = None,
    below: Optional[float] = None,
) -> Any:
    """Return a dataclass field with a default, a range, and the explanation that ``olmo-sparsity config`` prints.

    Args:
        default: the default.
        help: the explanation; the range is added to it.
        least: a number, or every number of a list, must be at least this; ``check_values`` checks it and the other bounds.
        above: it must be higher than this.
        most: it must be at most this.
        below: it must be lower than this.
    """
    accepted = Range(least, above, most, below)
    words = accepted.words
    metadata = {"help": f"{help} {words[:1].upper()}{words[1:]}." if words else help, "range": accepted}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def check_values(section: Any, prefix: str) -> None:
    """Check every number of a section against the range of its key, and that every text can be written and name a file.

    Raises:
        UserError: a value is not accepted; the message names it as ``PREFIX.NAME``.
    """
    for item in fields(section):
        if "range" in item.metadata:  # no section in the section
            check_value(item, getattr(section, item.name), f"{prefix}.{item.name}" if prefix else item.name)


def check_value(item: Field[Any], value: Any, dotted: str) -> None:
    """Check every number of a key's value against its range, and that every text can be written and name a file.

    Args:
        item: the field that ``key`` made.
        value: the value, of the type of the key.
        dotted: the name of the key, for the error.

    Raises:
        UserError: the value is not accepted.
    """
    accepted = item.metadata["range"]
    for one in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(one, str):
            _check_text(dotted, one)
        elif isinstance(one, (int, float)) and not isinstance(one, bool) and not accepted.holds(one):
            words = accepted.words or "a finite number"
            raise UserError(f"{dotted} = {shown(one)}: must be {words}{', or null' if item.default is None else ''}")


def check_characters(name: str, text: str, *, show: Callable[[str], str] = repr) -> None:
    """Check that a text holds characters only: half a surrogate pair can neither be encoded nor written.

    Args:
        name: of the text, for the error.
        text: the text.
        show: writes it on the line of the error.

    Raises:
        UserError: it holds something else.
    """
    if HALF_A_PAIR.search(text):
        raise UserError(f"{name} = {show(text)}: holds half a surrogate pair, which is not a character")


def _check_text(dotted: str, text: str) -> None:
    """Check that a text is UTF-8 and has no NUL: otherwise neither files nor manifests could hold it."""
    check_characters(dotted, text)
    require("\0" not in text, f"{dotted} = {text!r}: holds a NUL, which no name has")


def shown(number: float) -> str:
    """Return a number as messages show it. Python does not print integers of thousands of digits."""
    is_long = isinstance(number, int) and abs(number) >= 10**LONGEST_NUMBER
    return f"a number of more than {LONGEST_NUMBER} digits" if is_long else str(number)


def counted(number: int, noun: str) -> str:
    """Return a number with what it counts: ``1 block``, ``3 blocks``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def require(condition: bool, message: str) -> None:
    """Raise a ``UserError`` with this message unless the condition holds."""
    if not condition:
        raise UserError(message)


def require_rising(dotted: str, values: Sequence[int]) -> None:
    """Check that a list holds positive numbers in rising order, each once.

    Raises:
        UserError: it does not, or is empty.
    """
    values = list(values)
    require(
        len(values) > 0 and all(value > 0 for value in values) and values == sorted(set(values)),
        f"{dotted} = {values}: must be positive numbers in rising order, each once",
    )
