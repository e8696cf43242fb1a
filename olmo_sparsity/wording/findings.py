"""What a figure shows, in one sentence with its main numbers: its text for those who do not see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from olmo_sparsity.statistics.single.breakdowns import ClassSummary, DistanceShares
from olmo_sparsity.statistics.single.summary import SelectionSummary, Summary
from olmo_sparsity.wording.evidence import blind_words, first_blind, prediction_words, seeing_words, value_words
from olmo_sparsity.wording.numbers import interval
from olmo_sparsity.wording.setup import foreign_words
from olmo_sparsity.wording.units import counted_of

NO_CLASSES = "No class of targets has documents enough for an interval."


def gains_finding(summary: Summary) -> str:
    """Return what the tokens give back that a selector chooses, one that does not see the target if such a one was measured.

    Without a selector it is what the whole long context is worth.
    """
    blind, seeing = first_blind(summary, None), summary.seeing_selectors
    if blind is not None:
        return blind_words(summary, blind)
    return seeing_words(summary, seeing[0]) if seeing else value_words(summary)


def reaction_finding(summary: Summary) -> str:
    """Return D(k) of one selector with the numbers that belong beside it."""
    return prediction_words(summary, first_blind(summary, None) or next(iter(summary.seeing_selectors), "random"))


def classes_finding(classes: Sequence[ClassSummary], whole: Summary) -> str:
    """Return to which classes of targets the long context is worth most and least; the classes have the highest gain first.

    What classes with too few documents for an interval show is no finding.
    """
    shown = [entry for entry in classes if entry.summary.gate != "not-assessed"]
    if not shown:
        return NO_CLASSES
    most, *others = shown
    words = (
        f"Of {len(classes)} classes of targets, {len(shown)} with enough documents, the long context is worth most to "
    )
    words += f"{most.target_class}, {interval(most.summary.long_gain_nats, 3)} nats"
    if most.contrast is not None:
        words += f" (the same rule on the null context: {interval(most.contrast.null_gain_nats, 3)})"
    if others:
        words += f", and least to {others[-1].target_class}, {interval(others[-1].summary.long_gain_nats, 3)}"
    return f"{words}; over all targets {interval(whole.long_gain_nats, 3)}."


def distance_finding(distances: Sequence[DistanceShares], summary: Summary, *, selector: str, k: int) -> str:
    """Return which share of the tokens that a selector chooses lies in the nearest bin, beside a random choice."""
    bins = {entry.context: entry.bins for entry in distances if (entry.selector, entry.k) == (selector, k)}
    nearest, of_null = bins["real"][0], bins["null"][0]
    end = "" if nearest.to_tokens == nearest.from_tokens else f" to {nearest.to_tokens}"
    what = f"{counted_of(summary, k)} that {selector} chooses"
    what = f"the {what}" if summary.unit == "token" else f"the tokens of the {what}"
    where = f"{nearest.from_tokens}{end} tokens before the target, the nearest long-range ones"
    return (
        f"Of {what}, a share of {interval(nearest.share, 3)} lies {where}; of a random choice {nearest.uniform:.3f}, "
        f"under the null context {interval(of_null.share, 3)}."
    )


def cloud_finding(selector: str, entries: Mapping[str, SelectionSummary], summary: Summary) -> str:
    """Return how closely sparse and long gain go together in each context, at one k; ``entries``: by context."""
    (k,) = {entry.k for entry in entries.values()}
    correlations = ", ".join(
        f"{interval(entry.figure4.correlation)} under the {context} context" for context, entry in entries.items()
    )
    return (
        f"Sparse gain with {counted_of(summary, k)} chosen by {selector} and long gain of a window correlate by {correlations}; "
        f"a correlation that {foreign_words(summary.null_context)} shows, too, is no finding."
    )


def window_finding(target: str, *, short_nats: float, long_nats: float, sparse_nats: float, chosen: str) -> str:
    """Return the losses of one target by what is visible; ``chosen``: such as ``2 tokens chosen by kl``."""
    return (
        f"The loss of the target {target.strip('· ') or 'space'} is {short_nats:.2f} nats with the local tokens alone, "
        f"{long_nats:.2f} with all tokens, and {sparse_nats:.2f} with the local tokens and {chosen}."
    )
