"""Intervals by bootstrap over documents: windows of one document are not independent. Imports no torch.

A statistic is a function of sums over documents, whatever it is: a mean, a ratio of means, a slope, a smallest k. The sums
of each document are kept, documents are drawn with replacement, and the function sees the totals of each draw. What depends
on the number of documents alone is drawn the same way every time, so that all numbers of the same documents share their
draws: differences are paired.

With more than ``MAX_UNITS`` documents these are first thrown together at random into that many groups, equal in size but for
one document, and groups are drawn. That is a bootstrap over clusters as well: a group's sums are sums over independent
documents, so that the sums vary between groups as much as their documents do. The interval is as wide on average and covers as
often. Only its own luck is that of ``MAX_UNITS`` units instead of all documents; at 10,000 that moves its width by less than 1%
(standard error). It holds for statistics that stay what they are when all totals are doubled, as means, ratios and slopes do.
Up to the limit a document is a unit of its own. So time and memory of the intervals grow no further.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Optional

import numpy as np
import pandas as pd
from scipy.stats import DegenerateDataWarning, bootstrap

CONFIDENCE = 0.95
NUM_RESAMPLES = 2000
SEED = 0
MIN_DOCUMENTS = 20  # below this a percentile interval is much too narrow, and the gate would pass by luck
MAX_UNITS = 10_000  # drawn ones: documents, or random groups of them
POOL_SEED = 1  # of the groups
BATCH_ELEMENTS = 4_000_000  # drawn document numbers held at once; 8 bytes each, a few copies
Estimate = dict[str, Optional[float]]
Sums = Mapping[Any, np.ndarray]  # name -> float [units]
Quantities = Callable[[Mapping[Any, np.ndarray]], Mapping[Any, np.ndarray]]


def document_units(doc_ids: pd.Series) -> tuple[np.ndarray, int]:
    """What is drawn: documents, or with more than ``MAX_UNITS`` of them random groups of documents.

    Args:
        doc_ids: the document of each window.

    Returns:
        (the unit of each window, int64 [windows]; the number of units). The same documents in the same order give the same
        units every time.
    """
    names: Any = doc_ids.astype("string[pyarrow]").array  # Arrow tells them apart without a Python string of each
    codes, documents = pd.factorize(names)
    num_units = min(len(documents), MAX_UNITS)
    if num_units < len(documents):
        shuffled = np.random.default_rng(POOL_SEED).permutation(len(documents))
        codes = (shuffled % num_units)[codes]
    return codes, num_units


def document_sums(values: Any, units: np.ndarray, num_units: int) -> np.ndarray:
    """Sum of ``values`` [windows] in each unit of ``document_units``, float64 [units]."""
    return np.bincount(units, weights=np.asarray(values, dtype=np.float64), minlength=num_units)


def _resample(
    sums: Sums, quantities: Quantities, num_resamples: int
) -> tuple[list[Hashable], np.ndarray, Optional[Any]]:
    """(names [V], values [V], scipy's bootstrap result of shape [V, resamples]); no result below ``MIN_DOCUMENTS``."""
    names, stacked = list(sums), np.stack([np.asarray(one, dtype=np.float64) for one in sums.values()])
    num_units = stacked.shape[1]

    def of_totals(totals: np.ndarray) -> dict[Hashable, np.ndarray]:
        with np.errstate(divide="ignore", invalid="ignore"):
            return dict(quantities(dict(zip(names, totals, strict=True))))

    def of_drawn(drawn: np.ndarray, axis: int) -> np.ndarray:
        """[V, batch] of unit numbers [batch, units]: how often each was drawn, times its sums."""
        rows = np.arange(len(drawn))[:, None] * num_units
        counts = np.bincount((drawn.astype(np.int64) + rows).ravel(), minlength=drawn.size).reshape(drawn.shape)
        values = np.stack(list(of_totals(stacked @ counts.T.astype(np.float64)).values())).astype(np.float64)
        return np.where(np.isfinite(values), values, np.nan)

    values = of_totals(stacked.sum(axis=1))
    result = None
    if num_units >= MIN_DOCUMENTS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DegenerateDataWarning)  # told by None instead
            result = bootstrap(
                (np.arange(num_units),),
                of_drawn,
                axis=-1,
                vectorized=True,
                n_resamples=num_resamples,
                batch=max(1, BATCH_ELEMENTS // num_units),
                confidence_level=CONFIDENCE,
                method="percentile",
                rng=np.random.default_rng(SEED),
            )
    return list(values), np.array([float(value) for value in values.values()]), result


def estimates(sums: Sums, quantities: Quantities, num_resamples: int = NUM_RESAMPLES) -> dict[Any, Optional[Estimate]]:
    """Values of any functions of sums over documents, with 95% percentile intervals, all from the same resamples.

    Args:
        sums: name -> float [units], the sum of something over the windows of each unit (``document_units``).
        quantities: name -> total of all documents, float [...] (one a resample) to name -> value [...], elementwise.
        num_resamples: fewer are faster and coarser.

    Returns:
        name -> ``{mean, low, high}``; ``low`` and ``high`` are None with fewer than ``MIN_DOCUMENTS`` documents or where
        the quantity is undefined in some resample; None where it is undefined itself (a slope without variance, say).
    """
    names, values, result = _resample(sums, quantities, num_resamples)
    nothing = np.full(len(names), np.nan)
    low, high = (nothing, nothing) if result is None else result.confidence_interval
    found: dict[Any, Optional[Estimate]] = {}
    for name, *numbers in zip(names, values, low, high, strict=True):
        mean, *bounds = (float(number) if np.isfinite(number) else None for number in numbers)
        if None in bounds:
            bounds = [None, None]
        found[name] = None if mean is None else {"mean": mean, "low": bounds[0], "high": bounds[1]}
    return found


def attained_estimates(
    sums: Sums, quantities: Quantities, num_resamples: int = NUM_RESAMPLES
) -> dict[Any, tuple[int, Optional[int], Optional[int]]]:
    """As ``estimates``, of whole numbers: name -> (value, low, high). The bounds are order statistics, numbers that some
    resample attained, never one in between."""
    names, values, result = _resample(sums, quantities, num_resamples)
    if result is None:
        return {name: (int(value), None, None) for name, value in zip(names, values, strict=True)}
    tails = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
    low, high = np.quantile(result.bootstrap_distribution, tails, axis=-1, method="inverted_cdf")
    return {name: (int(v), int(a), int(b)) for name, v, a, b in zip(names, values, low, high, strict=True)}


def line_of_sums(
    n: np.ndarray, x: np.ndarray, y: np.ndarray, xx: np.ndarray, yy: np.ndarray, xy: np.ndarray
) -> dict[str, np.ndarray]:
    """Correlation and slopes of y on x, from the sums of n points, each [...]; NaN where undefined.

    ``ols_slope``: least squares of y on x, ``Sxy / Sxx``; noise in x pulls it towards 0. ``tls_slope``: total least
    squares, the line through the mean with the smallest sum of squared orthogonal distances. It points along the first
    eigenvector of the covariance matrix, whose slope is ``(Syy - Sxx + root) / (2 Sxy)`` with
    ``root = sqrt((Syy - Sxx)^2 + 4 Sxy^2)``, or, the same and exact where Sxy is small,
    ``2 Sxy / (Sxx - Syy + root)``. Of a nearly round or upright cloud it has no steady direction: its interval is then wide.
    Without variance in x there is no slope, without variance in x or y no correlation.
    """

    def positive(variance: np.ndarray, mean_square: np.ndarray) -> np.ndarray:
        """A variance that is only rounding is none."""
        return np.where(variance > 1e-12 * mean_square, variance, 0.0)

    sxx = positive(xx / n - (x / n) ** 2, xx / n)
    syy = positive(yy / n - (y / n) ** 2, yy / n)
    sxy = np.where((sxx > 0) & (syy > 0), xy / n - (x / n) * (y / n), 0.0)
    root = np.hypot(syy - sxx, 2 * sxy)
    tls = np.where(sxx >= syy, 2 * sxy / (sxx - syy + root), (syy - sxx + root) / (2 * sxy))
    return {
        "ols_slope": sxy / sxx,
        "tls_slope": np.where(sxx > 0, tls, np.nan),
        "correlation": sxy / np.sqrt(sxx * syy),
    }
