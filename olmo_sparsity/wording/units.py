"""Words about k: what is unmasked, ranked and counted (``influence.unit``), and which k are shown.

Under ``contextual`` visibility k counts entries of the key-value cache, not tokens: each entry has read all that stands before
its token, so k entries say nothing of how many tokens the model needs.
"""

from __future__ import annotations

from olmo_sparsity.config.units import block_size
from olmo_sparsity.statistics.single.model_setup import Visibility
from olmo_sparsity.statistics.single.summary import Summary

ENTRY_WORDS = (
    "An entry: the keys and values of one token, which has read all before it; k entries bound no number of tokens."
)


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
    """Return what a reader of k must know where it does not count tokens, in a few sentences; empty where it does.

    They say what an entry is, how many tokens chosen groups hold, and in how many windows J_k is all long-range tokens.
    """
    visibility = summary.setup.visibility
    sentences = (_group_words(summary), entry_words(visibility))
    return " ".join(sentence for sentence in sentences if sentence)


def entry_words(visibility: Visibility) -> str:
    """Return what an entry is, in one sentence; empty where k counts tokens."""
    return ENTRY_WORDS if visibility == "contextual" else ""


def k_counts_words(summary: Summary) -> str:
    """Return ``k counts entries``; empty where it counts tokens."""
    units = units_of(summary)
    return "" if units == "tokens" else f"k counts {units}"


def _group_words(summary: Summary) -> str:
    """Return how many tokens the chosen groups hold, and in how many windows J_k is everything; empty without groups."""
    if summary.unit == "token":
        return ""
    units = units_of(summary)
    name, random = summary.selectors[0], "random" in summary.selectors
    name = next(iter(summary.blind_selectors), name)
    clauses = []
    for k in summary.end_ks:
        at = summary.at(name, "real", k)
        of_random = (
            f" ({summary.at('random', 'real', k).mean_tokens:.1f} of random)" if random and name != "random" else ""
        )
        clauses.append(f"{counted_of(summary, k)} of {name}: {at.mean_tokens:.1f} tokens on average{of_random}")
    all_tokens = f"{summary.lengths.num_long_range} long-range tokens in all"
    words = f"{k_counts_words(summary)}; {'; '.join(clauses)}; {all_tokens}."
    shares = {k: summary.at(name, "real", k).all_visible_share for k in summary.ks}
    whole = [f"{share:.1%} at k = {k}" for k, share in shares.items() if share > 0]
    if not whole:
        return words
    return (
        f"{words} Share of the windows that have no more than k {units}, so that J_k is all of the long "
        f"context: {', '.join(whole)}."
    )


def unit_words(unit: str, visibility: Visibility, number: int = 2) -> str:
    """Return what k counts: ``tokens``, ``sentences``, ``blocks of 16 tokens``; the singular for a number of 1.

    Under ``contextual`` visibility ``entries``, ``sentences of entries``, ``blocks of 16 entries``.
    """
    plural, size = "" if number == 1 else "s", block_size(unit)
    if size is not None:
        return f"block{plural} of {size} {unit_words('token', visibility, size)}"
    if visibility == "hidden":
        return f"{unit}{plural}"
    if unit == "token":
        return "entry" if number == 1 else "entries"
    return f"{unit}{plural} of entries"


def counted_words(unit: str, visibility: Visibility, k: int) -> str:
    """Return ``one token``, ``8 tokens``, ``one sentence``, ``8 blocks of 16 tokens``, ``8 entries``."""
    return f"{'one' if k == 1 else k} {unit_words(unit, visibility, k)}"


def units_of(summary: Summary, number: int = 2) -> str:
    """Return what k of a measurement counts (``unit_words``)."""
    return unit_words(summary.unit, summary.setup.visibility, number)


def counted_of(summary: Summary, k: int) -> str:
    """Return k with what it counts in a measurement (``counted_words``)."""
    return counted_words(summary.unit, summary.setup.visibility, k)


def unit_definition(unit: str, visibility: Visibility) -> str:
    """Return what one of a unit is, in one sentence; empty where ``units_words`` says it."""
    if unit == "word":
        return "A word is a run of characters without white space, with its punctuation; what the border cuts is the part of it."
    if unit == "sentence":
        return "Sentences are those of sentencex; a sentence that the window's start or the local context cuts is the part of it."
    if unit == "token":
        return "" if visibility == "contextual" else "A token is one entry of the tokenizer's vocabulary."
    return "Blocks are counted from the first token of the window; the last one ends where the local context begins."


def k_words(unit: str, visibility: Visibility) -> str:
    """Return what k counts, as the label of an axis or column: ``k, unmasked sentences``."""
    return f"k, unmasked {unit_words(unit, visibility)}"
