"""Estimates: a number with its 95% confidence interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from scipy.special import ndtri

CONFIDENCE = 0.95
NORMAL_ERRORS = float(ndtri((1 + CONFIDENCE) / 2))  # standard errors from the middle of a normal interval to its ends


@dataclass(frozen=True)
class Estimate:
    """A mean, a ratio of means or a slope, with its 95% interval.

    Attributes:
        mean: the value over all documents.
        low: lower end of the interval; None where there is no interval (too few documents, or the quantity is undefined
            in some resample).
        high: upper end of the interval; None where ``low`` is None.
        standard_error: standard deviation over the resamples, or of D(k) and of shares that of a normal interval as
            wide as this; None where ``low`` is None.
    """

    mean: float
    low: Optional[float] = None
    high: Optional[float] = None
    standard_error: Optional[float] = None

    @property
    def bounds(self) -> Optional[tuple[float, float]]:
        """The interval as (low, high), or None."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def has_interval(self) -> bool:
        """True if the estimate has an interval."""
        return self.bounds is not None

    @property
    def is_above_zero(self) -> bool:
        """True if the whole interval lies above 0."""
        return self.low is not None and self.low > 0

    @property
    def is_below_zero(self) -> bool:
        """True if the whole interval lies below 0."""
        return self.high is not None and self.high < 0

    def times(self, factor: float) -> Estimate:
        """Return a positive multiple of the value, with its interval."""
        low, high, error = (
            None if value is None else factor * value for value in (self.low, self.high, self.standard_error)
        )
        return Estimate(factor * self.mean, low, high, error)

    def without_interval(self) -> Estimate:
        """Return the same value without its interval."""
        return Estimate(self.mean)


@dataclass(frozen=True)
class SmallestK:
    """The smallest measured k that is enough, with its 95% interval. None stands for more than the largest measured k."""

    value: Optional[int]
    low: Optional[int]
    high: Optional[int]
