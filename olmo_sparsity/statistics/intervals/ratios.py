"""Ratios of sums with heavy tails, such as D(k), and their intervals: a symmetric bootstrap-t.

A few windows hold most of a divergence. Where they are few, the resamples of a ratio vary too little, and percentiles of them are
too narrow. Student's t takes this into account: each resample has a standard error of its own, and the interval reaches as many
standard errors to either side as 95% of the resamples lie from the ratio of all documents. The standard error is that of the
linearized ratio, from the documents of the resample. A share is treated on the scale of ``log(left / whole)``, so that its
interval never leaves the possible values; a difference of shares on its own scale. ``benchmarks/coverage.py`` simulates the
coverage.

Letters of shapes: U bootstrap units, X bootstrap resamples, T ratios of a sum of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement
from typing import Union

import numpy as np

from olmo_sparsity.statistics.intervals.shares import OfShares, ShareDifference

MIN_RATIO_DOCUMENTS = 300  # with fewer, no interval of such a ratio covers the truth often enough on heavy tails
ROUNDING = 1e-6  # a ratio below it is rounding error, which has no logarithm
SMALLEST_SHARE = 1e-6  # of the variance of a resample that the correction for its own ratio leaves at least


@dataclass(frozen=True)
class Ratio:
    """A ratio of two sums, times a number.

    Attributes:
        coefficient: the number.
        numerator: float [...].
        denominator: float [...].
    """

    coefficient: float
    numerator: np.ndarray
    denominator: np.ndarray


@dataclass(frozen=True)
class Ratios:
    """A number plus ratios of sums: a quantity that says how it is made, so that its interval can be that of such ratios.

    Attributes:
        constant: the number.
        terms: the ratios. Their numerators and denominators are linear in the totals, so that totals of single units are the
            parts of the units.
    """

    constant: float
    terms: tuple[Ratio, ...]

    def minus(self, other: Ratios) -> Ratios:
        """Return the difference."""
        negative = tuple(Ratio(-term.coefficient, term.numerator, term.denominator) for term in other.terms)
        return Ratios(self.constant - other.constant, (*self.terms, *negative))


Value = Union[np.ndarray, Ratios, OfShares]  # of a quantity


def share_without(left: np.ndarray, whole: np.ndarray) -> Ratios:
    """Return ``1 - left / whole``, the share that is gone, with heavy tails."""
    return Ratios(1.0, (Ratio(-1.0, left, whole),))


def value_of(value: Value) -> np.ndarray:
    """Return a quantity as numbers, float [...]; not finite where a denominator is 0."""
    if isinstance(value, OfShares):
        return value.value
    if not isinstance(value, Ratios):
        return value
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(value.constant + sum(t.coefficient * t.numerator / t.denominator for t in value.terms))


def minus(second: Value, first: Value) -> Value:
    """Return the difference of two quantities of one kind."""
    if isinstance(second, Ratios) and isinstance(first, Ratios):
        return second.minus(first)
    if isinstance(second, OfShares) and isinstance(first, OfShares):
        return ShareDifference(second, first)
    return value_of(second) - value_of(first)


class StudentizedRatios:
    """One of the ``Ratios`` of all units, and what its bootstrap-t needs.

    With r the ratio A / B of all units, e_u = A_u - r B_u is what unit u adds to it. In a resample the ratio is r + d with
    d = sum(e) / sum(B), and its linearized variance the sum of (e_u - d B_u)^2 / sum(B)^2 over the drawn units.
    """

    def __init__(self, of_units: Ratios) -> None:
        """Keep the parts of the units; numerators and denominators are float [U]."""
        self._constant = of_units.constant
        self._coefficients = [term.coefficient for term in of_units.terms]
        with np.errstate(divide="ignore", invalid="ignore"):
            self._ratios = [term.numerator.sum() / term.denominator.sum() for term in of_units.terms]
            self._parts_U: list[np.ndarray] = []
            for term, ratio in zip(of_units.terms, self._ratios, strict=True):
                self._parts_U += [term.numerator - ratio * term.denominator, term.denominator]
        self._num_documents = min(np.count_nonzero(term.denominator) for term in of_units.terms)

    @property
    def num_products(self) -> int:
        """Number of ``products``."""
        num_parts = len(self._parts_U)
        return num_parts + num_parts * (num_parts + 1) // 2

    def products(self) -> list[np.ndarray]:
        """Return what has to be summed over the units of each resample: e and B of each ratio, then their products, [U] each."""
        pairs = combinations_with_replacement(self._parts_U, 2)
        return [*self._parts_U, *(one_U * other_U for one_U, other_U in pairs)]

    def size_of_t(self, totals: Sequence[np.ndarray]) -> np.ndarray:
        """Return how many standard errors of its own each resample lies from the ratios of all units, [X].

        Args:
            totals: of the ``products``, [X] each.
        """
        num_parts = len(self._parts_U)
        change_X, variance_X, squares_X = self._spread(totals[:num_parts], totals[num_parts:])
        error_X = np.sqrt(np.maximum(variance_X, SMALLEST_SHARE * squares_X))
        with np.errstate(divide="ignore", invalid="ignore"):
            if self._is_logarithmic:
                (ratio,) = self._ratios
                resampled_X = ratio - change_X  # the ratio has the coefficient -1
                change_X, error_X = np.log(resampled_X / ratio), error_X / resampled_X
            return np.where(change_X == 0, 0.0, np.abs(change_X) / error_X)

    def _spread(
        self, sums: Sequence[np.ndarray], products: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the change of the value, its linearized variance, and the part of it without the correction by d, [...] each.

        Args:
            sums: of e and B of each ratio, [...] each.
            products: of their products, [...] each.
        """
        change, weights = np.zeros_like(sums[0]), []
        with np.errstate(divide="ignore", invalid="ignore"):
            for coefficient, e, b in zip(self._coefficients, sums[::2], sums[1::2], strict=True):
                change = change + coefficient * e / b
                weights += [coefficient / b, -coefficient * e / b**2]
            variance, squares = np.zeros_like(change), np.zeros_like(change)
            for (i, j), product in zip(combinations_with_replacement(range(len(weights)), 2), products, strict=True):
                added = (1 if i == j else 2) * weights[i] * weights[j] * product
                variance = variance + added
                if i % 2 == j % 2 == 0:
                    squares = squares + added
        return change, variance, squares

    @cached_property
    def _is_logarithmic(self) -> bool:
        """True of a share."""
        return self._constant == 1 and self._coefficients == [-1.0] and self._ratios[0] > ROUNDING

    def bounds(self, size: float) -> tuple[float, float]:
        """Return the ends of the interval, ``size`` standard errors to either side; NaN with too few documents.

        Documents whose denominator is 0, such as those of another measurement, do not count.
        """
        if self._num_documents < MIN_RATIO_DOCUMENTS:
            return np.nan, np.nan
        totals = [np.asarray(product_U.sum()) for product_U in self.products()]
        num_parts = len(self._parts_U)
        _, variance, _ = self._spread(totals[:num_parts], totals[num_parts:])
        half = float(size * np.sqrt(max(float(variance), 0.0)))
        if self._is_logarithmic:
            (ratio,) = self._ratios
            with np.errstate(over="ignore"):
                return 1 - ratio * np.exp(half / ratio), 1 - ratio * np.exp(-half / ratio)
        terms = zip(self._coefficients, self._ratios, strict=True)
        value = self._constant + sum(coefficient * ratio for coefficient, ratio in terms)
        return value - half, value + half
