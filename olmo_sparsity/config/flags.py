"""Flags of the command line that stand for keys of the configuration, and what is written behind them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from olmo_sparsity.errors import UserError
from olmo_sparsity.records.own_selectors import declared_selectors
from olmo_sparsity.records.selectors import ALL_SELECTORS

ALL = "all"  # in place of the names of selectors
EVERY_MEASUREMENT = ("influence", "context-curve", "explore")  # commands that compute losses of windows
GRIDS = ("all", "geometric")  # in place of the values of k: every one, or powers of two and the largest


@dataclass(frozen=True)
class Flag:
    """The flag of a key. It is declared with the key; each of its commands has it.

    Attributes:
        help: what ``--help`` says of it; None: the explanation of the key.
        commands: the commands that have it.
        name: without the dashes; None: that of the key.
        metavar: what ``--help`` shows for the value; None: the type of the key.
        choices: what may be named, where the type of the key does not say so. The flag of a list is repeated for several.
        also: whether something else than one of the choices may be named, too; None: nothing else.
        parse: returns the values of keys of the section from what was given; None: it is the value of the key.
    """

    help: Optional[str]
    commands: tuple[str, ...]
    name: Optional[str] = None
    metavar: Optional[str] = None
    choices: tuple[str, ...] = ()
    also: Optional[Callable[[str], bool]] = None
    parse: Optional[Callable[[Any], dict[str, Any]]] = None


def parse_k(text: str) -> list[int]:
    """Return the values of k: ``8`` -> [1, 2, 4, 8]; ``6`` -> [1, 2, 4, 6]; ``1,3,5`` -> [1, 3, 5].

    Raises:
        UserError: ``text`` is neither a number nor a list of numbers.
    """
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*,?", text):
        raise UserError(
            f"--k {text}: must be a number, such as 8 (which measures 1, 2, 4, 8), or a list, such as 1,3,5"
        )
    values = [int(part) for part in text.split(",") if part]
    if "," in text:
        return sorted(set(values))
    return powers_up_to(values[0])


def powers_up_to(number: int) -> list[int]:
    """Return the powers of two below a number, and the number."""
    return [*(2**i for i in range(number.bit_length()) if 2**i < number), number]


def keys_of_k(text: str) -> dict[str, Any]:
    """Return the keys of ``influence`` that ``--k`` gives: the values of k, or the name of a grid.

    Raises:
        UserError: ``text`` is neither.
    """
    if text in GRIDS:
        return {"k_grid": text}
    try:
        return {"k": parse_k(text), "k_grid": None}
    except UserError as error:
        raise UserError(f"{error}, or all, or geometric (1, 2, 4, ... and all)") from None


def selectors_named(names: Sequence[str]) -> list[str]:
    """Return the selectors that flags name, each once; ``all`` stands for those that are not measured by name only.

    Raises:
        UserError: a selector of one's own is unusable.
    """
    others = [name for name in names if name != ALL]
    if ALL in names:
        others = [name for name in others if name not in ALL_SELECTORS]
    return declared_selectors([*(ALL_SELECTORS if ALL in names else ()), *others])
