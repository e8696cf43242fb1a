"""Words about k: what is unmasked, ranked and counted (``influence.unit``), and which k are shown."""

from __future__ import annotations

from olmo_sparsity.config.units import block_size
from olmo_sparsity.statistics.single.summary import Summary


def shown_ks_words(summary: Summary) -> str:
    """Return which of the measured k a table shows: ``the smallest and the largest k``, or the numbers."""
    ks, shown = summary.ks, summary.shown_ks
    if set(shown) == {ks[0], ks[-1]}:
        return "the smallest and the largest k"
    return f"k = {', '.join(map(str, shown))} (of {len(ks)} measured)"


def all_tokens_words(summary: Summary) -> str:
    """Return that the k shown is all long-range tokens, in one sentence; empty where a smaller one is shown."""
    k = summary.shown_ks[0]
    if summary.at(summary.selectors[0], "real", k).all_visible_share < 1:
        return ""
    return (
        f"k = {k} is all of the long-range tokens, so by definition every selector chooses the same, and R(k) and D(k) are 1; "
        "measure smaller k."
    )


def units_words(summary: Summary) -> str:
    """Return what a reader of k must know where it does not count tokens, in one or two sentences; empty where it does.

    They say how many tokens the chosen ones hold, and in how many windows J_k is all long-range tokens.
    """
    if summary.unit == "token":
        return ""
    name, random = summary.selectors[0], "random" in summary.selectors
    name = next(iter(summary.blind_selectors), name)
    clauses = []
    for k in summary.end_ks:
        at = summary.at(name, "real", k)
        of_random = (
            f" ({summary.at('random', 'real', k).mean_tokens:.1f} of random)" if random and name != "random" else ""
        )
        clauses.append(f"{counted_words(summary.unit, k)} of {name}: {at.mean_tokens:.1f} tokens on average{of_random}")
    all_tokens = f"{summary.lengths.num_long_range} long-range tokens in all"
    words = f"k counts {unit_words(summary.unit)}; {'; '.join(clauses)}; {all_tokens}."
    shares = {k: summary.at(name, "real", k).all_visible_share for k in summary.ks}
    whole = [f"{share:.1%} at k = {k}" for k, share in shares.items() if share > 0]
    if not whole:
        return words
    return (
        f"{words} Share of the windows that have no more than k {unit_words(summary.unit)}, so that J_k is all of the long "
        f"context: {', '.join(whole)}."
    )


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
