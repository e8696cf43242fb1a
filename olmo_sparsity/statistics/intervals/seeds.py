"""Numbers of models that were trained with several seeds, with intervals that include the choice of the seed.

Runs that differ in the seed of training only are one model. Its number is the number of the mean model: every sum over windows
is averaged over the seeds, and the quantity is computed from these averages. For a mean this is the mean over the seeds; a ratio
is the ratio of the means over the seeds, never a mean of ratios, so a seed whose denominator is near 0 does no harm.

**Assumption.** Seeds are drawn at random and independently, documents too, and the runs are measured on the same windows: seeds
and documents are crossed. The estimate of seed s then is ``mu + a_s + mean over documents of (b_d + c_sd)``, with the effects of
the seed, of the document, and of both. The variance of the mean over S seeds is estimated by the sum of two parts:

- seeds: the variance between the seeds' estimates, divided by S; S - 1 degrees of freedom. It estimates the part of a and c.
- documents: the bootstrap variance of the mean over the seeds; documents - 1 degrees of freedom. It holds b and c.

The part of c is in both, which makes intervals slightly wider. The interval is Student's t with the degrees of freedom of Welch
and Satterthwaite. In simulations (tests/statistics/test_seeds.py) it covers the truth in 95% of cases where documents matter more
than seeds; where seeds matter most, in 94% with five seeds, 92% with three, and only 88% with two, whose variance is estimated as
near 0 too often.

The interval over documents of a share, or of a difference of shares (``shares``), reaches further to one side than to the other.
So each side has its own variance over documents: that of a normal interval that reaches as far.

For quantities that are no means, the variance between seeds is that of the jackknife over seeds, which for a mean is the sample
variance divided by S. Models are independent of one another: each adds its own part. A model with one seed adds none, and its
interval includes the choice of documents only.

Letters of shapes: S seeds, Q quantities, U bootstrap units.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Optional

import numpy as np
from scipy.special import stdtrit

from olmo_sparsity.statistics.intervals.bootstrap import QuantityKey, SumKey, estimates
from olmo_sparsity.statistics.intervals.estimate import CONFIDENCE, NORMAL_ERRORS, Estimate
from olmo_sparsity.statistics.intervals.ratios import Value, value_of
from olmo_sparsity.statistics.intervals.shares import OfShares

# Totals of each model to the values of quantities, elementwise.
QuantitiesOfModels = Callable[[Sequence[Mapping[SumKey, np.ndarray]]], Mapping[QuantityKey, Value]]
# Sums over the windows of each unit, float64 [U]: by model, by seed, by key.
SumsOfModels = Sequence[Sequence[Mapping[SumKey, np.ndarray]]]


@dataclass(frozen=True)
class VariancePart:
    """A part of the variance of an estimate.

    Attributes:
        variance: float [...].
        degrees_of_freedom: of its own estimate.
    """

    variance: np.ndarray
    degrees_of_freedom: int


def half_width(parts: Sequence[VariancePart]) -> np.ndarray:
    """Return half the width of a 95% t interval whose variance is the sum of independently estimated parts, float [...].

    The degrees of freedom are those of Welch and Satterthwaite: the square of the sum of the parts, divided by the sum of their
    squares, each over its own degrees of freedom.
    """
    variance = np.sum([part.variance for part in parts], axis=0)
    squares = np.sum([part.variance**2 / part.degrees_of_freedom for part in parts], axis=0)
    # Without any variance the interval is a point, whatever the degrees of freedom.
    degrees_of_freedom = np.divide(variance**2, squares, out=np.ones_like(variance), where=squares > 0)
    return np.asarray(stdtrit(degrees_of_freedom, (1 + CONFIDENCE) / 2) * np.sqrt(variance))


def estimates_over_seeds(
    sums: SumsOfModels[SumKey], quantities: QuantitiesOfModels[SumKey, QuantityKey]
) -> dict[QuantityKey, Optional[Estimate]]:
    """Estimate functions of sums over documents, of one model or several, with intervals that include the seeds.

    Args:
        sums: for each model and each of its seeds, key -> float [U]. All are of the same windows, in the same units.
        quantities: takes the totals of each model and returns the values of the quantities, as in ``estimates``.

    Returns:
        key -> estimate. Where every model has one seed, it is that of ``estimates``. Otherwise it has no interval where
        ``estimates`` has none, or where the quantity is undefined without one of the seeds.
    """
    means = {
        (model, key): np.mean([of_seed[key] for of_seed in seeds], axis=0)
        for model, seeds in enumerate(sums)
        for key in seeds[0]
    }

    def of_means(totals: Mapping[tuple[int, SumKey], np.ndarray]) -> Mapping[QuantityKey, Value]:
        return quantities([{key: totals[model, key] for key in seeds[0]} for model, seeds in enumerate(sums)])

    over_documents = estimates(means, of_means)
    parts_of_seeds = _seed_parts(sums, quantities)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = of_means({key: sum_U.sum() for key, sum_U in means.items()})
    shares = [key for key, value in values.items() if isinstance(value, OfShares)]
    return with_seed_variance(over_documents, parts_of_seeds, num_units=len(next(iter(means.values()))), shares=shares)


def with_seed_variance(
    over_documents: Mapping[QuantityKey, Optional[Estimate]],
    parts: Sequence[VariancePart],
    *,
    num_units: int,
    shares: Collection[QuantityKey] = (),
) -> dict[QuantityKey, Optional[Estimate]]:
    """Return estimates with intervals that include the seeds.

    Args:
        over_documents: estimates of means over seeds, with intervals over documents.
        parts: the variance between the seeds of each model that has several, float [Q], in the order of the estimates.
        num_units: U, the units that the intervals over documents are of.
        shares: those that are shares or differences of shares.
    """
    if not parts:
        return dict(over_documents)
    return {
        key: _with_seeds(
            estimate,
            [replace(part, variance=part.variance[i]) for part in parts],
            num_units=num_units,
            is_share=key in shares,
        )
        for i, (key, estimate) in enumerate(over_documents.items())
    }


def _seed_parts(sums: SumsOfModels[SumKey], quantities: QuantitiesOfModels[SumKey, QuantityKey]) -> list[VariancePart]:
    """Return the jackknife variance over the seeds of each model that has two or more, [Q] each."""
    totals = [[{key: np.sum(sum_U) for key, sum_U in of_seed.items()} for of_seed in seeds] for seeds in sums]
    mean_totals = [_mean_totals(seeds) for seeds in totals]
    parts = []
    for model, seeds in enumerate(totals):
        num_seeds = len(seeds)
        if num_seeds < 2:
            continue
        values = []
        for left_out in range(num_seeds):
            without = _mean_totals([of_seed for i, of_seed in enumerate(seeds) if i != left_out])
            with np.errstate(divide="ignore", invalid="ignore"):
                of_others = quantities([*mean_totals[:model], without, *mean_totals[model + 1 :]])
            values.append([float(value_of(value)) for value in of_others.values()])
        with np.errstate(invalid="ignore"):  # such quantities have no interval
            variance_Q = (num_seeds - 1) * np.var(values, axis=0)  # (S-1)/S times the sum of squares
        parts.append(VariancePart(variance_Q, num_seeds - 1))
    return parts


def _mean_totals(seeds: Sequence[Mapping[SumKey, np.ndarray]]) -> dict[SumKey, np.ndarray]:
    return {key: np.mean([totals[key] for totals in seeds], axis=0) for key in seeds[0]}


def _with_seeds(
    estimate: Optional[Estimate], parts_of_seeds: list[VariancePart], *, num_units: int, is_share: bool
) -> Optional[Estimate]:
    """Return an estimate over documents with the interval that includes the seeds."""
    if estimate is None or estimate.bounds is None or estimate.standard_error is None:
        return estimate
    low, high, error = *estimate.bounds, estimate.standard_error
    errors = np.array([estimate.mean - low, high - estimate.mean]) / NORMAL_ERRORS if is_share else np.full(2, error)
    below, above = (float(half_width([VariancePart(side**2, num_units - 1), *parts_of_seeds])) for side in errors)
    if not np.isfinite(below + above):
        return estimate.without_interval()
    standard_error = float(np.sqrt(error**2 + np.sum([part.variance for part in parts_of_seeds])))
    return Estimate(estimate.mean, estimate.mean - below, estimate.mean + above, standard_error)


def estimates_of_model(
    sums: Sequence[Mapping[SumKey, np.ndarray]],
    quantities: Callable[[Mapping[SumKey, np.ndarray]], Mapping[QuantityKey, Value]],
) -> dict[QuantityKey, Optional[Estimate]]:
    """As ``estimates_over_seeds``, for one model."""
    return estimates_over_seeds([sums], lambda totals: quantities(totals[0]))


def bounded(estimate: Optional[Estimate], *, least: float = 0.0, most: float = 1.0) -> Estimate:
    """Return an estimate with an interval that does not leave [least, most], where the quantity lies; by default a share."""
    assert estimate is not None
    if estimate.low is None or estimate.high is None:
        return estimate
    return Estimate(estimate.mean, max(least, estimate.low), min(most, estimate.high), estimate.standard_error)
