"""Words about what is unmasked, ranked and counted (``influence.unit``)."""

from __future__ import annotations

from olmo_sparsity.config.units import block_size


def unit_words(unit: str, number: int = 2) -> str:
    """Return a unit's name: ``tokens``, ``sentences``, ``blocks of 16 tokens``; the singular for a number of 1."""
    plural = "" if number == 1 else "s"
    size = block_size(unit)
    return f"{unit}{plural}" if size is None else f"block{plural} of {size} token{'' if size == 1 else 's'}"


def counted_words(unit: str, k: int) -> str:
    """Return ``one token``, ``8 tokens``, ``one sentence``, ``8 blocks of 16 tokens``."""
    return f"{'one' if k == 1 else k} {unit_words(unit, k)}"


def unit_definition(unit: str) -> str:
    """Return what one of a unit is, in one sentence."""
    if unit == "word":
        return "A word is a run of characters without white space, with its punctuation; what the border cuts is the part of it."
    if unit == "sentence":
        return "Sentences are those of sentencex; a sentence that the window's start or the local context cuts is the part of it."
    if unit == "token":
        return "A token is one entry of the tokenizer's vocabulary."
    return "Blocks are counted from the first token of the window; the last one ends where the local context begins."


def k_words(unit: str) -> str:
    """Return what k counts, as the label of an axis or column: ``k, unmasked sentences``."""
    return f"k, unmasked {unit_words(unit)}"


def different_units_words(first: str, second: str) -> str:
    """Return a warning, as the end of a sentence, where k counts different things in two measurements; else nothing."""
    if first == second:
        return ""
    return (
        f"; NOT THE SAME SETTING: k counts {unit_words(first)} in one and {unit_words(second)} in the other, so numbers at the "
        "same k are not of the same thing"
    )
