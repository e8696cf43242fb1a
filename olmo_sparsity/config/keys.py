"""Helpers that declare and check the keys of a configuration."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from olmo_sparsity.errors import UserError


def key(default: Any, help: str) -> Any:
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata={"help": help})
    return field(default=default, metadata={"help": help})


def require(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(message)
