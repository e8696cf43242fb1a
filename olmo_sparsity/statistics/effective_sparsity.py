"""Effective sparsity: the smallest k that recovers a given fraction of the long gain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Optional

import numpy as np

from olmo_sparsity.statistics.bootstrap import attained_estimates, document_units, estimates
from olmo_sparsity.statistics.estimate import Estimate, WholeEstimate
from olmo_sparsity.statistics.measurement import Measurement, SelectionKey
from olmo_sparsity.statistics.sums import Key, SelectionNumber

RECOVERED = (0.5, 0.8, 0.9)  # the fractions of the long gain


@dataclass(frozen=True)
class SmallestK:
    """The smallest measured k that is enough, with its 95% interval. None stands for more than the largest measured k."""

    value: Optional[int]
    low: Optional[int]
    high: Optional[int]


@dataclass(frozen=True)
class WindowShare:
    """Share of the windows in which k tokens, or fewer, are enough; None where it is undefined."""

    k: int
    share: Optional[Estimate]


@dataclass(frozen=True)
class EffectiveSparsity:
    """The smallest k of one selector that recovers a fraction of the long gain, in the real context.

    The results are None where the gate failed. A resample whose mean long gain is not above 0 counts as one in which no k is
    enough.

    Attributes:
        selector: name of the selector.
        fraction: the fraction of the long gain to recover.
        max_k: the largest measured k.
        smallest_k: the smallest k with R(k) >= fraction. Of a selector that sees the target it is mostly selection luck.
        smallest_k_excess: the smallest k whose excess recovered fraction is >= fraction.
        smallest_k_median_window: the smallest k at which half of the windows with a long gain above 0 have recovered
            fraction times their own long gain, at this k or at a smaller one.
        window_shares: for each k, the share of the windows with a long gain above 0 that have done so.
    """

    selector: str
    fraction: float
    max_k: int
    smallest_k: Optional[SmallestK] = None
    smallest_k_excess: Optional[SmallestK] = None
    smallest_k_median_window: Optional[SmallestK] = None
    window_shares: Optional[tuple[WindowShare, ...]] = None


@dataclass(frozen=True)
class _Question:
    """Key of a smallest k: which selector, which fraction, which of the three definitions."""

    selector: str
    fraction: float
    name: str


@dataclass(frozen=True)
class _Reached:
    """Key of the number of windows that have recovered a fraction at k or before."""

    selector: str
    fraction: float
    k: int


def effective_sparsity(
    measurement: Measurement, sums: Mapping[Key, np.ndarray], *, gate_passed: bool
) -> tuple[EffectiveSparsity, ...]:
    """Return the smallest k that recovers each of the fractions ``RECOVERED``, for every selector.

    Args:
        measurement: the windows and their gains.
        sums: of ``sums_by_unit``, for the same measurement.
        gate_passed: True if the model uses the long context; else no smallest k is given.
    """
    ks = measurement.ks
    asked = list(product(measurement.selectors, RECOVERED))
    if not gate_passed:
        return tuple(EffectiveSparsity(selector, fraction, ks[-1]) for selector, fraction in asked)
    shares = _shares_of_windows(measurement)
    needed: dict[Any, np.ndarray] = {"gain_long_nats": sums["gain_long_nats"]}
    needed |= {key: sums[key] for key in (SelectionNumber(key, "gain") for key in measurement.keys)}

    def smallest(totals: Mapping[Any, np.ndarray]) -> dict[_Question, np.ndarray]:
        return {
            question: index
            for selector, fraction in asked
            for question, index in _smallest_indices(totals, selector, fraction=fraction, ks=ks).items()
        }

    def share(totals: Mapping[Any, np.ndarray]) -> dict[Any, np.ndarray]:
        return {key: value / totals["positive"] for key, value in totals.items() if key != "positive"}

    indices = attained_estimates({**needed, **shares}, smallest)
    shares_of_windows = estimates(shares, share)

    def smallest_k(selector: str, fraction: float, *, name: str) -> SmallestK:
        return _k_of_index(indices[_Question(selector, fraction, name)], ks)

    return tuple(
        EffectiveSparsity(
            selector,
            fraction,
            ks[-1],
            smallest_k(selector, fraction, name="smallest_k"),
            smallest_k(selector, fraction, name="smallest_k_excess"),
            smallest_k(selector, fraction, name="smallest_k_median_window"),
            tuple(WindowShare(k, shares_of_windows[_Reached(selector, fraction, k)]) for k in ks),
        )
        for selector, fraction in asked
    )


def _shares_of_windows(measurement: Measurement) -> dict[Any, np.ndarray]:
    """Count, in each unit, the windows with a long gain above 0 (``positive``), and those of them that have recovered a
    fraction of it at k or before; float64 [U]."""
    units = document_units(measurement.windows["doc_id"])
    long_gain_W = measurement.windows["gain_long_nats"].to_numpy(np.float64)
    positive_W = long_gain_W > 0
    counts: dict[Any, np.ndarray] = {"positive": units.sums(positive_W)}
    for selector in measurement.selectors:
        best_W = np.full(len(long_gain_W), -np.inf)
        for k in measurement.ks:
            best_W = np.maximum(best_W, measurement.gains[selector, "real", k].to_numpy())
            for fraction in RECOVERED:
                reached_W = positive_W & (best_W >= fraction * long_gain_W)
                counts[_Reached(selector, fraction, k)] = units.sums(reached_W)
    return counts


def _smallest_indices(
    totals: Mapping[Any, np.ndarray], selector: str, *, fraction: float, ks: Sequence[int]
) -> dict[_Question, np.ndarray]:
    """Return the index of the smallest k that is enough, and the number of ks where none is; each [...]."""

    def gain(context: str, k: int) -> np.ndarray:
        return totals[SelectionNumber(SelectionKey(selector, context, k), "gain")]

    wanted = fraction * totals["gain_long_nats"]
    gains = [gain("real", k) for k in ks]
    excess = [gain_real - gain("null", k) for gain_real, k in zip(gains, ks, strict=True)]
    half = [totals[_Reached(selector, fraction, k)] >= 0.5 * totals["positive"] for k in ks]
    return {
        _Question(selector, fraction, "smallest_k"): _first([(wanted > 0) & (value >= wanted) for value in gains]),
        _Question(selector, fraction, "smallest_k_excess"): _first(
            [(wanted > 0) & (value >= wanted) for value in excess]
        ),
        _Question(selector, fraction, "smallest_k_median_window"): _first(half),
    }


def _first(reached: list[np.ndarray]) -> np.ndarray:
    """Return the index of the first array that is True, or the number of arrays; elementwise."""
    never = np.ones_like(reached[0])
    return np.argmax([*reached, never], axis=0)


def _k_of_index(index: WholeEstimate, ks: Sequence[int]) -> SmallestK:
    value, low, high = (None if i is None or i == len(ks) else ks[i] for i in (index.value, index.low, index.high))
    return SmallestK(value, low, high)
