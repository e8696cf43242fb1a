"""Words about the null context."""

from __future__ import annotations

from collections.abc import Mapping

from olmo_sparsity.statistics.summary import Summary

NULL_WORDS = {
    "same-source": "text of another document of the same source",
    "any-source": "text of another document",
    "same-document": "text from elsewhere in the same document",
    "shuffled": "the same tokens in random order",
}


def null_words(summary: Summary) -> str:
    """Return what the long-range tokens of the null context are; of how many windows, where documents were too short for it."""
    return null_kind_words(summary.null_context, summary.null_contexts)


def null_kind_words(asked: str, counts: Mapping[str, int]) -> str:
    """Return the words of the kinds of null context.

    Args:
        asked: the kind of the configuration.
        counts: how many windows have which kind; empty: all have the one that was asked for.
    """
    kinds = sorted((kind for kind, number in counts.items() if number), key=lambda kind: kind != asked) or [asked]
    if len(kinds) == 1:
        return NULL_WORDS[kinds[0]]
    return "; ".join(f"in {counts[kind]:,} windows {NULL_WORDS[kind]}" for kind in kinds)
