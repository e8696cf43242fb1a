"""Confidence intervals by bootstrap over documents (windows of one document are not independent).

Every statistic here is a function of sums over documents: a mean, a ratio of means, a slope, a smallest k. The sums of each
document are kept, documents are drawn with replacement, and the function receives the totals of each resample. The draws
depend only on the number of documents. All numbers of the same documents therefore share their resamples, and differences
between them are paired.

Above ``MAX_UNITS`` documents, the documents are first pooled at random into ``MAX_UNITS`` groups of equal size (plus or minus
one document), and groups are drawn instead. This bounds the time and memory of the intervals. It is still a cluster
bootstrap: the documents of a group are independent, so sums vary between groups as much as between documents, and intervals
have the same mean width and coverage. Only the noise of the width is that of ``MAX_UNITS`` units; at 10,000 units its
standard error is below 1%. This holds for statistics that do not change when all totals are doubled, such as means, ratios
and slopes. Up to the limit, each document is a unit.

Letters of shapes: W windows, U bootstrap units, X bootstrap resamples; Q quantities.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Optional, TypeVar

import numpy as np
import pandas as pd
from scipy.stats import DegenerateDataWarning, bootstrap

from olmo_sparsity.statistics.estimate import Estimate, WholeEstimate

CONFIDENCE = 0.95
NUM_RESAMPLES = 2000
SEED = 0
MIN_DOCUMENTS = 20  # with fewer, a percentile interval is much too narrow, and the gate would pass by luck
MAX_UNITS = 10_000  # units that are drawn: documents, or random groups of documents
POOL_SEED = 1  # of the assignment of documents to groups
BATCH_ELEMENTS = 4_000_000  # drawn unit numbers held at once: 8 bytes each, a few copies

SumKey = TypeVar("SumKey", bound=Hashable)
QuantityKey = TypeVar("QuantityKey", bound=Hashable)
# Totals of all documents, one value a resample, to the values of quantities, elementwise.
Quantities = Callable[[Mapping[SumKey, np.ndarray]], Mapping[QuantityKey, np.ndarray]]


@dataclass(frozen=True)
class Units:
    """The units that the bootstrap draws, and the windows in them.

    Attributes:
        unit_W: the unit of each window, int64 [W].
        num_units: U, the number of units.
    """

    unit_W: np.ndarray
    num_units: int

    def sums(self, values_W: Any) -> np.ndarray:
        """Return the sum of ``values_W`` over the windows of each unit, float64 [U]."""
        return np.bincount(self.unit_W, weights=np.asarray(values_W, dtype=np.float64), minlength=self.num_units)

    def counts(self) -> np.ndarray:
        """Return the number of windows of each unit, float64 [U]."""
        return self.sums(np.ones(len(self.unit_W)))

    def zeros(self) -> np.ndarray:
        """Return a sum of nothing, float64 [U], to add to."""
        return np.zeros(self.num_units)


def document_units(doc_ids: pd.Series) -> Units:
    """Assign windows to units by their documents.

    A unit is a document, or a random group of documents where there are more than ``MAX_UNITS``. The same documents in the
    same order always get the same units.

    Args:
        doc_ids: the document of each window, str [W].
    """
    names: Any = doc_ids.astype("string[pyarrow]").array  # Arrow compares strings without making Python objects
    unit_W, documents = pd.factorize(names)
    num_units = min(len(documents), MAX_UNITS)
    if num_units < len(documents):
        shuffled = np.random.default_rng(POOL_SEED).permutation(len(documents))
        unit_W = (shuffled % num_units)[unit_W]
    return Units(unit_W, num_units)


def _resample(
    sums: Mapping[SumKey, np.ndarray], quantities: Quantities[SumKey, QuantityKey], *, num_resamples: int
) -> tuple[list[QuantityKey], np.ndarray, Optional[Any]]:
    """Return the keys of the quantities, their values [Q], and scipy's bootstrap result with a distribution [Q, X].

    The result is None with fewer than ``MIN_DOCUMENTS`` units.
    """
    keys, sums_VU = list(sums), np.stack([np.asarray(sums_U, dtype=np.float64) for sums_U in sums.values()])
    num_units = sums_VU.shape[1]

    def of_totals(totals: np.ndarray) -> Mapping[QuantityKey, np.ndarray]:
        with np.errstate(divide="ignore", invalid="ignore"):
            return quantities(dict(zip(keys, totals, strict=True)))

    def of_drawn(drawn_XU: np.ndarray, axis: int) -> np.ndarray:
        """Return the quantities [Q, X] of some resamples. Each unit's sums are weighted by how often it was drawn."""
        offsets = np.arange(len(drawn_XU))[:, None] * num_units
        drawn = (drawn_XU.astype(np.int64) + offsets).ravel()
        counts_XU = np.bincount(drawn, minlength=drawn_XU.size).reshape(drawn_XU.shape)
        totals_VX = sums_VU @ counts_XU.T.astype(np.float64)
        values_QX = np.stack(list(of_totals(totals_VX).values())).astype(np.float64)
        return np.where(np.isfinite(values_QX), values_QX, np.nan)

    values = of_totals(sums_VU.sum(axis=1))
    result = None
    if num_units >= MIN_DOCUMENTS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DegenerateDataWarning)  # such quantities have no interval
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


def _estimate(mean: float, *, low: float, high: float) -> Optional[Estimate]:
    if not np.isfinite(mean):
        return None
    if not (np.isfinite(low) and np.isfinite(high)):
        return Estimate(float(mean))
    return Estimate(float(mean), float(low), float(high))


def estimates(
    sums: Mapping[SumKey, np.ndarray],
    quantities: Quantities[SumKey, QuantityKey],
    *,
    num_resamples: int = NUM_RESAMPLES,
) -> dict[QuantityKey, Optional[Estimate]]:
    """Estimate functions of sums over documents, with 95% percentile intervals that all share the same resamples.

    Args:
        sums: key -> float [U], a sum over the windows of each unit (``document_units``).
        quantities: takes the totals over all documents, key -> float [...] (one value a resample), and returns the values
            of the quantities, key -> float [...], computed elementwise.
        num_resamples: number of resamples; fewer are faster and give coarser intervals.

    Returns:
        key -> estimate. It has no interval with fewer than ``MIN_DOCUMENTS`` documents, or where the quantity is undefined
        in some resample. It is None where the quantity itself is undefined (such as a slope without variance).
    """
    keys, values_Q, result = _resample(sums, quantities, num_resamples=num_resamples)
    undefined_Q = np.full(len(keys), np.nan)
    low_Q, high_Q = (undefined_Q, undefined_Q) if result is None else result.confidence_interval
    return {
        key: _estimate(value, low=low, high=high)
        for key, value, low, high in zip(keys, values_Q, low_Q, high_Q, strict=True)
    }


def defined_estimates(
    sums: Mapping[SumKey, np.ndarray], quantities: Quantities[SumKey, QuantityKey]
) -> dict[QuantityKey, Estimate]:
    """As ``estimates``, for quantities that are defined whatever was measured, such as means over a document or more."""
    defined = {}
    for key, estimate in estimates(sums, quantities).items():
        assert estimate is not None, key
        defined[key] = estimate
    return defined


def attained_estimates(
    sums: Mapping[SumKey, np.ndarray],
    quantities: Quantities[SumKey, QuantityKey],
    *,
    num_resamples: int = NUM_RESAMPLES,
) -> dict[QuantityKey, WholeEstimate]:
    """As ``estimates``, for whole numbers. The bounds are order statistics: numbers that some resample attained, never
    numbers between two of them."""
    keys, values_Q, result = _resample(sums, quantities, num_resamples=num_resamples)
    if result is None:
        return {key: WholeEstimate(int(value)) for key, value in zip(keys, values_Q, strict=True)}
    tails = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
    low_Q, high_Q = np.quantile(result.bootstrap_distribution, tails, axis=-1, method="inverted_cdf")
    return {
        key: WholeEstimate(int(value), int(low), int(high))
        for key, value, low, high in zip(keys, values_Q, low_Q, high_Q, strict=True)
    }
