"""Intervals against scipy, and against their definitions by hand."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from naive import korn_graubard

from olmo_sparsity.statistics.intervals import (
    Estimates,
    Ratio,
    Share,
    Units,
    Value,
    bootstrap,
    document_units,
    minus,
    with_seeds,
)

NUM = 310
RNG = np.random.default_rng(5)
WEIGHT = RNG.uniform(0.5, 2, NUM)  # sums over documents
GAIN = WEIGHT * RNG.normal(0.3, 0.5, NUM)
WHOLE = RNG.lognormal(-1, 1, NUM)
LEFT = WHOLE * RNG.beta(1, 3, NUM)
SUMS = {"weight": WEIGHT, "gain": GAIN, "whole": WHOLE, "left": LEFT}
DRAWS = np.random.default_rng(0).integers(0, NUM, (2000, NUM))


def estimated(**sums: np.ndarray) -> Estimates:
    def formula(totals: Mapping[str, np.ndarray]) -> dict[str, Value]:
        return {"gain": totals["gain"] / totals["weight"]}

    return bootstrap([[sums]], formula)["gain"]


def test_a_mean_has_the_percentiles_of_resampled_documents() -> None:
    value, low, high, se = estimated(weight=WEIGHT, gain=GAIN)
    means = GAIN[DRAWS].sum(axis=1) / WEIGHT[DRAWS].sum(axis=1)
    assert value == pytest.approx(GAIN.sum() / WEIGHT.sum())
    assert [low, high] == pytest.approx(np.quantile(means, [0.025, 0.975]))
    assert se == pytest.approx(means.std(ddof=1))
    reference = scipy.stats.bootstrap(
        (GAIN, WEIGHT), lambda gain, weight, axis: gain.sum(axis) / weight.sum(axis), paired=True, vectorized=True,
        method="percentile", n_resamples=9999, rng=np.random.default_rng(7),
    )  # fmt: skip
    assert [low, high] == pytest.approx(reference.confidence_interval, abs=0.05 * (high - low))
    assert se == pytest.approx(reference.standard_error, rel=0.05)


def test_several_numbers_share_their_resamples() -> None:
    """An interval of a difference is that of differences of the same draws."""
    gains = np.stack([GAIN, GAIN + 0.1 * WEIGHT])

    def formula(totals: Mapping[str, np.ndarray]) -> dict[str, Value]:
        means = totals["gain"] / totals["weight"]
        return {"each": means, "second - first": means[1] - means[0]}

    found = bootstrap([[{"weight": WEIGHT, "gain": gains}]], formula)
    assert found["each"].low[0] == pytest.approx(float(estimated(weight=WEIGHT, gain=GAIN).low))
    assert found["second - first"] == pytest.approx((0.1, 0.1, 0.1, 0.0), abs=1e-12)


def test_a_number_that_some_resample_does_not_have_has_no_interval() -> None:
    weight = np.r_[1.0, np.zeros(99)]  # resamples without the first document have nothing
    found = estimated(weight=weight, gain=weight)
    assert found.value == 1
    assert np.isnan(found[1:]).all()


@pytest.mark.parametrize(("part", "whole"), [(0, 60), (1, 60), (30, 60), (59, 60), (60, 60), (7, 2000)])
def test_the_share_of_equal_documents_has_the_exact_binomial_interval(part: int, whole: int) -> None:
    is_in = (np.arange(whole) < part).astype(float)
    found = Share(is_in, np.ones(whole)).estimates()
    expected = scipy.stats.binomtest(part, whole).proportion_ci(method="exact")
    error = (expected.high - expected.low) / (2 * scipy.stats.norm.isf(0.025))
    assert found == pytest.approx((part / whole, *expected, error), abs=1e-9)


@pytest.mark.parametrize("never", [False, True])
def test_a_difference_of_shares_by_hand(never: bool) -> None:
    """Newcombe's method 10, with exact intervals in place of Wilson's. A share of 0 is correlated with none."""
    is_first = RNG.random(NUM) < 0.3 * (not never)
    is_second = np.where(RNG.random(NUM) < 0.7, is_first, RNG.random(NUM) < 0.6)
    parts = [WEIGHT * is_second, WEIGHT * is_first]
    found = minus(*(Share(part, WEIGHT) for part in parts))
    assert not isinstance(found, np.ndarray)
    (p, l1, u1, rest), (q, l2, u2, other) = (korn_graubard(part, WEIGHT) for part in parts)
    r = 0 if never else sum(rest * other) / np.sqrt(sum(rest**2) * sum(other**2))
    below = np.sqrt((p - l1) ** 2 - 2 * r * (p - l1) * (u2 - q) + (u2 - q) ** 2)
    above = np.sqrt((u1 - p) ** 2 - 2 * r * (u1 - p) * (q - l2) + (q - l2) ** 2)
    assert never or r > 0.3
    error = (below + above) / (2 * scipy.stats.norm.isf(0.025))
    assert found.estimates() == pytest.approx((p - q, p - q - below, p - q + above, error))


def test_seeds_widen_the_interval_of_a_share_by_its_two_sides() -> None:
    of_seeds, normal = np.array(0.0004), scipy.stats.norm.isf(0.025)
    found = with_seeds(Estimates(*map(np.array, (0.9, 0.8, 0.94, 0.03))), [(of_seeds, 2)], num_units=90, is_share=True)
    reaches = []
    for end in (0.8, 0.94):
        own = ((0.9 - end) / normal) ** 2
        freedom = (own + of_seeds) ** 2 / (own**2 / 89 + of_seeds**2 / 2)
        reaches.append(scipy.stats.t.isf(0.025, freedom) * np.sqrt(own + of_seeds))
    assert found == pytest.approx((0.9, 0.9 - reaches[0], 0.9 + reaches[1], np.sqrt(0.03**2 + of_seeds)))


@pytest.mark.parametrize("num_seeds", [2, 3])
def test_the_spread_of_seeds_widens_the_interval_of_a_mean(num_seeds: int) -> None:
    """The jackknife of a mean is its variance; the intervals of documents are those of one seed, moved."""
    shifts, alone = np.array([0, 0.1, 0.25])[:num_seeds], estimated(weight=WEIGHT, gain=GAIN)
    seeds = [{"weight": WEIGHT, "gain": GAIN + shift * WEIGHT} for shift in shifts]
    found = bootstrap([seeds], lambda totals: {"gain": totals["gain"] / totals["weight"]})["gain"]
    of_documents, of_seeds = alone.se**2, shifts.var(ddof=1) / num_seeds
    freedom = (of_documents + of_seeds) ** 2 / (of_documents**2 / (NUM - 1) + of_seeds**2 / (num_seeds - 1))
    reach, value = scipy.stats.t.isf(0.025, freedom) * np.sqrt(of_documents + of_seeds), alone.value + shifts.mean()
    assert found == pytest.approx((value, value - reach, value + reach, np.sqrt(of_documents + of_seeds)))


def test_d_where_nothing_is_left_has_a_point_for_an_interval() -> None:
    nothing = bootstrap([[{"left": np.zeros(NUM), "whole": WHOLE}]], lambda of: {"D": Ratio(of["left"], of["whole"])})
    assert nothing["D"] == pytest.approx((1, 1, 1, 0))


def test_documents_are_units_and_many_share_one() -> None:
    units = document_units(pd.Series(["b", "a", "b", "c"]))
    assert units.sums([[1.0, 2.0, 4.0, 8.0]]).tolist() == [[5.0, 2.0, 8.0]]
    names = pd.Series([f"{i % 20_003}" for i in range(50_000)])
    pooled = document_units(names)
    assert pooled.num == 10_000
    assert pd.Series(pooled.unit_W).groupby(names).nunique().eq(1).all()  # a document is in one unit
    documents = names.groupby(pooled.unit_W).nunique()
    assert set(documents) == {2, 3}
    assert documents.sum() == 20_003


def test_pooled_documents_have_intervals_of_the_same_width() -> None:
    rng = np.random.default_rng(3)
    gain = rng.normal(1, 1, 30_000)
    units = document_units(pd.Series(np.arange(30_000).astype(str)))
    found = estimated(weight=units.sums(np.ones(30_000)), gain=units.sums(gain))
    assert found.value == pytest.approx(gain.mean())
    assert found.se == pytest.approx(1 / np.sqrt(30_000), rel=0.05)


def test_units_without_windows_add_nothing() -> None:
    assert Units(np.array([2, 0, 2]), 4).sums([1.0, 2.0, 3.0]).tolist() == [2.0, 0.0, 4.0, 0.0]
