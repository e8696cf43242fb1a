"""95% intervals of functions of sums over documents: bootstrap, exact intervals of shares, bootstrap-t of D(k), seeds.

Windows of one document are not independent, so documents are drawn, with replacement. Every quantity is a function of sums over
documents: a mean, a ratio of means, a share. The draws depend on the number of documents alone, so all quantities of the same
documents share their resamples, and differences between them are paired.

Above ``MAX_UNITS`` documents, random groups of documents of equal size are drawn instead, which bounds time and memory.
Intervals keep their mean width and coverage, since sums vary between groups as much as between documents.
``benchmarks/coverage.py`` simulates the coverage of every kind of interval here.

Letters of shapes: W windows, U units that are drawn, X resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any, NamedTuple, Union

import numpy as np
import pandas as pd

from olmo_sparsity.config import MIN_DOCUMENTS

CONFIDENCE = 0.95
NORMAL_ERRORS = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)  # from the middle of a normal interval to its ends
NUM_RESAMPLES = 2000
SEED = 0
MAX_UNITS = 10_000
POOL_SEED = 1  # of the assignment of documents to groups
BATCH_ELEMENTS = 4_000_000  # drawn unit numbers held at once: 8 bytes each, a few copies
KEPT_ELEMENTS = 20_000_000  # counts of draws that are kept for later estimates: 2 bytes each; others are drawn again
NO_LOGARITHM = 1e-6  # a ratio below it is rounding error
SMALLEST_SHARE = 1e-6  # of the variance of a resample that the correction for its own ratio leaves at least
NO_VARIANCE = 1e-12  # a smaller standard error is rounding error: no document differs from another

Sums = Mapping[str, np.ndarray]  # name -> float64 [..., U]


class Estimates(NamedTuple):
    """Values with 95% intervals and standard errors, float64 [...]; NaN where there is none."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    se: np.ndarray


@dataclass(frozen=True)
class Units:
    """The unit of each window, int64 [W], and the number of units."""

    unit_W: np.ndarray
    num: int

    def sums(self, values: Any) -> np.ndarray:
        """Sums over the windows of each unit, float64 [..., U], of values [..., W]."""
        values = np.asarray(values, dtype=np.float64)
        rows = values.reshape(-1, values.shape[-1])
        sums = [np.bincount(self.unit_W, weights=row, minlength=self.num) for row in rows]
        return np.array(sums).reshape(*values.shape[:-1], self.num)


def document_units(doc_ids: pd.Series) -> Units:
    """The documents of windows as units, or random groups of them where there are more than ``MAX_UNITS``."""
    names: Any = doc_ids.astype("string[pyarrow]").array  # Arrow compares strings without making Python objects
    unit_W, documents = pd.factorize(names)
    num = min(len(documents), MAX_UNITS)
    if num < len(documents):
        unit_W = (np.random.default_rng(POOL_SEED).permutation(len(documents)) % num)[unit_W]
    return Units(unit_W, num)


@dataclass(frozen=True)
class Share:
    """The share of a part in a whole: its interval is exact (Clopper and Pearson 1934).

    It is that of as many independent documents as would give the linearized standard error (Korn and Graubard 1998). Near 0 and 1
    percentiles of resamples miss too often. ``is_all``: the part is the whole by definition, so a share of 1 is no estimate.
    """

    part: np.ndarray  # [..., U]
    whole: np.ndarray  # [U]
    is_all: Any = False

    @property
    def value(self) -> np.ndarray:
        """The share, float [...]."""
        return np.asarray(self.part / self.whole)

    @property
    def rest(self) -> np.ndarray:
        """What each unit adds to the share of all units, [..., U]."""
        whole = self.whole.sum()
        return np.asarray((self.part - self.part.sum(axis=-1, keepdims=True) / whole * self.whole) / whole)

    def estimates(self) -> Estimates:
        """The shares of all units with their intervals, [...]."""
        whole = self.whole.sum()
        share = self.part.sum(axis=-1) / whole
        error = np.sqrt((self.rest**2).sum(axis=-1))
        # Where no document differs, each counts by its weight, as if its windows were one.
        documents = np.where(
            error > NO_VARIANCE,
            share * (1 - share) / np.maximum(error, NO_VARIANCE) ** 2,
            whole**2 / (self.whole**2).sum(),
        )
        low, high = exact_interval(share, documents, size=NORMAL_ERRORS)
        is_known = np.squeeze(np.asarray(self.is_all), axis=-1) if np.ndim(self.is_all) else np.asarray(self.is_all)
        low = np.where(is_known & (share >= 1), 1.0, low)
        return Estimates(share, low, high, (high - low) / (2 * NORMAL_ERRORS))


@dataclass(frozen=True)
class ShareDifference:
    """A share minus another one, of the same windows or of others.

    Its interval is made of theirs, and of their correlation over the documents (Newcombe 1998, method 10).
    """

    first: Share
    second: Share

    @property
    def value(self) -> np.ndarray:
        """The difference, float [...]."""
        return np.asarray(self.first.value - self.second.value)

    def estimates(self) -> Estimates:
        """The differences of all units with their intervals, [...]."""
        one, other = self.first.estimates(), self.second.estimates()
        rest, other_rest = self.first.rest, self.second.rest
        size = np.sqrt((rest**2).sum(axis=-1) * (other_rest**2).sum(axis=-1))
        product = (rest * other_rest).sum(axis=-1)
        correlation = np.divide(product, size, out=np.zeros_like(size), where=size > 0)

        def reach(away: np.ndarray, other_away: np.ndarray) -> np.ndarray:
            square = away**2 - 2 * correlation * away * other_away + other_away**2
            return np.asarray(np.sqrt(np.maximum(0.0, square)))

        value = one.value - other.value
        below = reach(one.value - one.low, other.high - other.value)
        above = reach(one.high - one.value, other.value - other.low)
        return Estimates(value, value - below, value + above, (below + above) / (2 * NORMAL_ERRORS))


@dataclass(frozen=True)
class Ratio:
    """``1 - left / whole``, such as D(k), whose sums have heavy tails: its interval is a symmetric bootstrap-t.

    A few windows hold most of a divergence. Where they are few, resamples vary too little. Student's t takes this into account:
    each resample has a standard error of its own, and the interval reaches as many standard errors to either side as 95% of the
    resamples lie from the ratio of all documents. The scale is the logarithm of ``left / whole``.
    """

    left: np.ndarray
    whole: np.ndarray

    @property
    def value(self) -> np.ndarray:
        """``1 - left / whole``, float [...]."""
        return np.asarray(1 - self.left / self.whole)

    def _of_all(self) -> tuple[np.ndarray, np.ndarray]:
        """``left / whole`` of all units, [...], and what each unit adds to its linearization, [..., U], not yet divided."""
        of_all = self.left.sum(axis=-1) / self.whole.sum(axis=-1)
        return of_all, self.left - of_all[..., None] * self.whole

    def distances(self, counts_UX: np.ndarray) -> np.ndarray:
        """How many standard errors of its own each resample lies from the ratio of all units, [..., X]."""
        of_all, rest = self._of_all()
        whole = np.broadcast_to(self.whole, rest.shape)
        parts = np.stack([rest, whole, rest**2, rest * whole, whole**2])
        rest, whole, squares, cross, whole_squares = parts @ counts_UX
        change = rest / whole
        variance = (squares - 2 * change * cross + change**2 * whole_squares) / whole**2
        error = np.sqrt(np.maximum(variance, SMALLEST_SHARE * squares / whole**2))
        resampled = of_all[..., None] + change
        is_logarithmic = of_all[..., None] > NO_LOGARITHM
        logarithm = np.log(np.where(is_logarithmic, resampled / of_all[..., None], 1.0)) * resampled
        return np.where(change == 0, 0.0, np.abs(np.where(is_logarithmic, logarithm, change)) / error)

    def estimates(self, distances: np.ndarray) -> Estimates:
        """The ratios of all units with their intervals, [...]; ``distances`` are those of all resamples."""
        of_all, rest = self._of_all()
        half = np.quantile(distances, CONFIDENCE, axis=-1) * np.sqrt((rest**2).sum(axis=-1)) / self.whole.sum(axis=-1)
        is_logarithmic = of_all > NO_LOGARITHM
        low = np.where(is_logarithmic, 1 - of_all * np.exp(half / of_all), 1 - of_all - half)
        high = np.where(is_logarithmic, 1 - of_all * np.exp(-half / of_all), 1 - of_all + half)
        return Estimates(1 - of_all, low, high, (high - low) / (2 * NORMAL_ERRORS))


Value = Union[np.ndarray, Share, ShareDifference, Ratio]
Formula = Callable[..., Mapping[str, Value]]  # of the totals of each model, name -> float [..., any]; elementwise


def minus(second: Value, first: Value) -> Value:
    """The difference of two values; a share minus a share keeps its own kind of interval, D(k) has no difference."""
    if isinstance(second, Ratio) or isinstance(first, Ratio):
        return np.full(np.shape(number(second)), np.nan)
    if isinstance(second, Share) and isinstance(first, Share):
        return ShareDifference(second, first)
    return number(second) - number(first)


def number(value: Value) -> np.ndarray:
    """A value as numbers, float64 [...]; NaN where it is undefined."""
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.asarray(value if isinstance(value, np.ndarray) else value.value, dtype=np.float64)
    return np.where(np.isfinite(values), values, np.nan)


@np.errstate(all="ignore")
def bootstrap(models: Sequence[Sequence[Sums]], formula: Formula) -> dict[str, Estimates]:
    """Estimate functions of sums over documents.

    Args:
        models: for each model and each of its seeds, name -> sums over the windows of each unit, float64 [..., U]. All are of the
            same units. The sums of the seeds are averaged, so a ratio is a ratio of means over seeds.
        formula: takes the totals of each model and returns the quantities. It must be elementwise in the last axis.

    Returns:
        name -> estimates [...]. There are no intervals with fewer than ``MIN_DOCUMENTS`` units, or where a quantity is
        undefined in some resample. Where a model has several seeds, intervals are Student's t of two parts: the bootstrap
        variance over documents and the jackknife variance over seeds, with the degrees of freedom of Welch and Satterthwaite.
        Seeds and documents are crossed; the part that both hold makes intervals slightly wider.
    """
    sums = [_mean(seeds) for seeds in models]
    num_units = sums[0][next(iter(sums[0]))].shape[-1]
    values = _values_of_all(sums, formula)
    if num_units < MIN_DOCUMENTS:
        return {name: _without_interval(value) for name, value in values.items()}
    kinds = dict(formula(*sums))
    drawn: dict[str, list[np.ndarray]] = {name: [] for name, of in kinds.items() if isinstance(of, (np.ndarray, Ratio))}
    for counts_UX in drawn_counts(num_units):
        resampled = formula(*({name: values @ counts_UX for name, values in of.items()} for of in sums))
        for name, of_batches in drawn.items():
            kind = kinds[name]
            of_batches.append(kind.distances(counts_UX) if isinstance(kind, Ratio) else number(resampled[name]))
    seed_variances, found = _seed_variances(models, sums, formula), {}
    for name, kind in kinds.items():
        if isinstance(kind, Ratio):
            estimates = kind.estimates(np.concatenate(drawn[name], axis=-1))
        elif isinstance(kind, np.ndarray):
            estimates = _percentiles(values[name], np.concatenate(drawn[name], axis=-1))
        else:
            estimates = kind.estimates()
        is_share = isinstance(kind, (Share, ShareDifference))
        of_seeds = [(variance[name], freedom) for variance, freedom in seed_variances]
        found[name] = _only_whole(with_seeds(estimates, of_seeds, num_units=num_units, is_share=is_share))
    return found


def _mean(seeds: Sequence[Sums]) -> dict[str, np.ndarray]:
    return {name: np.mean([of_seed[name] for of_seed in seeds], axis=0) for name in seeds[0]}


def _values_of_all(sums: Sequence[Sums], formula: Formula) -> dict[str, np.ndarray]:
    """The quantities of all units together, [...]."""
    totals = [{name: values.sum(axis=-1, keepdims=True) for name, values in of.items()} for of in sums]
    return {name: number(value)[..., 0] for name, value in formula(*totals).items()}


def drawn_counts(num_units: int) -> Iterator[np.ndarray]:
    """How often each unit was drawn in each of ``NUM_RESAMPLES`` resamples, float64 [U, some of X], in batches."""
    kept = _kept_counts(num_units) if num_units * NUM_RESAMPLES <= KEPT_ELEMENTS else _draw_counts(num_units)
    for counts_XU in kept:
        yield counts_XU.T.astype(np.float64)


@lru_cache(maxsize=4)  # of the whole measurement and of some of its classes
def _kept_counts(num_units: int) -> list[np.ndarray]:
    return list(_draw_counts(num_units))


def _draw_counts(num_units: int) -> Iterator[np.ndarray]:
    rng, batch = np.random.default_rng(SEED), max(1, BATCH_ELEMENTS // num_units)
    for begin in range(0, NUM_RESAMPLES, batch):
        drawn_XU = rng.integers(0, num_units, (min(batch, NUM_RESAMPLES - begin), num_units))
        drawn_XU += np.arange(len(drawn_XU))[:, None] * num_units
        counts = np.bincount(drawn_XU.ravel(), minlength=drawn_XU.size)
        yield counts.reshape(drawn_XU.shape).astype(np.uint16)


def _percentiles(value: np.ndarray, resampled: np.ndarray) -> Estimates:
    low, high = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=-1)
    return Estimates(value, low, high, resampled.std(axis=-1, ddof=1))


def _seed_variances(
    models: Sequence[Sequence[Sums]], means: Sequence[Sums], formula: Formula
) -> list[tuple[dict[str, np.ndarray], int]]:
    """The jackknife variance over the seeds of each model that has two or more, with its degrees of freedom."""
    parts = []
    for at, seeds in enumerate(models):
        if len(seeds) < 2:
            continue
        without_one = []
        for left_out in range(len(seeds)):
            others = _mean([of_seed for seed, of_seed in enumerate(seeds) if seed != left_out])
            without_one.append(_values_of_all([*means[:at], others, *means[at + 1 :]], formula))
        variances = {
            name: (len(seeds) - 1) * np.var([of_others[name] for of_others in without_one], axis=0)
            for name in without_one[0]
        }
        parts.append((variances, len(seeds) - 1))
    return parts


def with_seeds(
    estimates: Estimates, parts: Sequence[tuple[np.ndarray, int]], *, num_units: int, is_share: bool
) -> Estimates:
    """Return intervals that include the seeds; those of shares reach further to one side than to the other."""
    if not parts:
        return estimates
    value, low, high, se = estimates
    below, above = ((value - low) / NORMAL_ERRORS, (high - value) / NORMAL_ERRORS) if is_share else (se, se)
    low = value - half_width([(below**2, num_units - 1), *parts])
    high = value + half_width([(above**2, num_units - 1), *parts])
    return Estimates(value, low, high, np.sqrt(se**2 + np.sum([variance for variance, _ in parts], axis=0)))


def half_width(parts: Sequence[tuple[np.ndarray, int]]) -> np.ndarray:
    """Half the width of a 95% t interval whose variance is the sum of independently estimated parts, float [...].

    Args:
        parts: a variance and its degrees of freedom each. Those of the sum are Welch's and Satterthwaite's.
    """
    from scipy.special import stdtrit  # scipy takes longer to import than a summary to print

    variance = np.sum([part for part, _ in parts], axis=0)
    squares = np.sum([part**2 / freedom for part, freedom in parts], axis=0)
    freedom = np.divide(variance**2, squares, out=np.ones_like(variance), where=squares > 0)
    return np.asarray(stdtrit(freedom, (1 + CONFIDENCE) / 2) * np.sqrt(variance))


def _only_whole(estimates: Estimates) -> Estimates:
    """Return the estimates without intervals that lack an end."""
    value, *interval = estimates
    is_whole = np.isfinite(value) & np.isfinite(estimates.low) & np.isfinite(estimates.high)
    return Estimates(value, *(np.where(is_whole, of, np.nan) for of in interval))


def _without_interval(value: np.ndarray) -> Estimates:
    missing = np.full(np.shape(value), np.nan)
    return Estimates(value, missing, missing, missing)


def exact_interval(share: np.ndarray, documents: np.ndarray, *, size: float) -> tuple[np.ndarray, np.ndarray]:
    """Ends of Clopper-Pearson intervals of shares of so many independent documents, float [...] each.

    ``size``: they have the confidence that a normal variable lies within so many standard errors.
    """
    from scipy.special import betainccinv, betaincinv

    tail, part = NormalDist().cdf(-size), share * documents
    with np.errstate(all="ignore"):
        low, high = betaincinv(part, documents - part + 1, tail), betainccinv(part + 1, documents - part, tail)
    return np.where(share <= 0, 0.0, low), np.where(share >= 1, 1.0, high)


MAX_SHARES = 4000  # of one pass over the resamples, which keeps 8 bytes of each share and resample


def share_bands(part_CPU: np.ndarray, weight_U: np.ndarray) -> Estimates:
    """Shares of C cumulative distributions with simultaneous 95% bands, one band for each, [C, P].

    A band is of sup-t type (Montiel Olea and Plagborg-Moller 2019): in 95% of the resamples the largest distance, in standard
    errors, between the resample's distribution and that of all documents is at most the band's size. As of a share alone, each
    interval is an exact binomial one.

    Args:
        part_CPU: the weight of the windows at or below each value, which rises with the value, summed over each unit.
        weight_U: the weight of all windows of each unit.
    """
    num_curves, num_values, num_units = part_CPU.shape
    share_CP = part_CPU.sum(axis=-1) / weight_U.sum()
    if num_units < MIN_DOCUMENTS:
        return _without_interval(share_CP)
    step, bands = max(1, MAX_SHARES // num_values), []
    for begin in range(0, num_curves, step):
        rows = part_CPU[begin : begin + step]
        sums = np.concatenate([weight_U[None], rows.reshape(-1, num_units)])
        totals = np.concatenate([sums @ counts_UX for counts_UX in drawn_counts(num_units)], axis=1)
        resampled = (totals[1:] / totals[0]).reshape(*rows.shape[:2], -1)
        bands += [_band(*of, weight_U=weight_U) for of in zip(share_CP[begin : begin + step], resampled, strict=True)]
    return Estimates(share_CP, *(np.stack(of) for of in zip(*bands, strict=True)))


def _band(
    share_P: np.ndarray, resampled_PX: np.ndarray, *, weight_U: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    error_P = resampled_PX.std(axis=1, ddof=1)
    varies_P = error_P > NO_VARIANCE
    size = NORMAL_ERRORS  # at least that of one interval alone
    if varies_P.any():
        away_PX = np.abs(resampled_PX - share_P[:, None])[varies_P] / error_P[varies_P, None]
        size = max(size, float(np.quantile(away_PX.max(axis=0), CONFIDENCE)))
    documents_P = np.full(len(share_P), weight_U.sum() ** 2 / (weight_U**2).sum())
    documents_P[varies_P] = (share_P * (1 - share_P))[varies_P] / error_P[varies_P] ** 2
    low_P, high_P = exact_interval(share_P, documents_P, size=size)
    # The truth rises, too.
    return np.maximum.accumulate(low_P), np.minimum.accumulate(high_P[::-1])[::-1], error_P
