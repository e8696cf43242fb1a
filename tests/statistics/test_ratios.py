"""D(k) and its differences: a bootstrap-t by brute force, its coverage on heavy tails, and where there is no interval."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import scipy.stats

from olmo_sparsity.statistics.intervals.bootstrap import estimates
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.intervals.ratios import (
    Ratio,
    Ratios,
    StudentizedRatios,
    Value,
    minus,
    share_without,
    value_of,
)

NUM = 300  # with fewer there is no interval, as Method says
NORMAL_WIDTH = 2 * scipy.stats.norm.ppf(0.975)  # of a 95% interval, in standard errors


def heavy_sums(rng: np.random.Generator, num: int = NUM) -> dict[str, np.ndarray]:
    """Return the reactions of two models to each document, and what some tokens leave of them; [U] each."""
    z = rng.standard_normal(num)
    whole, second_whole = np.exp(1.5 * z), np.exp(1.5 * (0.8 * z + 0.6 * rng.standard_normal(num)))
    share = scipy.special.expit(-0.5 - 0.5 * z + rng.standard_normal(num))
    return {"left": whole * share, "whole": whole, "second left": second_whole * share**2, "second whole": second_whole}


def shares(totals: Mapping[Any, np.ndarray]) -> dict[str, Value]:
    first = share_without(totals["left"], totals["whole"])
    second = share_without(totals["second left"], totals["second whole"])
    return {"first": first, "second": second, "difference": minus(second, first)}


def textbook(draws: np.ndarray, sums: Mapping[str, np.ndarray], *, is_difference: bool) -> tuple[float, float]:
    """Return a symmetric bootstrap-t interval, a resample at a time, with the standard error of the drawn documents' own
    linearized values."""

    def value_and_error(drawn: np.ndarray) -> tuple[float, float]:
        of = {name: sum_U[drawn] for name, sum_U in sums.items()}
        first, second = of["left"].sum() / of["whole"].sum(), of["second left"].sum() / of["second whole"].sum()
        added = (of["left"] - first * of["whole"]) / of["whole"].sum()
        if not is_difference:
            return np.log(first), float(np.sqrt(((added / first) ** 2).sum()))
        of_second = (of["second left"] - second * of["second whole"]) / of["second whole"].sum()
        return first - second, float(np.sqrt(((added - of_second) ** 2).sum()))

    value, error = value_and_error(np.arange(NUM))
    sizes = [abs(of - value) / own for of, own in map(value_and_error, draws)]
    half = np.quantile(sizes, 0.95) * error
    return (value - half, value + half) if is_difference else (1 - np.exp(value + half), 1 - np.exp(value - half))


def test_shares_and_their_differences_by_brute_force() -> None:
    sums = heavy_sums(np.random.default_rng(0))
    found = estimates(sums, shares, num_resamples=200)
    draws = np.random.default_rng(0).integers(0, NUM, (200, NUM))
    for name, is_difference in (("first", False), ("difference", True)):
        estimate, expected = found[name], textbook(draws, sums, is_difference=is_difference)
        assert estimate is not None and estimate.bounds == pytest.approx(expected, rel=1e-9)
        assert estimate.standard_error == pytest.approx((expected[1] - expected[0]) / NORMAL_WIDTH)
    assert found["first"].mean == pytest.approx(1 - sums["left"].sum() / sums["whole"].sum())  # type: ignore[union-attr]
    assert found == estimates(sums, shares, num_resamples=200)  # the same draws every time


@pytest.mark.parametrize(
    ("constant", "coefficients"), [(0.3, [-1.0]), (1.0, [-2.0]), (1.0, [1.0]), (-0.2, [2.0, -0.5]), (1.0, [-1.0, 0.7])]
)
def test_a_number_plus_ratios_by_brute_force(constant: float, coefficients: list[float]) -> None:
    """All but a share alone are treated on their own scale. Standard errors are of each resample's own documents."""
    sums = heavy_sums(np.random.default_rng(9), NUM + 20)
    pairs = [("left", "whole"), ("second left", "second whole")][: len(coefficients)]

    def made(totals: Mapping[Any, np.ndarray]) -> dict[str, Value]:
        terms = zip(coefficients, pairs, strict=True)
        return {"made": Ratios(constant, tuple(Ratio(c, totals[a], totals[b]) for c, (a, b) in terms))}

    def value_and_error(drawn: np.ndarray) -> tuple[float, float]:
        value, added_u = constant, np.zeros(len(drawn))
        for c, (a, b) in zip(coefficients, pairs, strict=True):
            ratio = sums[a][drawn].sum() / sums[b][drawn].sum()
            value += c * ratio
            added_u += c * (sums[a][drawn] - ratio * sums[b][drawn]) / sums[b][drawn].sum()
        return value, float(np.sqrt((added_u**2).sum()))

    value, error = value_and_error(np.arange(NUM + 20))
    draws = np.random.default_rng(0).integers(0, NUM + 20, (200, NUM + 20))
    half = error * np.quantile([abs(of - value) / own for of, own in map(value_and_error, draws)], 0.95)
    found = estimates(sums, made, num_resamples=200)["made"]
    assert found is not None and found.mean == pytest.approx(value)
    assert found.bounds == pytest.approx((value - half, value + half), rel=1e-9)
    assert found.standard_error == pytest.approx(2 * half / NORMAL_WIDTH)


def test_a_resample_without_variance_lies_a_thousand_standard_errors_away() -> None:
    """Without the only document that differs, the linearized variance is the smallest share of that without correction."""
    odd_U = np.arange(NUM) == 7
    left, second_left = np.where(odd_U, 0.9, 0.5), np.where(odd_U, 1.7, 0.6)
    whole, second_whole = np.ones(NUM), np.full(NUM, 2.0)
    of_units = Ratios(0.4, (Ratio(1.0, left, whole), Ratio(-0.8, second_left, second_whole)))
    studentized, counts_XU = StudentizedRatios(of_units), np.stack([np.where(odd_U, times, 1.0) for times in (0, 3)])
    found_X = studentized.size_of_t(list(np.stack(studentized.products()) @ counts_XU.T))
    for found, counts_U in zip(found_X, counts_XU, strict=True):
        change, added_U, uncorrected_U = 0.0, np.zeros(NUM), np.zeros(NUM)
        for c, numerator_U, denominator_U in ((1.0, left, whole), (-0.8, second_left, second_whole)):
            ratio, below = numerator_U.sum() / denominator_U.sum(), counts_U @ denominator_U
            own = counts_U @ numerator_U / below
            change += c * (own - ratio)
            added_U += c * (numerator_U - own * denominator_U) / below
            uncorrected_U += c * (numerator_U - ratio * denominator_U) / below
        error = np.sqrt(max(counts_U @ added_U**2, 1e-6 * (counts_U @ uncorrected_U**2)))
        assert found == pytest.approx(abs(change) / error, rel=1e-6)
    assert found_X[0] == pytest.approx(1000 * np.sqrt(NUM - 1))


def test_differences_of_quantities_are_the_second_less_the_first() -> None:
    first, second = (
        Ratios(0.4, (Ratio(2.0, np.array([6.0]), np.array([3.0])),)),
        share_without(np.array([1.0]), np.array([4.0])),
    )
    assert (value_of(first), value_of(second)) == (4.4, 0.75)
    for one, other, expected in ((second, first, -3.65), (first, second, 3.65), (np.array([7.0]), first, 2.6)):
        assert value_of(minus(one, other)) == pytest.approx(np.array([expected]))


def test_on_light_tails_the_interval_is_that_of_percentiles() -> None:
    rng = np.random.default_rng(1)
    whole = rng.uniform(1, 2, 2000)
    sums = {"left": whole * rng.uniform(0.2, 0.6, 2000), "whole": whole}
    of = estimates(
        sums, lambda totals: {"t": (d := share_without(totals["left"], totals["whole"])), "percentile": value_of(d)}
    )
    assert of["t"] is not None and of["percentile"] is not None
    assert of["t"].bounds == pytest.approx(of["percentile"].bounds, abs=1e-3)
    assert of["t"].standard_error == pytest.approx(of["percentile"].standard_error, rel=0.05)


def covers(found: list[Estimate | None], truth: float) -> bool:
    """Return True if the number of intervals that hold the truth fits a rate of 94% or more; 1 in 1,000 is below."""
    covered = sum(
        e is not None and e.low is not None and e.high is not None and e.low <= truth <= e.high for e in found
    )
    return bool(covered >= scipy.stats.binom.ppf(0.001, len(found), 0.94))


def test_on_heavy_tails_a_bootstrap_t_covers_the_truth_and_percentiles_do_not() -> None:
    """One window of each document. The top 5% hold half of the reaction, tokens reproduce large reactions better, and none is
    larger than 32 times the mean."""
    rng, num = np.random.default_rng(3), 1500

    def windows(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        z = rng.standard_normal(shape)
        whole = np.minimum(np.exp(1.85 * z - 1.85**2 / 2), 32)
        return whole * scipy.special.expit(-0.8 * z + rng.standard_normal(shape)), whole

    left, whole = windows((4_000_000,))
    assert np.sort(whole)[-len(whole) // 20 :].sum() / whole.sum() == pytest.approx(0.5, abs=0.1)
    truth = 1 - left.sum() / whole.sum()
    left, whole = windows((num, NUM))
    sums = {(name, e): of[e] for name, of in (("left", left), ("whole", whole)) for e in range(num)}

    def both(totals: Mapping[Any, np.ndarray]) -> dict[Any, Value]:
        of = {e: share_without(totals["left", e], totals["whole", e]) for e in range(num)}
        return {**{("t", e): d for e, d in of.items()}, **{("percentile", e): value_of(d) for e, d in of.items()}}

    found = estimates(sums, both, num_resamples=500)
    assert covers([found["t", e] for e in range(num)], truth)
    assert not covers([found["percentile", e] for e in range(num)], truth)


def test_too_few_documents_have_no_interval() -> None:
    """Documents that a share says nothing of, such as those of another measurement, do not count."""
    sums = heavy_sums(np.random.default_rng(4))
    few = {name: sum_U[:-1] for name, sum_U in sums.items()}
    assert not any(estimate is None or estimate.has_interval for estimate in estimates(few, shares).values())
    padded = {name: np.r_[sum_U, np.zeros(100)] for name, sum_U in few.items()}
    assert not any(estimate is None or estimate.has_interval for estimate in estimates(padded, shares).values())
    half = {
        **sums,
        "second left": np.r_[sums["second left"][1:], 0],
        "second whole": np.r_[sums["second whole"][1:], 0],
    }
    found = estimates(half, shares)
    assert {name: e is not None and e.has_interval for name, e in found.items()} == {
        "first": True, "second": False, "difference": False,
    }  # fmt: skip


def test_a_resample_without_any_document_of_one_measurement_warns_of_nothing() -> None:
    """Three of 300 documents are of the second measurement; one resample in twenty has none of them."""
    sums = heavy_sums(np.random.default_rng(12))
    few = {name: sum_U * (np.arange(NUM) < 3) for name, sum_U in sums.items() if name.startswith("second")}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = estimates({**sums, **few}, shares, num_resamples=200)
    assert {name: e is not None and e.has_interval for name, e in found.items()} == {
        "first": True, "second": False, "difference": False,
    }  # fmt: skip


def test_what_is_the_same_in_every_resample_has_an_interval_of_no_width() -> None:
    whole = np.random.default_rng(5).lognormal(0, 2, NUM)
    for share, of in ((0.0, 0 * whole), (0.25, whole / 4)):
        sums = {"left": of, "whole": whole}
        found = estimates(sums, lambda totals: {"D": share_without(totals["left"], totals["whole"])})
        assert found == {"D": Estimate(1 - share, 1 - share, 1 - share, 0.0)}
    sums = heavy_sums(np.random.default_rng(6)) | {"left": whole / 3, "whole": whole}
    found = estimates(sums, lambda totals: {"D": minus(*[share_without(totals["left"], totals["whole"])] * 2)})
    assert found == {"D": Estimate(0.0, 0.0, 0.0, 0.0)}


def test_an_interval_never_reaches_beyond_all_of_the_reaction() -> None:
    rng = np.random.default_rng(7)
    whole = rng.lognormal(0, 2, NUM)
    sums = {"left": whole * rng.uniform(0, 1, NUM) ** 60, "whole": whole}
    found = estimates(sums, lambda totals: {"D": share_without(totals["left"], totals["whole"])})["D"]
    assert found is not None and found.bounds is not None
    assert found.mean > 0.9 and found.bounds[0] < found.mean < found.bounds[1] < 1


@pytest.mark.parametrize("mean", [-1e-9, 1e-9])
def test_rounding_is_no_reason_to_have_no_interval(mean: float) -> None:
    """It is below 0 in some resamples, and above in others."""
    rng = np.random.default_rng(8)
    sums = {"left": mean + scipy.stats.zscore(rng.normal(0, 1, NUM)) * 2e-8, "whole": np.ones(NUM)}
    found = estimates(sums, lambda totals: {"D": share_without(totals["left"], totals["whole"])})["D"]
    assert found is not None and found.bounds == pytest.approx((1, 1))


def test_a_share_that_is_undefined_in_some_resample_has_no_interval() -> None:
    assert estimates({"a": np.ones(NUM), "b": np.zeros(NUM)}, lambda of: {"D": share_without(of["a"], of["b"])}) == {
        "D": None
    }
