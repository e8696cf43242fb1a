"""Numbers in words: estimates with their intervals, and on which side of 0 they lie."""

from __future__ import annotations

from typing import Optional

from olmo_sparsity.statistics.intervals.bootstrap import MIN_DOCUMENTS
from olmo_sparsity.statistics.intervals.estimate import Estimate, SmallestK
from olmo_sparsity.statistics.intervals.ratios import MIN_RATIO_DOCUMENTS
from olmo_sparsity.statistics.single.summary import Summary

REACHES_ZERO = "reaches down to 0 or below"  # of the interval of a gain whose gate failed
TOO_FEW_DOCUMENTS = "too few documents"
NO_R_BESIDE = "No R(k) stands beside it, since the gate did not pass."
TOO_FEW_TO_TELL = f"{TOO_FEW_DOCUMENTS} to tell"
NO_INTERVAL = f"{TOO_FEW_DOCUMENTS} for an interval"
FRAGILE = "fragile"


def number_words(value: Optional[int], max_k: int) -> str:
    """Return a smallest k as text; None is more than ``max_k``."""
    return f"> {max_k}" if value is None else str(value)


def smallest_k_words(smallest: Optional[SmallestK], max_k: int) -> str:
    """Return a smallest k with its interval, such as ``2 [1, > 8]``; a dash where the gate did not pass."""
    if smallest is None:
        return "-"
    value, low, high = (number_words(number, max_k) for number in (smallest.value, smallest.low, smallest.high))
    return f"{value} [{low}, {high}]"


def fixed(value: float, digits: int, *, sign: str = "-") -> str:
    """Return a number with so many digits behind the point; 0 is never negative. ``sign``: that of a format, such as +."""
    return f"{float(f'{value:.{digits}f}') + 0.0:{sign}.{digits}f}"  # of what is rounded to -0.0 the sum is 0.0


def interval(estimate: Optional[Estimate], digits: int = 2) -> str:
    """Return an estimate with its interval, such as ``0.41 [0.36, 0.47]``; a dash where there is none."""
    if estimate is None:
        return "-"
    if estimate.bounds is None:
        return fixed(estimate.mean, digits)
    mean, low, high = (fixed(number, digits) for number in (estimate.mean, *estimate.bounds))
    return f"{mean} [{low}, {high}]"


def interval_beside_zero(estimate: Estimate, digits: int) -> str:
    """Return what ``interval`` does, with up to 3 digits more where an interval that excludes 0 would be shown as touching it."""
    ends = (estimate.low,) if estimate.is_above_zero else (estimate.high,) if estimate.is_below_zero else ()
    more = (more for more in range(digits, digits + 4) if all(end is not None and round(end, more) for end in ends))
    return interval(estimate, next(more, digits))


def percent(share: Optional[Estimate]) -> str:
    """Return a share with its interval in percent, such as ``37% [34, 41]``; a dash where there is none."""
    if share is None:
        return "-"
    number, bracket, bounds = interval(share.times(100), 0).partition(" ")
    return f"{number}%{bracket}{bounds}"


def no_interval_words(what: str, num_documents: int) -> str:
    """Return in one sentence that D(k), or what follows from it, has no interval; empty where there are documents enough."""
    if num_documents >= MIN_RATIO_DOCUMENTS:
        return ""
    return f"{what}: {NO_INTERVAL} ({num_documents:,}; it takes {MIN_RATIO_DOCUMENTS:,})."


def recovered_words(summary: Summary, recovered: Optional[Estimate]) -> str:
    """Return an R(k) with its interval, marked where it is fragile; a dash where the gate did not pass."""
    mark = f" {FRAGILE}" if summary.is_fragile and recovered is not None else ""
    return f"{interval(recovered)}{mark}"


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
        return f"from {TOO_FEW_TO_TELL} it from 0"
    if estimate.is_above_zero:
        return "clearly above 0"
    return "clearly below 0" if estimate.is_below_zero else "not clearly different from 0"
