"""The dependency spectrum against its definition, window by window, and on planted dependencies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import KS, LENGTHS, SEES_TARGET, made_up_tables
from planted_gains import made_up, mean

from olmo_sparsity.statistics.intervals.estimate import Estimate, SmallestK
from olmo_sparsity.statistics.single.measurement import Measurement, SelectorInfo, load
from olmo_sparsity.statistics.single.spectrum import (
    TOLERANCES,
    Curve,
    chosen_family,
    spectra,
    spectrum_frame,
    sufficient_k,
)
from olmo_sparsity.statistics.single.summary import summarize

numbers = st.floats(0, 1, width=32)


def first_enough(delta_P: Sequence[float], ks: Sequence[int], tolerance: float) -> float:
    """Return the sufficient k by its definition; ``delta_P``: of no token, then of each k."""
    return next((k for k, delta in zip([0, *ks], delta_P, strict=True) if delta <= tolerance), math.inf)


@settings(deadline=None)
@given(st.lists(st.lists(numbers, min_size=4, max_size=4), min_size=1, max_size=9), numbers)
def test_the_sufficient_k_is_the_first_that_is_enough(rows: list[list[float]], tolerance: float) -> None:
    delta_WP, ks = np.array(rows), [1, 3, 4]
    found = sufficient_k(delta_WP[:, 1:], delta_WP[:, 0], ks=ks, tolerance=tolerance)
    assert found.tolist() == [first_enough(row, ks, tolerance) for row in rows]


@pytest.fixture(scope="module")
def measurement(tmp_path_factory: pytest.TempPathFactory) -> Measurement:
    """Of all selectors, some of whose tokens are enough in some windows, and in some only up to a larger k."""
    found = load(made_up_tables(tmp_path_factory.mktemp("spectrum") / "tables"))
    rng = np.random.default_rng(6)
    divergences = found.divergences * rng.choice([0.05, 1.0], found.divergences.shape)
    windows = found.windows.assign(weight=rng.integers(1, 4, len(found.windows)).astype(float))
    return replace(found, divergences=divergences, windows=windows)


def needed_of(measurement: Measurement, curve: Curve) -> list[float]:
    """Return the sufficient k of every window by definition."""
    shorts = measurement.windows["kl_short_nats" if curve.context == "real" else "null_kl_short_nats"].astype(float)
    of_ks = [measurement.divergences[curve.family, curve.context, k].astype(float) for k in KS]
    return [first_enough(row, KS, curve.tolerance_nats) for row in zip(shorts, *of_ks, strict=True)]


def test_shares_are_those_of_the_windows_by_weight(measurement: Measurement) -> None:
    found = spectra(measurement)
    assert set(found.by_curve) == {
        Curve(family, context, tolerance)
        for family in SEES_TARGET
        for context in ("real", "null")
        for tolerance in TOLERANCES
    }
    weights = measurement.windows["weight"] / measurement.windows["weight"].sum()
    seen = set()
    for curve, spectrum in found.by_curve.items():
        needed = needed_of(measurement, curve)
        seen |= set(needed)
        expected = [weights[[one <= k for one in needed]].sum() for k in (0, *KS)]
        assert [share.mean for share in spectrum.shares] == pytest.approx(expected)
        assert all(s.low <= s.mean <= s.high for s in spectrum.shares)  # type: ignore[operator]
        assert spectrum.none_needed == spectrum.shares[0] and spectrum.at_most(8) == spectrum.shares[-1]
        assert spectrum.at_most(3) is None
    assert seen == {0, *KS, math.inf}
    assert (found.row_k, found.max_k) == (0, 8)


def test_the_summary_has_the_same_shares(measurement: Measurement) -> None:
    summary, found = summarize(measurement), spectra(measurement)
    for context, name in (("real", "none_needed_share"), ("null", "null_none_needed_share")):
        at_0 = found.of("kl", context)
        assert at_0 and mean(summary.of_windows(name)) == pytest.approx(at_0.none_needed.mean)
    for entry in summary.selections:
        of = found.of(entry.selector, entry.context)
        at_k = None if of is None else of.at_most(entry.k)
        assert at_k and mean(entry.sufficient_share) == pytest.approx(at_k.mean)


def test_the_k_of_a_share_is_where_line_and_band_reach_it(measurement: Measurement) -> None:
    for spectrum in spectra(measurement).by_curve.values():
        for share in (0.05, 0.5, 0.8, 0.9, 1.0):
            k = spectrum.reaching(share)
            at = dict(zip(spectrum.ks, spectrum.shares, strict=True))
            for found, name in ((k.value, "mean"), (k.low, "high"), (k.high, "low")):
                reached = [k for k in at if getattr(at[k], name) >= share - 1e-9]
                assert found == (reached[0] if reached else None)


def test_the_frame_has_the_needs_of_every_window(measurement: Measurement) -> None:
    frame = spectrum_frame(measurement)
    assert len(frame) == len(SEES_TARGET) * 2 * len(TOLERANCES) * len(measurement.windows)
    assert (frame["max_k"] == 8).all()
    for (family, context, tolerance), rows in frame.groupby(["family", "context", "tolerance_nats"]):
        for column in ("window_id", "doc_id", "weight", "target_class"):
            assert rows[column].tolist() == measurement.windows[column].tolist()
        assert rows["k"].tolist() == needed_of(measurement, Curve(family, context, tolerance))


@pytest.mark.parametrize(
    ("blind", "chosen"),
    [
        (["random", "attention", "kl", "greedy-patching", "greedy-kl"], "greedy-kl"),
        (["attention", "kl", "greedy-patching"], "greedy-patching"),
        (["attention", "kl", "random"], "kl"),
        (["random", "nearest", "attention", "snapkv"], "attention"),
        (["nearest", "own", "attention"], "attention"),  # of a selector of one's own nothing is known
        (["random", "nearest", "own"], None),
    ],
)
def test_the_family_of_chosen_tokens(blind: list[str], chosen: str | None) -> None:
    assert chosen_family(blind) == chosen


def test_few_documents_have_no_band(tmp_path: Path) -> None:
    spectrum = spectra(load(made_up_tables(tmp_path / "tables", num_documents=20))).of("kl")
    assert spectrum is not None and not spectrum.has_intervals
    assert spectrum.reaching(0.0) == SmallestK(0, None, None)


def planted(sizes: Sequence[int], *, seed: int = 0) -> tuple[Measurement, pd.DataFrame]:
    """Return windows whose prediction changes by 0.6 nats as soon as all of some planted tokens are visible, and not before.

    So it is of sparse parity, where any part of the bits tells nothing; of a needle there is one. The chooser knows the planted
    tokens. Returned with it: their number, the suffix and the random draw that hold all of them.
    """
    rng, num_long_range = np.random.default_rng(seed), LENGTHS["num_long_range"]
    found, ks = made_up(len(sizes), 0.3, seed=seed), list(range(1, LENGTHS["num_long_range"] + 1))
    found = found.restrict(~found.windows["doc_id"].duplicated().to_numpy())
    delta, truth = {}, []
    orders = {"greedy-kl": [], "nearest": [], "random": []}  # type: ignore[var-annotated]
    for size in sizes:
        bits = rng.choice(num_long_range, size, replace=False)
        others = np.setdiff1d(rng.permutation(num_long_range), bits, assume_unique=True)
        orders["greedy-kl"].append([*bits, *others])
        orders["nearest"].append(range(num_long_range - 1, -1, -1))
        orders["random"].append(rng.permutation(num_long_range))
        ranks = [max(list(orders[name][-1]).index(bit) + 1 for bit in bits) for name in orders]
        truth.append(dict(zip(orders, ranks, strict=True), bits=bits))
    for name, of_windows in orders.items():
        for context in ("real", "null"):
            for k in ks:
                hidden = [
                    not set(t["bits"]) <= set(list(order)[:k]) for t, order in zip(truth, of_windows, strict=True)
                ]
                delta[name, context, k] = 0.6 * np.array(hidden) * (context == "real")
    divergences = pd.DataFrame(delta)
    divergences.columns.names = ["selector", "context", "k"]
    windows = found.windows.reset_index(drop=True).assign(kl_short_nats=0.6, null_kl_short_nats=0.0)
    selectors = dict.fromkeys(orders, SelectorInfo(sees_target=False, num_evaluations=1))
    zero = pd.DataFrame(0.0, index=divergences.index, columns=divergences.columns)
    of = Measurement(windows, zero, divergences, zero.iloc[:, :0], selectors, found.manifest)
    return of, pd.DataFrame(truth)


def test_the_spectrum_of_a_planted_task_is_its_answer() -> None:
    """Choices need the planted tokens, suffixes reach back to the farthest one, random ones draw until all are there."""
    sizes = np.random.default_rng(1).integers(1, 4, 60)
    measurement, truth = planted(sizes.tolist())
    frame = spectrum_frame(measurement)
    for tolerance in TOLERANCES:
        rows = frame[(frame["context"] == "real") & (frame["tolerance_nats"] == tolerance)]
        for family in ("greedy-kl", "nearest", "random"):
            of = rows[rows["family"] == family]
            assert of["k"].tolist() == truth[family].tolist()
        assert rows[rows["family"] == "greedy-kl"]["k"].tolist() == sizes.tolist()
        shortest = rows[rows["family"] == "nearest"]["min_context_tokens"]
        farthest = [min(bits) for bits in truth["bits"]]
        assert shortest.tolist() == [LENGTHS["full_len"] - position for position in farthest]
    assert (frame[frame["context"] == "null"]["k"] == 0).all()
    found = spectra(measurement)
    assert chosen_family(list(measurement.selectors)) == "greedy-kl"
    chosen, near = found.of("greedy-kl"), found.of("nearest")
    assert chosen and near
    assert chosen.reaching(1.0).value == 3 and near.reaching(0.9).value == np.quantile(
        truth["nearest"], 0.9, method="higher"
    )


def test_where_all_tokens_are_visible_the_share_is_known() -> None:
    """Not of the k before, at which it is estimated, though here it is 1 as well."""
    found = spectra(planted([1] * 60)[0]).of("greedy-kl", tolerance=0.1)
    assert found is not None and found.shares[-1] == Estimate(1.0, 1.0, 1.0, 0.0)
    assert found.shares[-2].mean == 1 and found.shares[-2].low is not None and found.shares[-2].low < 1
    few = spectra(planted([1] * 20)[0]).of("greedy-kl", tolerance=0.1)
    assert few is not None and few.shares[-1] == Estimate(1.0)


@pytest.mark.parametrize("of_last", [5, 9])
def test_the_share_is_known_where_every_window_shows_all_of_its_groups(of_last: int) -> None:
    """Under each context by its own groups."""
    measurement, _ = planted([1] * 60)
    num_groups = [5] * (len(measurement.windows) - 1) + [of_last]
    windows = measurement.windows.assign(num_groups=num_groups, null_num_groups=7)
    manifest = {**measurement.manifest, "influence": {"unit": "word"}}
    found = spectra(replace(measurement, windows=windows, manifest=manifest))
    for context, largest in (("real", of_last), ("null", 7)):
        spectrum = found.of("greedy-kl", context, tolerance=0.1)
        assert spectrum is not None
        assert [share == Estimate(1.0, 1.0, 1.0, 0.0) for share in spectrum.shares] == [k >= largest for k in range(13)]


def test_groups_have_no_row_and_no_length_of_context(measurement: Measurement) -> None:
    windows = measurement.windows.assign(num_groups=6, null_num_groups=6)
    manifest = {**measurement.manifest, "influence": {"unit": "word"}}
    of_words = replace(measurement, windows=windows, manifest=manifest)
    assert spectra(of_words).row_k is None and spectrum_frame(of_words)["min_context_tokens"].isna().all()
    assert measurement.ks == [1, 2, 8] and spectrum_frame(of_words)["k"].equals(spectrum_frame(measurement)["k"])


def test_entries_that_have_read_the_prefix_have_no_row_and_no_length_of_context() -> None:
    """A suffix of them is no shorter context: the same numbers are of a row where masked tokens are hidden."""
    measurement, truth = planted([1, 2, 2, 3, 1, 1] * 10)
    context = {**LENGTHS, "train_len": 12}
    for visibility, row_k in (("hidden", 4), ("contextual", None)):
        of = replace(measurement, manifest={**measurement.manifest, "context": context, "visibility": visibility})
        found, frame = spectra(of), spectrum_frame(of)
        assert found.row_k == row_k and (found.beyond_row() is None) == (row_k is None)
        near = frame[(frame["family"] == "nearest") & (frame["context"] == "real")]
        assert near["k"].tolist() == truth["nearest"].tolist() * len(TOLERANCES)
        assert near["min_context_tokens"].isna().all() == (row_k is None)


@pytest.mark.parametrize(("train_len", "row_k"), [(8, 0), (11, 3), (12, 4), (19, 11)])
def test_beyond_the_row_are_targets_of_which_the_row_does_not_suffice(train_len: int, row_k: int) -> None:
    measurement, truth = planted([1, 2, 2, 3, 1, 1] * 10)
    measurement = replace(
        measurement, manifest={**measurement.manifest, "context": {**LENGTHS, "train_len": train_len}}
    )
    found = spectra(measurement)
    assert found.row_k == row_k
    weights = measurement.windows["weight"]
    expected = weights[LENGTHS["local_len"] + truth["nearest"] > train_len].sum() / weights.sum()
    assert mean(found.beyond_row(tolerance=0.1)) == pytest.approx(expected)
    assert mean(found.beyond_row("null", tolerance=0.1)) == 0
    near, beyond = found.of("nearest", tolerance=0.1), found.beyond_row(tolerance=0.1)
    within = None if near is None else near.at_most(row_k)
    assert within is not None and beyond is not None and within.low is not None and within.high is not None
    assert beyond == Estimate(1 - within.mean, 1 - within.high, 1 - within.low, within.standard_error)


@pytest.mark.parametrize("train_len", [None, 20, 30, 4])
def test_nothing_is_beyond_a_row_that_is_unknown_or_has_all_tokens(train_len: int | None) -> None:
    measurement, _ = planted([1] * 6)
    measurement = replace(
        measurement, manifest={**measurement.manifest, "context": {**LENGTHS, "train_len": train_len}}
    )
    assert spectra(measurement).beyond_row() is None


def test_a_row_between_two_measured_k_has_no_share(measurement: Measurement) -> None:
    manifest = {**measurement.manifest, "context": {**LENGTHS, "train_len": 11}}
    assert spectra(replace(measurement, manifest=manifest)).beyond_row() is None


@pytest.mark.parametrize(("precision", "is_rounded"), [("bf16", True), ("fp32", False)])
def test_divergences_of_a_model_in_bf16_are_rounded(precision: str, is_rounded: bool) -> None:
    measurement, _ = planted([1] * 6)
    measured_in = replace(measurement, manifest={**measurement.manifest, "precision": precision})
    assert spectra(measured_in).is_rounded is is_rounded
