from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from scipy.stats import linregress

from olmo_sparsity.statistics.intervals import bootstrap
from olmo_sparsity.statistics.intervals.bootstrap import (
    Units,
    document_units,
    estimates,
)
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.intervals.lines import LineFit, line_of_sums


def ratio(total: Any) -> dict[str, np.ndarray]:
    return {"ratio": total["x"] / total["y"]}


def interval_of_mean(values: np.ndarray, counts: np.ndarray, num_resamples: int = 2000) -> tuple[float, float]:
    estimate = estimates({"x": values, "y": counts}, ratio, num_resamples=num_resamples)["ratio"]
    assert estimate is not None and estimate.bounds is not None
    return estimate.bounds


def width(estimate: Estimate | None) -> float:
    assert estimate is not None and estimate.bounds is not None
    low, high = estimate.bounds
    return high - low


def test_the_interval_is_the_textbook_one_for_a_mean_over_independent_documents() -> None:
    values = np.random.default_rng(0).normal(1.0, 2.0, 1500)
    low, high = interval_of_mean(values, np.ones(1500))
    half = 1.96 * values.std(ddof=1) / np.sqrt(1500)
    assert low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert high == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_any_function_of_sums_by_brute_force() -> None:
    """The same draws, one at a time, in plain loops."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(1, 1, 55), rng.uniform(1, 2, 55)
    estimate = estimates({"x": x, "y": y}, ratio, num_resamples=200)["ratio"]
    draws = np.random.default_rng(0).integers(0, 55, (200, 55))
    by_hand = [sum(x[i] for i in draw) / sum(y[i] for i in draw) for draw in draws]
    assert estimate is not None
    assert dataclasses.asdict(estimate) == pytest.approx(
        {
            "mean": x.sum() / y.sum(),
            "low": np.percentile(by_hand, 2.5),
            "high": np.percentile(by_hand, 97.5),
            "standard_error": np.std(by_hand, ddof=1),
        }
    )


def test_bca_intervals_are_those_of_scipy() -> None:
    rng = np.random.default_rng(11)
    x, y = rng.lognormal(0, 1, 60), rng.uniform(1, 2, 60)
    ours = estimates({"x": x, "y": y}, ratio, num_resamples=500, method="bca")["ratio"]

    def ratio_of_drawn(drawn: np.ndarray, axis: int) -> np.ndarray:
        return x[drawn].sum(axis=axis) / y[drawn].sum(axis=axis)

    units, seed = (np.arange(60),), np.random.default_rng(0)
    expected = scipy.stats.bootstrap(units, ratio_of_drawn, n_resamples=500, method="BCa", vectorized=True, rng=seed)
    assert ours is not None
    assert (ours.low, ours.high) == pytest.approx(tuple(expected.confidence_interval), rel=1e-9)
    assert ours.standard_error == pytest.approx(expected.standard_error)
    percentile = estimates({"x": x, "y": y}, ratio, num_resamples=500)["ratio"]
    assert percentile is not None and percentile.high is not None and ours.high is not None
    assert ours.high > percentile.high  # the long tail of x lies above


def test_a_value_beyond_all_its_resamples_has_a_bca_interval() -> None:
    """Minus the squared distance to the mean of all documents is 0 for all of them, and below 0 in every resample."""
    x = np.random.default_rng(0).normal(0, 1, 60)

    def distance(totals: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"distance": -((totals["x"] / totals["n"] - x.mean()) ** 2)}

    found = estimates({"x": x, "n": np.ones(60)}, distance, num_resamples=500, method="bca")["distance"]
    assert found is not None and found.low is not None and found.high is not None
    assert found.mean == 0
    assert -0.1 < found.low <= found.high < 0.0


def test_a_quantity_without_variance_has_a_bca_interval_of_no_width() -> None:
    same = {"x": np.full(60, 2.0), "y": np.full(60, 4.0)}
    assert estimates(same, ratio, method="bca") == {"ratio": Estimate(0.5, 0.5, 0.5, 0.0)}


def test_dependent_windows_widen_the_interval_as_they_should() -> None:
    of_document = np.random.default_rng(1).normal(0, 1, 400)
    codes = np.repeat(np.arange(400), 5)
    by_document = interval_of_mean(Units(codes, 400).sums(of_document[codes]), np.full(400, 5.0))
    by_window = interval_of_mean(of_document[codes], np.ones(2000))
    assert np.ptp(by_document) / np.ptp(by_window) == pytest.approx(np.sqrt(5), rel=0.1)


def test_differences_are_paired() -> None:
    rng = np.random.default_rng(2)
    a = rng.normal(0, 1, 300)
    b = a + rng.normal(0, 0.05, 300) + 0.1  # strongly correlated
    sums = {"a": a, "b": b, "shuffled": rng.permutation(b), "n": np.ones(300)}

    def differences(total: Any) -> dict[str, np.ndarray]:
        return {name: (total[name] - total["a"]) / total["n"] for name in ("b", "shuffled")}

    of = estimates(sums, differences)
    assert of["b"] is not None and abs(of["b"].mean - 0.1) < 0.01
    assert width(of["b"]) < 0.1 * width(of["shuffled"])
    # The same holds between calls: same documents, same draws. (A matrix product of another shape rounds differently.)
    alone = estimates({"x": a, "y": np.ones(300)}, ratio)["ratio"]
    among_others = estimates({"z": b, "x": a, "y": np.ones(300)}, ratio)["ratio"]
    assert alone is not None and among_others is not None
    assert dataclasses.asdict(alone) == pytest.approx(dataclasses.asdict(among_others), rel=1e-12)


def test_few_documents_have_no_interval() -> None:
    sums = {"x": np.ones(49), "y": np.ones(49)}
    assert estimates(sums, ratio) == {"ratio": Estimate(1.0, None, None)}
    assert Estimate(1.0).standard_error is None


def test_what_is_undefined_is_none() -> None:
    assert estimates({"x": np.ones(60), "y": np.zeros(60)}, ratio) == {"ratio": None}
    once = np.zeros(60)
    once[0] = 1.0  # a third of the resamples do not hold it
    assert estimates({"x": np.ones(60), "y": once}, ratio) == {"ratio": Estimate(60.0)}
    assert estimates({"x": np.ones(60), "y": once}, ratio, method="bca") == {"ratio": Estimate(60.0)}
    few = np.where(np.arange(60) < 5, 1.0, 0.0)  # 0.5% of the resamples hold none: the ends would lie among the others
    for method in ("percentile", "bca"):
        assert estimates({"x": np.ones(60), "y": few}, ratio, method=method) == {"ratio": Estimate(12.0)}


@pytest.mark.parametrize(
    ("low", "high", "above", "below"),
    [(0.1, 0.3, True, False), (0.0, 0.3, False, False), (-0.3, -0.1, False, True), (None, None, False, False)],
)
def test_where_an_interval_lies(low: float | None, high: float | None, above: bool, below: bool) -> None:
    estimate = Estimate(0.2, low, high)
    assert (estimate.is_above_zero, estimate.is_below_zero) == (above, below)
    assert estimate.has_interval == (low is not None)
    assert estimate.bounds == (None if low is None else (low, high))
    assert estimate.without_interval() == Estimate(0.2)


@pytest.mark.parametrize("at_once", [1, 55, 7 * 55 + 3, 200 * 55])
def test_batches_of_resamples_do_not_change_the_draws(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are drawn at once, and whether they are kept: as many resamples, of the same documents."""
    x, y = np.random.default_rng(3).lognormal(0, 1, (2, 55))
    draws = np.random.default_rng(0).integers(0, 55, (200, 55))
    by_hand = [x[draw].sum() / y[draw].sum() for draw in draws]
    monkeypatch.setattr(bootstrap, "BATCH_ELEMENTS", at_once)
    monkeypatch.setattr(bootstrap, "KEPT_ELEMENTS", 0)
    found = estimates({"x": x, "y": y}, ratio, num_resamples=200)["ratio"]
    assert found is not None and found.standard_error == pytest.approx(np.std(by_hand, ddof=1))
    assert (found.low, found.high) == pytest.approx(tuple(np.percentile(by_hand, [2.5, 97.5])))
    assert sum(len(counts_XU) for counts_XU in bootstrap._drawn_counts(55, 200)) == 200


def test_a_multiple_of_an_estimate() -> None:
    assert Estimate(0.25, -0.5, 1.0, 0.125).times(4) == Estimate(1.0, -2.0, 4.0, 0.5)
    assert Estimate(0.25).times(4) == Estimate(1.0)


def test_lines_of_weighted_points() -> None:
    """A point of weight 3 counts as three points."""
    rng = np.random.default_rng(13)
    x, y, weight = rng.normal(3, 1, 60), rng.normal(-2, 4, 60), rng.integers(1, 5, 60)
    y += 0.5 * x
    weighted = {name: weight * values for name, values in moments(x, y).items()}
    repeated = moments(x.repeat(weight), y.repeat(weight))
    totals = [line_of_sums(**{name: of.sum() for name, of in sums.items()}) for sums in (weighted, repeated)]
    assert {name: float(value) for name, value in totals[0].items()} == pytest.approx(
        {name: float(value) for name, value in totals[1].items()}
    )
    expected = linregress(x.repeat(weight), y.repeat(weight))
    assert float(totals[0]["ols_slope"]) == pytest.approx(expected.slope)


def moments(x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    return {"n": np.ones_like(x), "x": x, "y": y, "xx": x * x, "yy": y * y, "xy": x * y}


def line(total: Any) -> dict[str, np.ndarray]:
    return line_of_sums(**total)


@pytest.mark.parametrize(("slope", "noise"), [(0.8, 0.3), (-2.5, 0.5), (0.0, 1.0), (6.0, 0.1)])
def test_slopes_and_correlation_against_scipy_and_an_svd(slope: float, noise: float) -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(3.0, 0.7, 400)
    y = slope * x + rng.normal(-1.0, noise, 400)
    fit = estimates(moments(x, y), line)
    assert set(fit) == {field.name for field in dataclasses.fields(LineFit)}
    expected = linregress(x, y)
    main = np.linalg.svd(np.stack([x - x.mean(), y - y.mean()], axis=1), full_matrices=False)[2][0]
    for name, value in (
        ("ols_slope", expected.slope),
        ("correlation", expected.rvalue),
        ("tls_slope", main[1] / main[0]),
    ):
        estimate = fit[name]
        assert estimate is not None and estimate.mean == pytest.approx(value, rel=1e-9), name
    assert width(fit["ols_slope"]) == pytest.approx(2 * 1.96 * expected.stderr, rel=0.15)


@pytest.mark.parametrize(
    ("x", "y", "defined"),
    [
        (np.full(60, 0.3), np.arange(60.0), set()),
        (np.arange(60.0), np.full(60, 0.3), {"ols_slope", "tls_slope"}),
        (np.full(60, 0.3), np.full(60, 0.1), set()),
        (np.tile([1.0, -1.0, 0.0, 0.0], 15), np.tile([0.0, 0.0, 1.0, -1.0], 15), {"ols_slope", "correlation"}),
    ],
    ids=["x constant", "y constant", "a point", "a round cloud"],
)
def test_a_degenerate_cloud_has_no_slope(x: np.ndarray, y: np.ndarray, defined: set[str]) -> None:
    fit = {name: value for name, value in estimates(moments(x, y), line).items() if value is not None}
    assert set(fit) == defined
    assert all(value.mean == pytest.approx(0.0, abs=1e-12) for value in fit.values())


def clustered(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return x, y and document of the windows of 200 documents, 1 to 8 each; those of a document share two random effects."""
    document = np.repeat(np.arange(200), rng.integers(1, 9, 200))
    effect_x, effect_y = rng.exponential(0.5, 200)[document], rng.normal(0, 0.4, 200)[document]
    x = effect_x + rng.normal(0, 0.4, len(document))
    y = 1.0 + effect_y + 0.3 * effect_x + rng.normal(0, 0.4, len(document))
    return x, y, document


TRUE_RATIO = 0.5 / (1.0 + 0.3 * 0.5)


def coverage(sums_of: Callable[..., tuple[np.ndarray, np.ndarray]], repetitions: int, num_resamples: int) -> float:
    """Return how often the 95% interval of mean x / mean y contains the true ratio."""
    rng = np.random.default_rng(6)
    covered = 0
    for _ in range(repetitions):
        low, high = interval_of_mean(*sums_of(*clustered(rng)), num_resamples)
        covered += low <= TRUE_RATIO <= high
    return covered / repetitions


def test_95_percent_intervals_cover_a_known_truth_95_percent_of_the_time() -> None:
    def by_document(x: np.ndarray, y: np.ndarray, document: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return Units(document, 200).sums(x), Units(document, 200).sums(y)

    found = coverage(by_document, repetitions=2000, num_resamples=800)  # own standard error: 0.5%
    assert 0.93 <= found <= 0.97, found


def test_intervals_over_windows_would_cover_far_less() -> None:
    found = coverage(lambda x, y, document: (x, y), repetitions=400, num_resamples=300)
    assert found < 0.9, found


def names(document: np.ndarray) -> pd.Series:
    return pd.Series([f"{d:016x}" for d in document])


def test_up_to_the_limit_each_document_is_a_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    document = np.array([7, 7, 3, 9, 3, 1, 5, 0])
    for limit in (6, 10_000):
        monkeypatch.setattr(bootstrap, "MAX_UNITS", limit)
        for doc_ids in (names(document), names(document).astype("string[pyarrow]"), names(document).astype("category")):
            units = document_units(doc_ids)
            assert (units.unit_W.tolist(), units.num_units) == ([0, 0, 1, 2, 1, 3, 4, 5], 6)
            assert units.counts().tolist() == [2, 2, 1, 1, 1, 1]
            assert units.sums(np.arange(8)).tolist() == [1, 6, 3, 5, 6, 7]


def test_up_to_ten_thousand_documents_are_units() -> None:
    """As Method says; more are pooled."""
    for number in (10_000, 10_001):
        units = document_units(pd.Series(np.arange(number).astype(str)))
        assert units.num_units == 10_000
        assert sorted(set(units.counts().tolist())) == ([1] if number == 10_000 else [1, 2])


def test_beyond_the_limit_units_are_random_groups_of_equal_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "MAX_UNITS", 100)
    document = np.random.default_rng(8).permutation(np.repeat(np.arange(1050), 3))
    units = document_units(names(document))
    assert units.num_units == 100
    of_document = pd.Series(units.unit_W).groupby(document)
    assert (of_document.nunique() == 1).all()  # all windows of a document in one group
    sizes = np.bincount(of_document.first())
    assert sorted(set(sizes.tolist())) == [10, 11]
    again = document_units(names(document))
    assert np.array_equal(units.unit_W, again.unit_W)  # so the numbers of two calls are paired
    in_order = document_units(names(np.arange(1050))).unit_W
    # Neighbours are no more often in one group, or in the next, than any two documents are.
    for step in (0, 1):
        assert np.mean((np.diff(in_order) - step) % 100 == 0) < 0.03
    assert abs(np.corrcoef(in_order, np.arange(1050))[0, 1]) < 0.1


def sorted_documents(rng: np.random.Generator, num_documents: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As ``clustered``, with the documents in the order of their random effects, as in a sorted corpus.

    Groups of neighbours would vary far too much, and groups of every n-th document far too little.
    """
    document = np.repeat(np.arange(num_documents), rng.integers(1, 9, num_documents))
    effect_x = np.sort(rng.exponential(0.5, num_documents))[document]
    x = effect_x + rng.normal(0, 0.4, len(document))
    y = 1.0 + 0.3 * effect_x + rng.normal(0, 0.4, len(document))
    return x, y, document


def sums_by_unit(x: np.ndarray, y: np.ndarray, document: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    units = document_units(pd.Series(document.astype(str)))
    return units.sums(x), units.sums(y)


def test_groups_of_documents_have_intervals_as_wide_as_documents_have(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(9)
    data = [sorted_documents(rng, 4500) for _ in range(16)]
    every = [np.ptp(interval_of_mean(*sums_by_unit(*one), 1000)) for one in data]
    monkeypatch.setattr(bootstrap, "MAX_UNITS", 1500)
    assert len(sums_by_unit(*data[0])[0]) == 1500
    pooled = [np.ptp(interval_of_mean(*sums_by_unit(*one), 1000)) for one in data]
    # One ratio has a standard error of about 4%: 3% by the draws of both, 2% by the number of groups.
    assert np.mean(np.divide(pooled, every)) == pytest.approx(1.0, abs=0.03)
    assert np.divide(pooled, every) == pytest.approx(np.ones(16), abs=0.16)


def test_intervals_of_groups_cover_a_known_truth_95_percent_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "MAX_UNITS", 200)
    rng = np.random.default_rng(10)
    covered = 0
    for _ in range(1000):
        x, y = sums_by_unit(*sorted_documents(rng, 500))
        assert len(x) == 200
        low, high = interval_of_mean(x, y, num_resamples=400)
        covered += low <= TRUE_RATIO <= high
    assert 0.93 <= covered / 1000 <= 0.97, covered  # own standard error: 0.7%
