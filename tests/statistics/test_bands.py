"""Simultaneous bands of shares: their coverage, by simulation, and what they are made of."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from olmo_sparsity.statistics.intervals import bands
from olmo_sparsity.statistics.intervals.bands import share_bands
from olmo_sparsity.statistics.intervals.bootstrap import MIN_DOCUMENTS

AT_ONCE = 100  # experiments in one call
LIMITS = np.array(
    [-0.3, 0.4, 1.1, 1.7, 2.4, 3.3, 4.5]
)  # of the values whose distribution is estimated; the last is rarely passed


def experiments(num_documents: int, rng: np.random.Generator) -> tuple[dict[int, np.ndarray], np.ndarray]:
    """Return the weight at or below each limit, and all weight, summed over documents of 1 to 8 windows that are alike."""
    document_W = np.repeat(np.arange(num_documents), rng.integers(1, 9, num_documents))
    weight_W = rng.integers(1, 4, len(document_W)).astype(float)

    def sums(values_W: np.ndarray) -> np.ndarray:
        return np.bincount(document_W, weights=values_W, minlength=num_documents)

    parts = {}
    for e in range(AT_ONCE):
        value_W = np.sqrt(0.5) * rng.normal(0, 1.4, num_documents)[document_W] + rng.normal(0, 1, len(document_W))
        parts[e] = np.stack([sums(weight_W * (value_W <= limit)) for limit in LIMITS])
    return parts, sums(weight_W)


def true_shares() -> np.ndarray:
    return np.asarray(scipy.stats.norm.cdf(LIMITS / np.sqrt(0.5 * 1.4**2 + 1)))


@pytest.mark.parametrize("num_documents", [MIN_DOCUMENTS, 300])
def test_a_band_covers_all_shares_at_once(num_documents: int) -> None:
    """400 experiments: the number that cover is binomial; at 95% it lies between these bounds in 99.8% of cases.

    Intervals that cover each share alone would cover all of them in some 80%. The longest tail is empty in most experiments.
    """
    rng, truth, covered, alone, num = np.random.default_rng(8), true_shares(), 0, 0, 4 * AT_ONCE
    for _ in range(num // AT_ONCE):
        parts, weight_U = experiments(num_documents, rng)
        for band in share_bands(parts, weight_U, num_resamples=400).values():
            inside = [of.low <= share <= of.high for of, share in zip(band, truth, strict=True)]  # type: ignore[operator]
            covered += all(inside)
            alone += all(
                abs(of.mean - share) <= 1.96 * (of.standard_error or 0) for of, share in zip(band, truth, strict=True)
            )
    assert scipy.stats.binom.ppf(0.001, num, 0.95) <= covered
    assert covered <= scipy.stats.binom.ppf(
        0.999, num, 0.98
    )  # an exact binomial interval is never too narrow, so a little wide
    assert alone < 0.85 * num


def test_without_variation_a_band_is_the_exact_binomial_interval() -> None:
    """Of shares of 0 and 1 among n documents of equal weight the ends are 1 - 0.025^(1/n) and 0.025^(1/n)."""
    ones = np.ones((1, 80))
    found = share_bands({"none": 0 * ones, "all": ones}, np.ones(80))
    assert found["none"][0].bounds == (0, pytest.approx(1 - 0.025 ** (1 / 80)))
    assert found["all"][0].bounds == (pytest.approx(0.025 ** (1 / 80)), 1)


def test_one_share_of_equal_documents_has_the_interval_of_clopper_and_pearson() -> None:
    """The bootstrap's standard error is that of the binomial, up to the noise of its resamples."""
    is_below = np.zeros((1, 200))
    is_below[0, :30] = 1
    ((share,),) = share_bands({"one": is_below}, np.ones(200), num_resamples=20_000).values()
    exact = scipy.stats.binomtest(30, 200).proportion_ci(0.95, method="exact")
    assert share.mean == 0.15
    assert share.bounds == (pytest.approx(exact.low, abs=0.003), pytest.approx(exact.high, abs=0.003))


def test_bands_rise_and_hold_their_shares_in_batches_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    parts, weight_U = experiments(120, np.random.default_rng(2))
    whole = share_bands(parts, weight_U, num_resamples=200)
    monkeypatch.setattr(bands, "MAX_SHARES", 20)
    assert share_bands(parts, weight_U, num_resamples=200) == whole
    for band in whole.values():
        lows, means, highs = (np.array([getattr(of, name) for of in band]) for name in ("low", "mean", "high"))
        assert (np.diff(lows) >= 0).all() and (np.diff(highs) >= 0).all()
        assert (lows <= means).all() and (means <= highs).all() and lows.min() >= 0 and highs.max() <= 1


def test_bands_are_of_2000_resamples() -> None:
    parts, weight_U = experiments(120, np.random.default_rng(2))
    assert share_bands(parts, weight_U) == share_bands(parts, weight_U, num_resamples=2000)
    assert share_bands(parts, weight_U) != share_bands(parts, weight_U, num_resamples=1999)


def test_few_documents_have_no_band() -> None:
    parts, weight_U = experiments(MIN_DOCUMENTS - 1, np.random.default_rng(2))
    assert all(not of.has_interval for band in share_bands(parts, weight_U).values() for of in band)


def windows_of_documents(*below: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums over documents of 10 windows of unequal weights, of how many lie at or below each value."""
    weight_U = 0.5 + np.arange(len(below[0])) % 4
    return np.stack([weight_U * count_U / 10 for count_U in below]), weight_U


def test_a_band_by_brute_force() -> None:
    """Its ends are those of beta distributions, also where no document differs, and none crosses a later one."""
    num, rng = 70, np.random.default_rng(12)
    even = np.full(num, 5) + (np.arange(num) == 3)
    fewer, more = (np.where(np.isin(np.arange(num), rng.choice(num, 3)), end, even) for end in (0, 10))
    counts = (np.zeros(num), rng.binomial(1, 0.1, num), fewer, even, more, np.full(num, 10))
    parts_PU, weight_U = windows_of_documents(*counts)
    other_PU = np.stack([weight_U * (rng.random(num) < 0.3)])
    found = share_bands({"band": parts_PU, "alone": other_PU}, weight_U, num_resamples=300)
    draws = np.random.default_rng(0).integers(0, num, (300, num))
    for key, rows in (("band", parts_PU), ("alone", other_PU)):
        shares = [row.sum() / weight_U.sum() for row in rows]
        resampled = [[row[drawn].sum() / weight_U[drawn].sum() for drawn in draws] for row in rows]
        errors = [np.std(of, ddof=1) for of in resampled]
        varies = [error > 1e-9 for error in errors]
        free = [p for p, is_free in enumerate(varies) if is_free]
        farthest = [max(abs(resampled[p][x] - shares[p]) / errors[p] for p in free) for x in range(300)]
        size = max(scipy.stats.norm.ppf(0.975), np.quantile(farthest, 0.95))
        ends = []
        for share, error, is_free in zip(shares, errors, varies, strict=True):
            n = share * (1 - share) / error**2 if is_free else weight_U.sum() ** 2 / (weight_U**2).sum()
            tail = scipy.stats.norm.sf(size)
            low = 0 if share == 0 else scipy.stats.beta.ppf(tail, share * n, (1 - share) * n + 1)
            high = 1 if share == 1 else scipy.stats.beta.isf(tail, share * n + 1, (1 - share) * n)
            ends.append((low, high))
        lows = [max(low for low, _ in ends[: p + 1]) for p in range(len(ends))]
        highs = [min(high for _, high in ends[p:]) for p in range(len(ends))]
        if key == "band":
            assert size > 2.2 and varies == [False, True, True, True, True, False]
            assert lows != [low for low, _ in ends] and highs != [high for _, high in ends]
        for estimate, share, low, high, error in zip(found[key], shares, lows, highs, errors, strict=True):
            assert (estimate.mean, estimate.low, estimate.high) == pytest.approx((share, low, high))
            assert estimate.standard_error == pytest.approx(error, abs=1e-12)
