"""Simultaneous bands: intervals of several shares that hold all their true values at once.

The shares are those of a cumulative distribution: how much of the windows' weight lies at or below each of some values. A band
is of sup-t type (Montiel Olea and Plagborg-Moller 2019): the largest distance, in standard errors, between a resample's
distribution and that of all documents is at most ``size`` in 95% of the resamples, and every interval reaches about as many to
either side. Resamples are those of ``bootstrap``, which draws documents.

As of a share alone (``shares``), each interval is an exact binomial one. It has the confidence that a normal variable lies within
``size`` standard errors, and is of as many independent documents as would give the bootstrap's standard error.
``benchmarks/coverage.py`` simulates the coverage.

Letters of shapes: P shares of a band, U bootstrap units, X bootstrap resamples.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import TypeVar

import numpy as np

from olmo_sparsity.statistics.intervals.bootstrap import NUM_RESAMPLES, resample
from olmo_sparsity.statistics.intervals.estimate import CONFIDENCE, NORMAL_ERRORS, Estimate
from olmo_sparsity.statistics.intervals.shares import ROUNDING, exact_interval

MAX_SHARES = 4000  # in one call of the bootstrap, which keeps 8 bytes of each and of every resample

Key = TypeVar("Key", bound=Hashable)


def share_bands(
    parts: Mapping[Key, np.ndarray], weight_U: np.ndarray, *, num_resamples: int = NUM_RESAMPLES
) -> dict[Key, tuple[Estimate, ...]]:
    """Return the shares of cumulative distributions with simultaneous 95% bands, one band for each key.

    Args:
        parts: key -> the weight of the windows at or below each value, which rises with the value, summed over each unit,
            float64 [P, U].
        weight_U: the weight of all windows of each unit, float64 [U].
        num_resamples: number of resamples.

    Returns:
        key -> P estimates. They have no intervals with fewer than ``MIN_DOCUMENTS`` documents.
    """
    bands: dict[Key, tuple[Estimate, ...]] = {}
    for batch in _batches(parts):
        sums: dict[object, np.ndarray] = {None: weight_U}
        sums |= {(key, p): part_U for key in batch for p, part_U in enumerate(parts[key])}

        def shares(totals: Mapping[object, np.ndarray]) -> dict[object, np.ndarray]:
            return {key: total / totals[None] for key, total in totals.items() if key is not None}

        resampled = resample(sums, shares, num_resamples=num_resamples)
        begin = 0
        for key in batch:
            rows = slice(begin, begin + len(parts[key]))
            begin = rows.stop
            if resampled.resampled_QX is None:
                bands[key] = tuple(Estimate(float(value)) for value in resampled.values_Q[rows])
            else:
                bands[key] = _band(resampled.values_Q[rows], resampled.resampled_QX[rows], weight_U=weight_U)
    return bands


def _batches(parts: Mapping[Key, np.ndarray]) -> Iterator[list[Key]]:
    """Yield the keys in batches of at most ``MAX_SHARES`` shares, a band at least."""
    batch: list[Key] = []
    size = 0
    for key, part_PU in parts.items():
        if batch and size + len(part_PU) > MAX_SHARES:
            yield batch
            batch, size = [], 0
        batch.append(key)
        size += len(part_PU)
    if batch:
        yield batch


def _band(share_P: np.ndarray, distribution_PX: np.ndarray, *, weight_U: np.ndarray) -> tuple[Estimate, ...]:
    """Return the estimates of one band from its shares and those of every resample."""
    error_P = distribution_PX.std(axis=1, ddof=1)
    varies_P = error_P > ROUNDING
    size = NORMAL_ERRORS  # at least that of one interval alone
    if varies_P.any():
        away_PX = np.abs(distribution_PX - share_P[:, None])[varies_P] / error_P[varies_P, None]
        size = max(size, float(np.quantile(away_PX.max(axis=0), CONFIDENCE)))
    # Where no document differs, each counts by its weight, as if its windows were one.
    documents_P = np.full(len(share_P), weight_U.sum() ** 2 / (weight_U**2).sum())
    documents_P[varies_P] = (share_P * (1 - share_P))[varies_P] / error_P[varies_P] ** 2
    low_P, high_P = exact_interval(share_P, documents_P, size=size)
    low_P, high_P = np.maximum.accumulate(low_P), np.minimum.accumulate(high_P[::-1])[::-1]  # the truth rises, too
    return tuple(
        Estimate(float(share), float(low), float(high), float(error))
        for share, low, high, error in zip(share_P, low_P, high_P, error_P, strict=True)
    )
