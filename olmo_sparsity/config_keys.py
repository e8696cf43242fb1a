"""What every section of a configuration is written with: keys that explain themselves, and mistakes told in one line."""

from __future__ import annotations

from dataclasses import field
from typing import Any


class UserError(Exception):
    """A mistake of the user's, told in one line: what, where, and what to do. The command line exits with 2."""


class Interrupted(Exception):
    """The user stopped the work; it was saved and can go on. The command line exits with 130."""


def key(default: Any, help: str) -> Any:
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata={"help": help})
    return field(default=default, metadata={"help": help})


def require(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(message)
