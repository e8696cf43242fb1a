"""Units: what is unmasked, ranked and counted, as ``influence.unit`` names it."""

from __future__ import annotations

import re
from typing import Any, Optional

from olmo_sparsity.config.keys import require

TEXT_UNITS = ("word", "sentence")  # groups that depend on the text, so that windows have different numbers of them


def check_unit(unit: str) -> None:
    """Check the name of a unit.

    Raises:
        UserError: there is no such unit.
    """
    known = unit == "token" or unit in TEXT_UNITS or block_size(unit) is not None
    require(known, f"influence.unit = {unit}: must be token, word, sentence, or block:N with N tokens, as block:16")


def block_size(unit: str) -> Optional[int]:
    """Return the number of tokens of a block; None for other units."""
    match = re.fullmatch(r"block:([1-9][0-9]{0,8})", unit)
    return None if match is None else int(match.group(1))


def most_groups(num_long_range: int, unit: str) -> int:
    """Return the largest number of groups of a window: of its long-range tokens, or of blocks of them."""
    return -(-num_long_range // (block_size(unit) or 1))


def counted(number: int, manifest: dict[str, Any]) -> str:
    """What k counts, with its number: `1 token`, `4 entries` of the contextual cache, `2 blocks of 16 tokens`."""
    kind, _, size = manifest["influence"].get("unit", "token").partition(":")
    one, many = ("entry", "entries") if manifest.get("visibility") == "contextual" else ("token", "tokens")
    if kind == "token":
        return f"{number:,} {one if number == 1 else many}"
    return f"{number:,} {kind}{'' if number == 1 else 's'}{f' of {size} {many}' if size else ''}"


def units_of(manifest: dict[str, Any]) -> str:
    """What k counts, in the plural."""
    return counted(2, manifest).removeprefix("2 ")
