"""Sentences about results: intervals, gates, lengths, verdicts. Every output takes its words from here."""

from __future__ import annotations

from typing import Optional, Union

from olmo_sparsity.statistics.bootstrap import MIN_DOCUMENTS
from olmo_sparsity.statistics.curves import ContextCurve
from olmo_sparsity.statistics.effective_sparsity import SmallestK
from olmo_sparsity.statistics.estimate import Estimate
from olmo_sparsity.statistics.measurement import Lengths
from olmo_sparsity.statistics.summary import Summary

NO_LONG_GAIN = "this model does not profit from the long context"
# What the chunks of a training row hold, where it is not consecutive text.
CONTENTS_WORDS = {
    "matched": ", with chunks of text as far apart as their positions",
    "uniform": ", with chunks from random places of a document",
}


def number_words(value: Optional[int], max_k: int) -> str:
    """Return a smallest k as text; None is more than ``max_k``."""
    return f"> {max_k}" if value is None else str(value)


def smallest_k_words(smallest: Optional[SmallestK], max_k: int) -> str:
    """Return a smallest k with its interval, such as ``2 [1, > 8]``; a dash where the gate failed."""
    if smallest is None:
        return "-"
    value, low, high = (number_words(number, max_k) for number in (smallest.value, smallest.low, smallest.high))
    return f"{value} [{low}, {high}]"


def interval(estimate: Optional[Estimate], digits: int = 2) -> str:
    """Return an estimate with its interval, such as ``0.41 [0.36, 0.47]``; a dash where there is none."""
    if estimate is None:
        return "-"
    if estimate.bounds is None:
        return f"{estimate.mean:.{digits}f}"
    low, high = estimate.bounds
    return f"{estimate.mean:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def data_words(result: Union[Summary, ContextCurve]) -> str:
    """Return how much was measured, and of which text."""
    return f"{result.num_windows} windows of {result.num_documents} documents ({result.source}, {result.split})"


def gate_words(summary: Summary) -> str:
    """Return the validity gate in one sentence."""
    gain = summary.long_gain_nats
    if gain.bounds is None:
        return f"GATE FAILED: fewer than {MIN_DOCUMENTS} documents are too few for an interval; no recovered fraction is shown."
    low, high = gain.bounds
    numbers = f"{gain.mean:+.4f} nats, 95% interval [{low:+.4f}, {high:+.4f}]"
    if summary.gate_passed:
        return f"Gate passed: the long context is worth {numbers}."
    return (
        f"GATE FAILED: the mean long gain ({numbers}) is not above 0. {NO_LONG_GAIN.capitalize()}, "
        "so no recovered fraction is shown."
    )


def gate_reason(long_gain: Estimate) -> str:
    """Return why a gate failed, in a few words."""
    return NO_LONG_GAIN if long_gain.has_interval else "too few documents to tell"


def positions_words(lengths: Lengths) -> str:
    """Return which position IDs a training row carried."""
    if lengths.pose_method == "randpos":  # it has no chunks, so their contents do not matter
        return f"random positions (RandPos) below {lengths.max_position}"
    if lengths.num_chunks == 1:
        return "ordinary positions, no PoSE"
    contents = CONTENTS_WORDS.get(lengths.pose_contents or "contiguous", "")
    return f"PoSE positions below {lengths.max_position}{contents}"


def length_words(lengths: Lengths) -> str:
    """Return the lengths, and how much of the full context lies beyond a training row."""
    beyond = lengths.full_len - lengths.train_len
    words = (
        f"local {lengths.local_len} + long-range {lengths.num_long_range} = full {lengths.full_len} tokens; "
        f"trained on rows of {lengths.train_len} with {positions_words(lengths)}"
    )
    if lengths.train_len == lengths.local_len:
        return f"{words}; all {beyond} long-range tokens lie beyond what training saw at once."
    return f"{words}. A row is longer than the local context: only {beyond} of the {lengths.full_len} tokens lie beyond it."


def verdict(difference: Optional[Estimate]) -> str:
    """Return what the interval of a difference shows: higher, lower, equal, or no clear difference."""
    if difference is None:
        return "-"
    if difference.bounds is None:
        return f"fewer than {MIN_DOCUMENTS} documents"
    if difference.bounds == (0, 0):
        return "equal"
    if difference.is_above_zero:
        return "higher"
    return "lower" if difference.is_below_zero else "no clear difference"


def against_zero(estimate: Estimate) -> str:
    """Return where an interval lies relative to 0, as the end of a sentence."""
    if not estimate.has_interval:
        return "from too few documents to tell it from 0"
    if estimate.is_above_zero:
        return "clearly above 0"
    return "clearly below 0" if estimate.is_below_zero else "not clearly different from 0"
