"""Intervals over seeds: exact cases, and coverage where seeds and documents are crossed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from scipy import stats

from olmo_sparsity.statistics.intervals.bootstrap import estimates
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.intervals.seeds import VariancePart, estimates_of_model, estimates_over_seeds, half_width

NUM_DOCUMENTS = 120


def sums_of(values_U: np.ndarray, **more: np.ndarray) -> dict[str, np.ndarray]:
    """Return the sums of documents with one window each."""
    return {"windows": np.ones(len(values_U)), "gain": values_U, **more}


def mean_gain(totals: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"mean": totals["gain"] / totals["windows"]}


def only(found: Mapping[Any, Estimate | None]) -> Estimate:
    (estimate,) = found.values()
    assert estimate is not None
    return estimate


def part(variance: float, degrees_of_freedom: int) -> VariancePart:
    return VariancePart(np.array(variance), degrees_of_freedom)


def test_the_interval_of_one_part_is_student_t() -> None:
    for freedom in (1, 2, 40):
        expected = stats.t.interval(0.95, freedom, loc=0, scale=0.3)[1]
        assert half_width([part(0.09, freedom)]) == pytest.approx(expected)
        assert half_width([part(0.09, freedom), part(0.0, 7)]) == pytest.approx(expected)


def test_the_interval_of_equal_parts_is_that_of_welch() -> None:
    """For two samples of equal size, Welch's test is an independent implementation of the same formula."""
    first, second = np.random.default_rng(0).normal(0, (1, 3), (8, 2)).T
    expected = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    parts = [part(sample.var(ddof=1) / 8, 7) for sample in (first, second)]
    assert 2 * half_width(parts) == pytest.approx(expected.high - expected.low)


def test_without_any_variance_the_interval_is_a_point() -> None:
    assert half_width([part(0.0, 2), part(0.0, 99)]) == 0


def test_one_seed_has_the_interval_over_documents() -> None:
    sums = sums_of(np.random.default_rng(1).normal(0.3, 1, NUM_DOCUMENTS))
    assert estimates_of_model([sums], mean_gain) == estimates(sums, mean_gain)


def test_seeds_that_agree_have_the_interval_over_documents() -> None:
    """With its bootstrap standard error, and as many degrees of freedom as documents less one."""
    sums = sums_of(np.random.default_rng(2).normal(0.3, 1, NUM_DOCUMENTS))
    over_documents, found = only(estimates(sums, mean_gain)), only(estimates_of_model([sums] * 3, mean_gain))
    assert over_documents.standard_error is not None and found.low is not None and found.high is not None
    expected = stats.t.ppf(0.975, NUM_DOCUMENTS - 1) * over_documents.standard_error
    assert (found.mean - found.low, found.high - found.mean) == pytest.approx((expected, expected))
    assert found.mean == pytest.approx(over_documents.mean)
    assert found.bounds == pytest.approx(over_documents.bounds, abs=0.02)


def test_documents_that_agree_have_student_t_over_the_seeds() -> None:
    of_seeds = np.array([0.2, 0.5, 0.3, 0.35])
    found = only(estimates_of_model([sums_of(np.full(NUM_DOCUMENTS, value)) for value in of_seeds], mean_gain))
    expected = stats.t.interval(0.95, 3, loc=of_seeds.mean(), scale=stats.sem(of_seeds))
    assert found.bounds == pytest.approx(expected)
    assert found.standard_error == pytest.approx(stats.sem(of_seeds))


def test_a_ratio_is_the_ratio_of_the_means_over_seeds() -> None:
    """One seed has hardly a denominator. The mean of the ratios would be 17."""
    numerators, denominators = np.array([0.5, 0.5, 0.5]), np.array([1.0, 1.0, 0.01])
    sums = [
        sums_of(np.full(NUM_DOCUMENTS, n), long=np.full(NUM_DOCUMENTS, d))
        for n, d in zip(numerators, denominators, strict=True)
    ]
    found = only(estimates_of_model(sums, lambda totals: {"ratio": totals["gain"] / totals["long"]}))
    assert found.mean == pytest.approx(1.5 / 2.01)
    left_out = [(1.5 - n) / (2.01 - d) for n, d in zip(numerators, denominators, strict=True)]
    assert found.standard_error == pytest.approx(np.sqrt(2 * np.var(left_out)))  # the jackknife by hand


def test_each_model_adds_the_variance_of_its_own_seeds() -> None:
    """The difference of two models without document variance is that of Welch's test."""
    first, second = np.array([0.1, 0.4, 0.2]), np.array([0.9, 0.7, 1.6, 1.0])
    models = [[sums_of(np.full(NUM_DOCUMENTS, value)) for value in seeds] for seeds in (second, first)]
    found = only(
        estimates_over_seeds(models, lambda of: {"difference": mean_gain(of[0])["mean"] - mean_gain(of[1])["mean"]})
    )
    expected = stats.ttest_ind(second, first, equal_var=False).confidence_interval(0.95)
    assert found.bounds == pytest.approx((expected.low, expected.high))


def test_intervals_of_several_numbers_of_several_models_by_definition() -> None:
    """Documents and seeds matter alike; one model has three seeds, one two, one a single one."""
    rng, num = np.random.default_rng(8), 90
    models = [
        [
            {"weights": weights, "gain": weights * (gain + rng.normal(0, spread, num)), "long": rng.gamma(2, 1, num) + gain}
            for gain in rng.normal(3, 0.2 + 0.1 * spread, seeds)
        ]
        for weights, spread, seeds in ((rng.uniform(1, 3, num), 2.0, 3), (rng.uniform(2, 4, num), 4.0, 2), (np.ones(num), 1.0, 1))
    ]  # fmt: skip

    def numbers(of: Any) -> dict[str, Any]:
        means = [totals["gain"] / totals["weights"] for totals in of]
        return {
            "first": means[0],
            "ratio": of[1]["gain"] / of[1]["long"],
            "third": means[2],
            "all": means[0] * means[1] - means[2],
        }

    def of_totals(counts: np.ndarray, seeds_of: list[list[int]]) -> dict[str, Any]:
        return numbers([
            {name: np.mean([counts @ seeds[s][name] for s in kept], axis=0) for name in seeds[0]}
            for seeds, kept in zip(models, seeds_of, strict=True)
        ])  # fmt: skip

    every, draws = [[0, 1, 2], [0, 1], [0]], np.random.default_rng(0).integers(0, num, (2000, num))
    resampled = of_totals(np.stack([np.bincount(drawn, minlength=num) for drawn in draws]), every)
    found = estimates_over_seeds(models, numbers)
    for name, mean in of_totals(np.ones(num), every).items():
        parts = [(np.var(resampled[name], ddof=1), num - 1)]
        for i, seeds in enumerate(every[:2]):
            values = [
                of_totals(np.ones(num), [*every[:i], [s for s in seeds if s != out], *every[i + 1 :]])[name] for out in seeds
            ]  # fmt: skip
            squares = sum((value - np.mean(values)) ** 2 for value in values)
            parts.append((squares * (len(seeds) - 1) / len(seeds), len(seeds) - 1))
        variance = sum(part for part, _ in parts)
        freedom = variance**2 / sum(part**2 / own for part, own in parts)
        half = stats.t.ppf(0.975, freedom) * np.sqrt(variance)
        estimate = found[name]
        assert estimate is not None and estimate.standard_error == pytest.approx(np.sqrt(variance)), name
        assert (estimate.mean, *(estimate.bounds or ())) == pytest.approx((mean, mean - half, mean + half)), name


def test_a_model_with_one_seed_adds_none() -> None:
    rng = np.random.default_rng(3)
    several, single = [sums_of(np.full(NUM_DOCUMENTS, v)) for v in (0.1, 0.4)], sums_of(rng.normal(0, 1, NUM_DOCUMENTS))
    found = estimates_over_seeds([several, [single]], lambda of: {i: mean_gain(of[i])["mean"] for i in (0, 1)})
    alone = only(estimates([single][0], mean_gain))
    assert found[1] is not None and found[1].standard_error == pytest.approx(alone.standard_error)
    assert found[0] is not None and found[0].standard_error == pytest.approx(stats.sem([0.1, 0.4]))


def test_there_is_no_interval_where_there_is_none_without_a_seed() -> None:
    zero, one = np.zeros(NUM_DOCUMENTS), np.ones(NUM_DOCUMENTS)
    sums = [sums_of(one, long=one), sums_of(one, long=zero)]
    found = only(estimates_of_model(sums, lambda totals: {"ratio": totals["gain"] / totals["long"]}))
    assert found == Estimate(2.0)


NUM_EXPERIMENTS = 1200


def crossed(of_seed: float, of_document: float, of_both: float, *, num_seeds: int, rng: Any) -> np.ndarray:
    """Return gains of true mean 1, [experiments, seeds, documents]: effects of the seed, of the document, and of both."""
    shape = (NUM_EXPERIMENTS, num_seeds, NUM_DOCUMENTS)
    seeds = rng.normal(0, of_seed, (*shape[:2], 1))
    documents = rng.normal(0, of_document, (shape[0], 1, shape[2]))
    return np.asarray(1 + seeds + documents + rng.normal(0, of_both, shape))


def as_sums(gains_ESU: np.ndarray) -> list[dict[Any, np.ndarray]]:
    """Return the sums of each seed, with a key for every experiment."""
    ones = {"windows": np.ones(NUM_DOCUMENTS)}
    return [ones | dict(enumerate(gains_ESU[:, seed])) for seed in range(gains_ESU.shape[1])]


def coverage(found: Mapping[Any, Estimate | None], truth: float) -> float:
    inside = [
        e is not None and e.low is not None and e.high is not None and e.low <= truth <= e.high for e in found.values()
    ]
    assert len(inside) == NUM_EXPERIMENTS
    return float(np.mean(inside))


# The coverage of Welch's and Satterthwaite's approximation where the seeds' part dominates; the standard error of a simulated
# coverage is 0.007.
@pytest.mark.parametrize(("num_seeds", "least"), [(2, 0.86), (3, 0.91), (5, 0.93)])
@pytest.mark.parametrize(
    ("of_seed", "of_document", "of_both"),
    [(0.1, 0.1, 0.1), (0.1, 1.0, 0.3), (0.05, 1.0, 0.3), (0.0, 1.0, 0.3)],
    ids=["seeds", "alike", "documents", "documents alone"],
)
def test_means_are_covered(num_seeds: int, least: float, of_seed: float, of_document: float, of_both: float) -> None:
    """The standard error of a document's effect is its deviation over 11, the root of the number of documents."""
    rng = np.random.default_rng([4, num_seeds])
    gains_ESU = crossed(of_seed, of_document, of_both, num_seeds=num_seeds, rng=rng)

    def means(totals: Mapping[Any, np.ndarray]) -> dict[int, np.ndarray]:
        return {i: totals[i] / totals["windows"] for i in range(NUM_EXPERIMENTS)}

    sums = as_sums(gains_ESU)
    covered = coverage(estimates_of_model(sums, means), 1.0)
    assert (least if of_seed else 0.93) <= covered <= 0.985
    if of_seed == of_document:  # the interval over documents alone misses the truth of other seeds
        averaged = {key: np.mean([of_one[key] for of_one in sums], axis=0) for key in sums[0]}
        assert coverage(estimates(averaged, means), 1.0) < 0.4


def test_ratios_are_covered() -> None:
    """R(k) of three seeds: numerator and denominator have the same seeds and documents; the truth is 0.6."""
    rng = np.random.default_rng(5)
    long_ESU = crossed(0.1, 1.0, 0.3, num_seeds=3, rng=rng)
    sparse_ESU = 0.6 * long_ESU + crossed(0.05, 0.5, 0.2, num_seeds=3, rng=rng) - 1
    sums = [
        {("long", i): long_ESU[i, seed] for i in range(NUM_EXPERIMENTS)}
        | {("sparse", i): sparse_ESU[i, seed] for i in range(NUM_EXPERIMENTS)}
        for seed in range(3)
    ]

    def ratios(totals: Mapping[Any, np.ndarray]) -> dict[int, np.ndarray]:
        return {i: totals["sparse", i] / totals["long", i] for i in range(NUM_EXPERIMENTS)}

    covered = coverage(estimates_of_model(sums, ratios), 0.6)
    assert 0.93 <= covered <= 0.985
