"""Words about the null context."""

from __future__ import annotations

from olmo_sparsity.statistics.summary import Summary

NULL_WORDS = {
    "same-source": "text of another document of the same source",
    "any-source": "text of another document",
    "same-document": "text from elsewhere in the same document",
    "shuffled": "the same tokens in random order",
}


def null_words(summary: Summary) -> str:
    """Return what the long-range tokens of the null context are; of how many windows, where documents were too short for it."""
    kinds = {summary.null_context: summary.num_windows, **summary.null_contexts}
    if set(kinds) == {summary.null_context}:
        return NULL_WORDS[summary.null_context]
    return "; ".join(f"in {number:,} windows {NULL_WORDS[kind]}" for kind, number in kinds.items() if number)
