"""Confidence intervals by bootstrap over documents (windows of one document are not independent).

Every statistic here is a function of sums over documents: a mean, a ratio of means, a slope. The sums of each
document are kept, documents are drawn with replacement, and the function receives the totals of each resample. The draws
depend only on the number of documents. All numbers of the same documents therefore share their resamples, and differences
between them are paired.

Above ``MAX_UNITS`` documents, the documents are first pooled at random into ``MAX_UNITS`` groups of equal size (plus or minus
one document), and groups are drawn instead. This bounds the time and memory of the intervals. It is still a cluster
bootstrap: the documents of a group are independent, so sums vary between groups as much as between documents, and intervals
have the same mean width and coverage. Only the noise of the width is that of ``MAX_UNITS`` units; at 10,000 units its
standard error is below 1%. This holds for statistics that do not change when all totals are doubled, such as means, ratios
and slopes. Up to the limit, each document is a unit.

Intervals are percentiles of the resamples, or BCa intervals (bias-corrected and accelerated; Efron 1987), which are better for
the few documents of a class of targets. A quantity that its formula gives as ``Ratios`` or as a ``Share`` has an interval of its
own kind (``ratios``, ``shares``), whatever the method.

Letters of shapes: W windows, U bootstrap units, X bootstrap resamples; Q quantities, H those of them that are ``Ratios``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, Generic, Literal, Optional, TypeVar

import numpy as np
import pandas as pd
from scipy.special import ndtr, ndtri  # scipy.stats takes half a second to import

from olmo_sparsity.statistics.intervals.estimate import CONFIDENCE, NORMAL_ERRORS, Estimate
from olmo_sparsity.statistics.intervals.ratios import Ratios, StudentizedRatios, Value, value_of
from olmo_sparsity.statistics.intervals.shares import OfShares

NUM_RESAMPLES = 2000
SEED = 0
MIN_DOCUMENTS = 50  # with fewer, a percentile interval is too narrow, and the gate would pass by chance
MAX_UNITS = 10_000  # units that are drawn: documents, or random groups of documents
POOL_SEED = 1  # of the assignment of documents to groups
BATCH_ELEMENTS = 4_000_000  # drawn unit numbers held at once: 8 bytes each, a few copies
KEPT_ELEMENTS = 20_000_000  # counts of draws that are kept for later estimates: 2 bytes each; others are drawn anew

SumKey = TypeVar("SumKey", bound=Hashable)
QuantityKey = TypeVar("QuantityKey", bound=Hashable)
# Totals of all documents, one value a resample, to the values of quantities, elementwise.
Quantities = Callable[[Mapping[SumKey, np.ndarray]], Mapping[QuantityKey, Value]]
IntervalMethod = Literal["percentile", "bca"]


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
        """Return the sum of ``values_W`` over the windows of each unit, float64 [U]; weighted values, for weighted means."""
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


@dataclass(frozen=True)
class Resampled(Generic[QuantityKey]):
    """Quantities, and what the bootstrap says of them.

    Attributes:
        keys: of the quantities.
        values_Q: their values over all documents, [Q].
        values_of_totals: returns the quantities [Q, ...] of totals [sums, ...]; NaN where they are undefined.
        sums_VU: the sums of every unit, [sums, U].
        ratios: by the place of the quantity, those that are ``Ratios``.
        shares: by the place of the quantity, the shares and differences of shares, of every unit.
        resampled_QX: the quantities of every resample; None with fewer than ``MIN_DOCUMENTS`` units.
        sizes_HX: the size of Student's t of the ``ratios`` in every resample; None where ``resampled_QX`` is.
    """

    keys: list[QuantityKey]
    values_Q: np.ndarray
    values_of_totals: Callable[[np.ndarray], np.ndarray]
    sums_VU: np.ndarray
    ratios: dict[int, StudentizedRatios]
    shares: dict[int, OfShares]
    resampled_QX: Optional[np.ndarray]
    sizes_HX: Optional[np.ndarray]

    def intervals(self, method: IntervalMethod) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the lower and the upper ends of the intervals, and the standard errors, [Q] each."""
        if self.resampled_QX is None or self.sizes_HX is None:
            undefined_Q = np.full(len(self.keys), np.nan)
            return undefined_Q, undefined_Q, undefined_Q
        if method == "percentile":
            low_Q, high_Q = _percentile_bounds(self.resampled_QX)
        else:
            totals_V1 = self.sums_VU.sum(axis=1, keepdims=True)
            without_one_QU = self.values_of_totals(totals_V1 - self.sums_VU)
            low_Q, high_Q = _bca_bounds(self.resampled_QX, self.values_Q, without_one_QU=without_one_QU)
        error_Q = self.resampled_QX.std(axis=1, ddof=1)
        for (at, ratios), size_X in zip(self.ratios.items(), self.sizes_HX, strict=True):
            low_Q[at], high_Q[at] = ratios.bounds(np.quantile(size_X, CONFIDENCE))
            error_Q[at] = (high_Q[at] - low_Q[at]) / (2 * NORMAL_ERRORS)
        for at, share in self.shares.items():
            with np.errstate(divide="ignore", invalid="ignore"):  # undefined where the whole is 0
                estimate = share.estimate()
            low_Q[at], high_Q[at], error_Q[at] = estimate.low, estimate.high, estimate.standard_error
        return low_Q, high_Q, error_Q


def _percentile_bounds(resampled_QX: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of percentile intervals, [Q] each; NaN where a resample is undefined."""
    num = resampled_QX.shape[1]
    ordered_QX = np.sort(resampled_QX, axis=1)  # NaN last

    def end(tail: float) -> np.ndarray:
        before, part = divmod(tail * num + (1 - tail) - 1, 1)
        end_Q = (1 - part) * ordered_QX[:, int(before)] + part * ordered_QX[:, int(before) + 1]
        return np.where(np.isnan(ordered_QX[:, -1]), np.nan, end_Q)

    tail = (1 - CONFIDENCE) / 2
    return end(tail), end(1 - tail)


def _bca_bounds(
    resampled_QX: np.ndarray, values_Q: np.ndarray, *, without_one_QU: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of BCa intervals, [Q] each; NaN where a resample or a jackknife value is undefined.

    Args:
        resampled_QX: the quantities of every resample.
        values_Q: the quantities over all documents.
        without_one_QU: the quantities without one of the units (jackknife).
    """
    influence_QU = without_one_QU.mean(axis=1, keepdims=True) - without_one_QU
    squares_Q = (influence_QU**2).sum(axis=1)
    cubes_Q = (influence_QU**3).sum(axis=1)
    acceleration_Q = np.divide(cubes_Q, 6 * squares_Q**1.5, out=np.zeros_like(cubes_Q), where=squares_Q != 0)
    value_Q1 = values_Q[:, None]
    share_Q = ((resampled_QX < value_Q1).mean(axis=1) + (resampled_QX <= value_Q1).mean(axis=1)) / 2
    smallest = 0.5 / resampled_QX.shape[1]
    bias_Q = ndtri(share_Q.clip(smallest, 1 - smallest))
    ordered_QX, last = np.sort(resampled_QX, axis=1), resampled_QX.shape[1] - 1
    rows_Q, is_defined_Q = np.arange(len(values_Q)), np.isfinite(resampled_QX).all(axis=1)

    def end(tail: float) -> np.ndarray:
        shifted_Q = bias_Q + ndtri(tail)
        place_Q = ndtr(bias_Q + shifted_Q / (1 - acceleration_Q * shifted_Q)) * last
        is_known_Q = is_defined_Q & np.isfinite(place_Q)
        before_Q = np.where(is_known_Q, place_Q, 0).astype(int)
        step_Q = ordered_QX[rows_Q, np.minimum(before_Q + 1, last)] - ordered_QX[rows_Q, before_Q]
        return np.where(is_known_Q, ordered_QX[rows_Q, before_Q] + (place_Q - before_Q) * step_Q, np.nan)

    return end((1 - CONFIDENCE) / 2), end((1 + CONFIDENCE) / 2)


def resample(
    sums: Mapping[SumKey, np.ndarray], quantities: Quantities[SumKey, QuantityKey], *, num_resamples: int
) -> Resampled[QuantityKey]:
    """Return the quantities over all documents and over each resample; arguments as of ``estimates``."""
    keys, sums_VU = list(sums), np.stack([np.asarray(sums_U, dtype=np.float64) for sums_U in sums.values()])
    num_units = sums_VU.shape[1]

    def of_totals(totals: np.ndarray) -> Mapping[QuantityKey, Value]:
        with np.errstate(divide="ignore", invalid="ignore"):
            return quantities(dict(zip(keys, totals, strict=True)))

    def values_of_totals(totals: np.ndarray) -> np.ndarray:
        values = np.stack([value_of(value) for value in of_totals(totals).values()]).astype(np.float64)
        return np.where(np.isfinite(values), values, np.nan)

    values = of_totals(sums_VU.sum(axis=1))
    of_units = of_totals(sums_VU) if any(isinstance(value, (Ratios, OfShares)) for value in values.values()) else {}
    ratios = {
        at: StudentizedRatios(of_unit)
        for at, (key, value) in enumerate(values.items())
        if isinstance(value, Ratios) and isinstance(of_unit := of_units[key], Ratios)
    }
    shares = {at: of for at, key in enumerate(values) if isinstance(of := of_units.get(key), OfShares)}
    products_PU = [product_U for of in ratios.values() for product_U in of.products()]
    all_sums_VU = np.concatenate([sums_VU, np.array(products_PU).reshape(-1, num_units)])

    resampled_QX, sizes_HX = None, None
    if num_units >= MIN_DOCUMENTS:
        of_batches, sizes_of_batches = [], []
        for counts_XU in _drawn_counts(num_units, num_resamples):
            totals_VX = all_sums_VU @ counts_XU.T.astype(np.float64)
            of_batches.append(values_of_totals(totals_VX[: len(keys)]))
            products = iter(totals_VX[len(keys) :])
            sizes = [of.size_of_t(list(islice(products, of.num_products))) for of in ratios.values()]
            sizes_of_batches.append(np.array(sizes).reshape(-1, len(counts_XU)))
        resampled_QX, sizes_HX = np.concatenate(of_batches, axis=1), np.concatenate(sizes_of_batches, axis=1)
    values_Q = np.array([float(value_of(value)) for value in values.values()])
    return Resampled(list(values), values_Q, values_of_totals, sums_VU, ratios, shares, resampled_QX, sizes_HX)


def _drawn_counts(num_units: int, num_resamples: int) -> Iterable[np.ndarray]:
    """Return how often each unit was drawn in each resample, uint16 [X, U], in batches of resamples."""
    if num_units * num_resamples > KEPT_ELEMENTS:
        return _draw_counts(num_units, num_resamples)
    return _kept_counts(num_units, num_resamples)


@lru_cache(maxsize=4)  # of the whole measurement and of some of its parts
def _kept_counts(num_units: int, num_resamples: int) -> list[np.ndarray]:
    return list(_draw_counts(num_units, num_resamples))


def _draw_counts(num_units: int, num_resamples: int) -> Iterator[np.ndarray]:
    rng, batch = np.random.default_rng(SEED), max(1, BATCH_ELEMENTS // num_units)
    for begin in range(0, num_resamples, batch):
        drawn_XU = rng.integers(0, num_units, (min(batch, num_resamples - begin), num_units))
        drawn_XU += np.arange(len(drawn_XU))[:, None] * num_units
        counts = np.bincount(drawn_XU.ravel(), minlength=drawn_XU.size)
        yield counts.reshape(drawn_XU.shape).astype(np.uint16)


def _estimate(mean: float, *, low: float, high: float, standard_error: float) -> Optional[Estimate]:
    if not np.isfinite(mean):
        return None
    if not (np.isfinite(low) and np.isfinite(high)):
        return Estimate(float(mean))
    return Estimate(float(mean), float(low), float(high), float(standard_error))


def estimates(
    sums: Mapping[SumKey, np.ndarray],
    quantities: Quantities[SumKey, QuantityKey],
    *,
    num_resamples: int = NUM_RESAMPLES,
    method: IntervalMethod = "percentile",
) -> dict[QuantityKey, Optional[Estimate]]:
    """Estimate functions of sums over documents, with 95% intervals that all share the same resamples.

    Args:
        sums: key -> float [U], a sum over the windows of each unit (``document_units``).
        quantities: takes the totals over all documents, key -> float [...] (one value a resample), and returns the values
            of the quantities, key -> float [...], computed elementwise.
        num_resamples: number of resamples; fewer are faster and give coarser intervals.
        method: the kind of interval.

    Returns:
        key -> estimate. It has no interval with fewer than ``MIN_DOCUMENTS`` documents, or where the quantity is undefined
        in some resample. It is None where the quantity itself is undefined (such as a slope without variance).
    """
    resampled = resample(sums, quantities, num_resamples=num_resamples)
    columns = (resampled.values_Q, *resampled.intervals(method))
    return {
        key: _estimate(value, low=low, high=high, standard_error=error)
        for key, value, low, high, error in zip(resampled.keys, *columns, strict=True)
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


def of_some(estimate: Optional[Estimate], weight_U: np.ndarray) -> Optional[Estimate]:
    """Return an estimate of some of the windows, without its interval where fewer than ``MIN_DOCUMENTS`` units have any of them.

    Args:
        estimate: made from the sums of all units.
        weight_U: the weight, or the number, of these windows in each unit.
    """
    if estimate is None or np.count_nonzero(weight_U) >= MIN_DOCUMENTS:
        return estimate
    return estimate.without_interval()
