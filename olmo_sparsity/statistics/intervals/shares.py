"""Shares of the windows' weight, such as of the targets that need no long-range token, and their intervals.

Means over windows of shares of some positions are shares, too, and so are accuracies, where a sequence is a document. Near 0 and
1 percentiles of resamples miss too often, and have no length where no document differs. So the interval of a share is an exact
binomial one (Clopper and Pearson 1934), of as many independent documents as would give its linearized standard error (Korn and
Graubard 1998). That of a difference of two shares is made of theirs, and of their correlation over the documents (Newcombe 1998,
method 10), also where both are differences. tests/statistics/test_shares.py simulates the coverage.

Letters of shapes: P shares, U bootstrap units.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import betainccinv, betaincinv, ndtr

from olmo_sparsity.statistics.intervals.estimate import NORMAL_ERRORS, Estimate

ROUNDING = 1e-12  # a smaller standard error is rounding error: no document differs from another


@dataclass(frozen=True)
class Share:
    """The share of a part in a whole: a quantity that says how it is made, so that its interval can be that of a share.

    Attributes:
        part: float [...]; of units, [U].
        whole: float [...]; of units, [U].
        is_all: True if the part is the whole by definition: a share of 1 then is no estimate, and its interval is a point.
    """

    part: np.ndarray
    whole: np.ndarray
    is_all: bool = False

    @property
    def value(self) -> np.ndarray:
        """The share, float [...]; not finite where the whole is 0."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(self.part / self.whole)

    @property
    def rest_U(self) -> np.ndarray:
        """What each unit adds to the share of all units."""
        whole = self.whole.sum()
        return (self.part - self.part.sum() / whole * self.whole) / whole

    def estimate(self) -> Estimate:
        """Return the share of all units, with its interval."""
        whole = self.whole.sum()
        share = self.part.sum() / whole
        if self.is_all and share >= 1:
            return Estimate(1.0, 1.0, 1.0, 0.0)
        error = np.sqrt((self.rest_U**2).sum())
        # Where no document differs, each counts by its weight, as if its windows were one.
        documents = share * (1 - share) / error**2 if error > ROUNDING else whole**2 / (self.whole**2).sum()
        low, high = map(float, exact_interval(share, documents, size=NORMAL_ERRORS))
        return Estimate(float(share), low, high, (high - low) / (2 * NORMAL_ERRORS))


@dataclass(frozen=True)
class ShareDifference:
    """A share minus another one, of the same windows or of others: as ``Share``, a quantity that says how it is made.

    Both may be differences themselves.
    """

    first: OfShares
    second: OfShares

    @property
    def value(self) -> np.ndarray:
        """The difference, float [...]; not finite where a whole is 0."""
        return np.asarray(self.first.value - self.second.value)

    @property
    def rest_U(self) -> np.ndarray:
        """What each unit adds to the difference of all units."""
        return self.first.rest_U - self.second.rest_U

    def estimate(self) -> Estimate:
        """Return the difference of all units, with its interval."""
        return paired_difference(self.first.estimate(), self.second.estimate(), of_units=self)


OfShares = Share | ShareDifference


def exact_interval(share_P: np.ndarray, documents_P: np.ndarray, *, size: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of Clopper-Pearson intervals of shares of so many independent documents, each with the confidence that a
    normal variable lies within ``size`` standard errors."""
    tail, at_P = ndtr(-size), share_P * documents_P
    with np.errstate(divide="ignore", invalid="ignore"):
        low_P, high_P = betaincinv(at_P, documents_P - at_P + 1, tail), betainccinv(at_P + 1, documents_P - at_P, tail)
    return np.where(share_P <= 0, 0.0, low_P), np.where(share_P >= 1, 1.0, high_P)


def paired_difference(first: Estimate, second: Estimate, *, of_units: ShareDifference) -> Estimate:
    """Return the difference of two shares, first minus second, with its 95% interval.

    The interval is made of those of the shares and of their correlation over the documents (Newcombe 1998, method 10), so it has
    a length where no document differs.

    Args:
        first: a share, with its interval.
        second: another one.
        of_units: what both are made of, summed over each unit.
    """
    mean = first.mean - second.mean
    if first.bounds is None or second.bounds is None:
        return Estimate(mean)
    rest_2U = np.stack([of_units.first.rest_U, of_units.second.rest_U])
    (square, product), (_, other_square) = rest_2U @ rest_2U.T
    size = np.sqrt(square * other_square)
    correlation = float(product / size) if size > 0 else 0.0

    def reach(away: float, other_away: float) -> float:
        return float(np.sqrt(max(0.0, away**2 - 2 * correlation * away * other_away + other_away**2)))

    (low, high), (other_low, other_high) = first.bounds, second.bounds
    below = reach(first.mean - low, other_high - second.mean)
    above = reach(high - first.mean, second.mean - other_low)
    return Estimate(mean, mean - below, mean + above, (below + above) / (2 * NORMAL_ERRORS))
