"""Intervals of shares of targets and of their differences: their coverage, by simulation, and what they are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import scipy.stats

from olmo_sparsity.statistics.intervals.bootstrap import estimates
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.intervals.ratios import Value, minus
from olmo_sparsity.statistics.intervals.seeds import estimates_of_model
from olmo_sparsity.statistics.intervals.shares import Share, ShareDifference, paired_difference

AT_ONCE = 200  # experiments in one call


def windows_of_documents(
    rng: np.random.Generator, shares: tuple[float, ...], *, documents: int, windows: int
) -> list[np.ndarray]:
    """Return how many windows of each document each share holds, [AT_ONCE, U]; windows of a document and shares are alike."""
    alike = rng.standard_normal((AT_ONCE, documents, 1)) + rng.standard_normal((AT_ONCE, documents, windows))
    own = [rng.standard_normal((AT_ONCE, documents, windows)) for _ in shares]
    limits = scipy.stats.norm.ppf(shares)
    return [((alike + of) / 3**0.5 <= limit).sum(axis=2).astype(float) for of, limit in zip(own, limits, strict=True)]


@pytest.mark.parametrize("windows", [1, 4])
@pytest.mark.parametrize("documents", [50, 100])
def test_shares_near_1_and_their_differences_are_covered(documents: int, windows: int) -> None:
    """Exact intervals are never much too narrow. Percentiles of resamples are, where hardly any document differs."""
    truths = {"first": 0.98, "second": 0.995, "difference": 0.015}
    first_EU, second_EU = windows_of_documents(
        np.random.default_rng(5), (truths["first"], truths["second"]), documents=documents, windows=windows
    )
    sums: dict[Any, np.ndarray] = {"weight": np.full(documents, float(windows))}
    sums |= {("first", e): first_EU[e] for e in range(AT_ONCE)} | {("second", e): second_EU[e] for e in range(AT_ONCE)}

    def of_shares(totals: Mapping[Any, np.ndarray]) -> dict[tuple[str, int], Value]:
        shares: dict[tuple[str, int], Value] = {
            key: Share(total, totals["weight"]) for key, total in totals.items() if key != "weight"
        }
        return shares | {("difference", e): minus(shares["second", e], shares["first", e]) for e in range(AT_ONCE)}

    covered = dict.fromkeys(truths, 0)
    for (name, _), of in estimates(sums, of_shares, num_resamples=2).items():
        assert of is not None and of.low is not None and of.high is not None and of.low < of.high
        covered[name] += of.low <= truths[name] <= of.high
    assert min(covered.values()) >= scipy.stats.binom.ppf(0.001, AT_ONCE, 0.95)


def one_share(part_U: np.ndarray, whole_U: np.ndarray, *, is_all: bool = False) -> Estimate:
    found = estimates({"part": part_U, "whole": whole_U}, lambda of: {"share": Share(of["part"], of["whole"], is_all)})
    assert found["share"] is not None
    return found["share"]


@pytest.mark.parametrize("below", [30, 199, 200, 0])
def test_a_share_of_equal_documents_has_the_interval_of_clopper_and_pearson(below: int) -> None:
    exact = scipy.stats.binomtest(below, 200).proportion_ci(0.95, method="exact")
    found = one_share((np.arange(200) < below).astype(float), np.ones(200))
    assert (found.mean, found.low, found.high) == pytest.approx((below / 200, exact.low, exact.high))
    assert found.standard_error == pytest.approx((exact.high - exact.low) / 2 / scipy.stats.norm.ppf(0.975))


def test_documents_count_by_their_weights_and_by_how_far_they_differ() -> None:
    rng = np.random.default_rng(3)
    whole_U = rng.uniform(1, 6, 90)
    part_U = whole_U * rng.beta(4, 1, 90)
    share = part_U.sum() / whole_U.sum()
    n = share * (1 - share) / sum(((p - share * w) / whole_U.sum()) ** 2 for p, w in zip(part_U, whole_U, strict=True))
    low = scipy.stats.beta.ppf(0.025, share * n, (1 - share) * n + 1)
    high = scipy.stats.beta.isf(0.025, share * n + 1, (1 - share) * n)
    assert one_share(part_U, whole_U).bounds == pytest.approx((low, high))
    alike = whole_U.sum() ** 2 / (whole_U**2).sum()  # where no document differs
    assert alike < 80 and one_share(whole_U, whole_U).bounds == pytest.approx((0.025 ** (1 / alike), 1))


def test_a_share_of_1_by_definition_is_a_point() -> None:
    whole_U = np.arange(1.0, 61.0)
    assert one_share(whole_U, whole_U, is_all=True) == Estimate(1.0, 1.0, 1.0, 0.0)
    rounded = whole_U - (np.arange(60) == 7)
    assert one_share(rounded, whole_U, is_all=True) == one_share(rounded, whole_U)


def test_the_share_of_a_model_over_seeds_reaches_as_far_as_that_of_its_documents() -> None:
    """Where all seeds agree, the interval is that of the documents with Student's t; 1 is its upper end."""
    sums = {"part": np.ones(60), "whole": np.ones(60)}
    found = estimates_of_model([sums] * 3, lambda of: {"share": Share(of["part"], of["whole"])})["share"]
    student = scipy.stats.t.ppf(0.975, 59) / scipy.stats.norm.ppf(0.975)
    assert found is not None and found.bounds == pytest.approx((1 - student * (1 - 0.025 ** (1 / 60)), 1))


@pytest.mark.parametrize("share", [0.98, 0.995])
def test_the_accuracy_of_three_seeds_near_1_is_covered(share: float) -> None:
    """Seeds that answer the same 50 sequences, and are alike in them."""
    answers_ESU = np.stack(
        windows_of_documents(np.random.default_rng(6), (share,) * 3, documents=50, windows=1),
        axis=1,
    )
    seeds = [{"num": np.ones(50), **{e: answers_ESU[e, s] for e in range(AT_ONCE)}} for s in range(3)]

    def accuracies(of: Mapping[Any, np.ndarray]) -> dict[Any, Share]:
        return {e: Share(of[e], of["num"]) for e in range(AT_ONCE)}

    found = estimates_of_model(seeds, accuracies)
    covered = sum(of is not None and of.low is not None and of.low <= share for of in found.values())
    assert covered >= scipy.stats.binom.ppf(0.001, AT_ONCE, 0.95)
    assert all(of is not None and of.high is not None and of.high >= share for of in found.values())


@pytest.mark.parametrize("sign", [-1, 0, 1])
def test_a_difference_of_shares_is_that_of_newcombe(sign: int) -> None:
    """Of unequal weights and lopsided intervals; the correlation of documents is that of what each adds to the shares."""
    rng, num = np.random.default_rng(13), 60
    weight_U, first_U = rng.uniform(1, 4, num), rng.random(num)
    second_U = {-1: 0.8 * (1 - first_U) ** 2, 0: rng.random(num), 1: first_U**3}[sign]
    (p, r), first, second = (
        [np.average(of, weights=weight_U) for of in (first_U, second_U)],
        lambda mean: Estimate(mean, mean - 0.02, mean + 0.05, 1.0),
        lambda mean: Estimate(mean, mean - 0.11, mean + 0.07, 1.0),
    )
    added = [(weight_U[u] * (first_U[u] - p), weight_U[u] * (second_U[u] - r)) for u in range(num)]
    phi = sum(a * b for a, b in added) / np.sqrt(sum(a * a for a, _ in added) * sum(b * b for _, b in added))
    assert sign == 0 or 0.5 < sign * phi <= 1
    of_units = ShareDifference(Share(weight_U * first_U, weight_U), Share(weight_U * second_U, weight_U))
    found = paired_difference(first(p), second(r), of_units=of_units)
    below = np.sqrt(0.02**2 - 2 * phi * 0.02 * 0.07 + 0.07**2)
    above = np.sqrt(0.05**2 - 2 * phi * 0.05 * 0.11 + 0.11**2)
    assert (found.mean, found.low, found.high) == pytest.approx((p - r, p - r - below, p - r + above))
    assert found.standard_error == pytest.approx((below + above) / 2 / scipy.stats.norm.ppf(0.975))
    only_one = [paired_difference(first(p), Estimate(r), of_units=of_units),
                paired_difference(Estimate(p), second(r), of_units=of_units)]  # fmt: skip
    assert only_one == [Estimate(p - r)] * 2


def test_shares_that_no_document_changes_are_taken_as_independent() -> None:
    first, second = Estimate(0.5, 0.4, 0.6, 1.0), Estimate(0.25, 0.22, 0.29, 1.0)
    weight_U = np.arange(1.0, 9.0)
    of_units = ShareDifference(Share(weight_U / 2, weight_U), Share(weight_U / 4, weight_U))
    found = paired_difference(first, second, of_units=of_units)
    assert found.bounds == pytest.approx((0.25 - np.hypot(0.1, 0.04), 0.25 + np.hypot(0.1, 0.03)))
