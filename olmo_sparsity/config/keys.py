"""Declares and checks the keys of a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

from olmo_sparsity.errors import UserError


def key(default: Any, help: str) -> Any:
    """Return a dataclass field with a default and the explanation that ``olmo-sparsity config`` prints."""
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata={"help": help})
    return field(default=default, metadata={"help": help})


def require(condition: bool, message: str) -> None:
    """Raise a ``UserError`` with this message unless the condition holds."""
    if not condition:
        raise UserError(message)


def require_positive(section: Any, prefix: str, *, names: Sequence[str]) -> None:
    """Check that the keys ``names`` of a section are positive.

    Raises:
        UserError: one is not; the message names it as ``PREFIX.NAME``.
    """
    for name in names:
        value = getattr(section, name)
        require(value > 0, f"{prefix}.{name} = {value}: must be positive")


def require_positive_or_null(section: Any, prefix: str, *, names: Sequence[str]) -> None:
    """Check that the keys ``names`` of a section are positive or null.

    Raises:
        UserError: one is not; the message names it as ``PREFIX.NAME``.
    """
    for name in names:
        value = getattr(section, name)
        require(value is None or value > 0, f"{prefix}.{name} = {value}: must be positive, or null")


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
