"""Intervals of sums and gates by resampling documents one by one, and what a summary says of its selectors and k."""

from __future__ import annotations

import dataclasses
from typing import Optional

import numpy as np
import pandas as pd
import pytest
from drawn_documents import expected_mean, expected_of, expected_share, numbers
from made_up import LENGTHS
from planted_gains import made_up

from olmo_sparsity.statistics.intervals.bootstrap import IntervalMethod
from olmo_sparsity.statistics.intervals.estimate import Estimate, SmallestK
from olmo_sparsity.statistics.several.differences import difference
from olmo_sparsity.statistics.single.breakdowns import _edges_of_distances, by_class, has_log_distances
from olmo_sparsity.statistics.single.measurement import LONG_GAIN, Lengths, Measurement, SelectionKey, SelectorInfo
from olmo_sparsity.statistics.single.spectrum import Curve, Spectrum, complement, spectra, spectrum_frame
from olmo_sparsity.statistics.single.summary import Summary, beyond_gate_of, is_fragile, summarize
from olmo_sparsity.statistics.single.sums import quantities_minus


def total(measurement: Measurement, column: str) -> np.ndarray:
    return (measurement.windows[column] * measurement.windows["weight"]).to_numpy()


@pytest.mark.parametrize("gap_cost", [-0.1, 0.0, 0.1])
def test_both_gates_take_the_lower_loss_in_each_resample_anew(gap_cost: float) -> None:
    """Without a cost on average the lower of the two changes from resample to resample."""
    measurement = made_up(60, long_gain=0.3, gap_cost=gap_cost)
    rng = np.random.default_rng(2)
    noise = measurement.windows.assign(
        loss_short_no_gap_nats=measurement.windows["loss_short_no_gap_nats"]
        + rng.normal(0, 0.4, len(measurement.windows)),
        loss_train_len_no_gap_nats=measurement.windows["loss_train_len_nats"]
        - gap_cost / 2
        + rng.normal(0, 0.4, len(measurement.windows)),
    )
    measurement = dataclasses.replace(measurement, windows=noise)
    summary, weights, doc_ids = summarize(measurement), measurement.weights_W, list(noise["doc_id"])
    for found, name in ((summary.gate_gain_nats, "short"), (summary.gain_beyond_nats, "train_len")):
        losses = [total(measurement, f"loss_{name}{gap}_nats") for gap in ("", "_no_gap")]
        expected = expected_of(
            lambda gap, no_gap, long, weight: (np.minimum(gap, no_gap) - long) / weight,
            *losses, total(measurement, "loss_long_nats"), weights, doc_ids=doc_ids,
        )  # fmt: skip
        assert numbers(found) == pytest.approx(expected)
    assert numbers(summary.gap_cost_nats) == pytest.approx(
        expected_mean(noise["loss_short_nats"] - noise["loss_short_no_gap_nats"], weights, doc_ids=doc_ids)
    )
    if gap_cost == 0.0:  # neither baseline is the lower one in all resamples
        assert summary.gap_cost_nats.low is not None and summary.gap_cost_nats.high is not None
        assert summary.gap_cost_nats.low < 0 < summary.gap_cost_nats.high


def test_intervals_of_a_selection_are_of_weighted_documents() -> None:
    measurement = made_up(80, long_gain=0.6, seed=2)
    summary, weights, doc_ids = summarize(measurement), measurement.weights_W, list(measurement.windows["doc_id"])
    gains = {key: measurement.gains[key].to_numpy() for key in measurement.keys}
    for context in ("real", "null"):
        key = SelectionKey("unmask-one", context, 4)
        entry, gain = summary.at(*key), gains[key]
        over_random = gain - gains[SelectionKey("random", context, 4)]
        optimism = measurement.optimisms[key].to_numpy()
        for found, values in (
            (entry.gain_sparse_nats, gain),
            (entry.gain_over_random_nats, over_random),
            (entry.optimism_nats, optimism),
            (entry.corrected_gain_nats, gain - optimism),
        ):
            assert numbers(found) == pytest.approx(expected_mean(values, weights, doc_ids=doc_ids))
        expected = expected_of(
            lambda sparse, long: sparse / long, gain * weights, total(measurement, "gain_long_nats"), doc_ids=doc_ids
        )
        assert numbers(entry.recovered_fraction) == pytest.approx(expected)
        (xx, xy), (_, yy) = np.cov(gain, measurement.windows[LONG_GAIN[context]], aweights=weights)
        directions = np.linalg.eigh([[xx, xy], [xy, yy]])[1]
        fit = entry.figure4
        assert fit.ols_slope is not None and fit.ols_slope.mean == pytest.approx(xy / xx)
        assert fit.correlation is not None and fit.correlation.mean == pytest.approx(xy / np.sqrt(xx * yy))
        assert fit.tls_slope is not None
        assert fit.tls_slope.mean == pytest.approx(directions[1, 1] / directions[0, 1])


@pytest.mark.parametrize(
    ("mean", "low", "error", "expected"),
    [
        (0.374, 0.1, 0.125, True),
        (0.375, 0.1, 0.125, False),
        (0.2, 0.0, 0.125, False),  # its interval holds 0
        (0.2, 0.1, None, False),
        (-0.3, -0.4, 0.125, False),
    ],
)
def test_a_gain_is_fragile_below_three_standard_errors(
    mean: float, low: float, error: Optional[float], expected: bool
) -> None:
    assert is_fragile(Estimate(mean, low, 0.9, error)) == expected


def test_a_summary_is_fragile_by_its_long_gain_where_the_gate_passed() -> None:
    seen = set()
    for long_gain, gap_cost in ((0.16, 0.0), (0.3, 0.15), (0.5, 0.4), (1.0, 0.0)):
        summary = summarize(made_up(60, long_gain, gap_cost=gap_cost))
        gain, at_gate = summary.long_gain_nats, summary.gate_gain_nats
        assert gain.low is not None and gain.standard_error is not None and at_gate.low is not None
        assert summary.gate == ("passed" if at_gate.low > 0 else "failed")
        assert summary.may_be_gap == (gain.low > 0 >= at_gate.low)
        assert summary.is_fragile == (at_gate.low > 0 and gain.mean < 3 * gain.standard_error)
        if summary.gate_passed:
            hidden = summary.without_recovered_fractions()
            assert not hidden.is_fragile
            assert all(of.recovered_fraction is None for of in hidden.selections)
        seen.add((summary.gate_passed, summary.is_fragile, summary.may_be_gap))
    assert seen == {(True, True, False), (True, False, False), (False, False, True)}


def test_the_second_gate_applies_where_tokens_lie_beyond_a_known_row() -> None:
    above, below = Estimate(0.2, 0.1, 0.3), Estimate(0.2, -0.1, 0.5)
    for train_len, gain, gate in (
        (19, above, "passed"),
        (19, below, "failed"),
        (20, above, "not-applicable"),
        (None, None, "not-applicable"),
    ):
        assert beyond_gate_of(gain, Lengths(local_len=8, full_len=20, num_long_range=12, train_len=train_len)) == gate


@pytest.fixture
def summary() -> Summary:
    """Of selectors in an order of its own, two of which are not of the package."""
    of = summarize(made_up(60, long_gain=0.8))
    entry = of.at("kl", "real", 1)
    sees = {
        "nearest": False, "mask-one": True, "own": False, "greedy-kl": False, "random": False, "own-seeing": True,
        "kl": False, "unmask-one": True, "attention": False,
    }  # fmt: skip
    selections = [
        dataclasses.replace(
            entry,
            selector=name,
            context=context,
            k=k,
            info=SelectorInfo(saw, 1),
            prediction_recovered=Estimate(i + k / 100 + (context == "null") / 2),
        )
        for i, (name, saw) in enumerate(sees.items())
        for context in ("real", "null")
        for k in (8, 1, 4, 2)
    ]
    return dataclasses.replace(of, selections=tuple(selections), num_units=12.0)


def test_selectors_in_the_order_of_the_headline(summary: Summary) -> None:
    assert summary.selectors[:3] == ["nearest", "mask-one", "own"]
    assert summary.blind_selectors == ["greedy-kl", "kl", "nearest", "own", "attention"]
    assert summary.seeing_selectors == ["unmask-one", "mask-one", "own-seeing"]
    assert (summary.ks, summary.shown_ks, summary.end_ks, summary.ks_of_few) == (
        [1, 2, 4, 8],
        [1, 2, 8],
        [1, 8],
        [1, 2],
    )
    many = dataclasses.replace(summary, num_units=64.0)
    assert (many.end_ks, many.ks_of_few) == ([1, 8], [1, 8])
    assert [summary.at("kl", "null", k).prediction_recovered for k in (1, 8)] == [Estimate(6.51), Estimate(6.58)]


def test_d_stands_beside_its_controls_of_the_same_k(summary: Summary) -> None:
    null = dataclasses.replace(summary.at("attention", "null", 4), prediction_recovered=Estimate(0.77))
    kept = [e for e in summary.selections if e.key != null.key]
    found = dataclasses.replace(summary, selections=(*kept, null)).prediction_recovered("attention", 4)
    assert (found.real, found.random, found.null) == (Estimate(8.04), Estimate(4.04), Estimate(0.77))


def test_what_a_manifest_says_stands_in_the_summary() -> None:
    measurement = made_up(20, long_gain=0.5)
    assert summarize(measurement).null_context == "document"
    changes = {
        "influence": {"null_context": "shuffled", "sampling": "given"}, "run_id": "1",
        "run": "a", "source": "b", "split": "c",
    }  # fmt: skip
    summary = summarize(dataclasses.replace(measurement, manifest={**measurement.manifest, **changes}))
    assert (summary.null_context, summary.estimand) == ("shuffled", "given")
    assert (summary.run, summary.run_id, summary.source, summary.split) == ("a", "1", "b", "c")
    assert (summary.unit, summary.num_units, summary.lengths) == ("token", 12.0, measurement.lengths)
    bare = {key: value for key, value in measurement.manifest.items() if key != "influence"}
    assert dataclasses.replace(measurement, manifest=bare).estimand == "targets"
    entry = summary.at("kl", "real", 4)
    assert (entry.mean_tokens, entry.all_visible_share) == (4.0, 0.0)


def test_a_difference_is_of_the_quantities_that_both_have() -> None:
    first, second = {"a": np.array(2.0), "b": np.array(1.0)}, {"c": np.array(1.0), "a": np.array(5.0)}
    assert quantities_minus(second, first) == {"a": 3.0}  # type: ignore[arg-type]


def test_distances_of_long_contexts_have_edges_of_equal_ratios() -> None:
    few, many = (Lengths(local_len=8, full_len=8 + m, num_long_range=m) for m in (63, 64))
    assert (has_log_distances(few), has_log_distances(many)) == (False, True)
    assert _edges_of_distances(few).tolist() == [8 + 63 * i // 16 for i in range(17)]
    exact = [8 * 9 ** (i / 16) for i in range(17)]
    assert _edges_of_distances(many).tolist() == sorted({round(edge) for edge in exact})
    long = Lengths(local_len=64, full_len=16448, num_long_range=16384)
    assert _edges_of_distances(long).tolist() == [round(64 * 257 ** (i / 16)) for i in range(17)]


def test_weighted_windows_by_class() -> None:
    measurement = made_up(100, long_gain=0.6, seed=5)
    rng = np.random.default_rng(0)
    classes = pd.Series(rng.choice(["repeat", "other", "induction"], len(measurement.windows), p=[0.6, 0.3, 0.1]))
    windows = measurement.windows.assign(target_class=classes, null_target_class=rng.permutation(classes))
    measurement = dataclasses.replace(measurement, windows=windows)
    doc_ids, weights = list(windows["doc_id"]), measurement.weights_W
    for entry in by_class(measurement, summarize(measurement)):
        inside = (classes == entry.target_class).to_numpy()
        assert numbers(entry.window_share) == pytest.approx(expected_share(inside, weights, doc_ids=doc_ids))
        if entry.contrast is not None:
            others = (windows["null_target_class"] != entry.target_class).to_numpy()
            gain = np.average(windows["null_gain_long_nats"][others], weights=weights[others])
            assert entry.contrast.null_others_gain_nats is not None
            assert entry.contrast.null_others_gain_nats.mean == pytest.approx(gain)


@pytest.mark.parametrize("method", ["percentile", "bca"])
def test_shares_of_targets_have_exact_intervals(method: IntervalMethod) -> None:
    measurement = made_up(70, long_gain=0.6, seed=7)
    summary, weights, doc_ids = (
        summarize(measurement, method),
        measurement.weights_W,
        list(measurement.windows["doc_id"]),
    )
    short = measurement.windows["kl_short_nats"].to_numpy()
    at_most_1 = (short <= 0.05) | (measurement.divergences["kl", "real", 1].to_numpy() <= 0.05)
    for found, is_in in (
        (summary.none_needed_share, short <= 0.05),
        (summary.null_none_needed_share, measurement.windows["null_kl_short_nats"].to_numpy() <= 0.05),
        (summary.at("kl", "real", 1).sufficient_share, at_most_1),
    ):
        assert numbers(found) == pytest.approx(expected_share(is_in, weights, doc_ids=doc_ids))


def test_a_share_of_all_targets_has_a_length_but_where_k_is_all() -> None:
    """Of 60 documents that count alike the lower end is 0.025^(1/60); that of a difference of two such shares as far below 0."""
    made = made_up(60, long_gain=0.6, seed=7)
    windows = made.windows.drop_duplicates("doc_id").assign(weight=1.0, null_kl_short_nats=0.3, kl_short_nats=0.01)
    rows = windows.index
    frames = {
        "gains": made.gains.loc[rows],
        "divergences": made.divergences.loc[rows] * 0,
        "optimisms": made.optimisms.loc[rows],
    }
    one, all_of_4 = (
        dataclasses.replace(
            made, windows=windows, manifest={**made.manifest, "context": {**LENGTHS, "num_long_range": num}}, **frames
        )
        for num in (5, 4)
    )
    low = 0.025 ** (1 / 60)
    summary = summarize(one)
    assert numbers(summary.none_needed_share) == pytest.approx([1, low, 1])
    assert numbers(summary.null_none_needed_share) == pytest.approx([0, 0, 1 - low])
    key = SelectionKey("kl", "null", 4)
    assert numbers(summary.at(*key).sufficient_share) == pytest.approx([1, low, 1])
    assert summarize(all_of_4).at(*key).sufficient_share == Estimate(1.0, 1.0, 1.0, 0.0)
    assert numbers(difference(one, one).of_selection(key, "sufficient_share")) == pytest.approx([0, low - 1, 1 - low])
    assert difference(all_of_4, all_of_4).of_selection(key, "sufficient_share") == Estimate(0.0, 0.0, 0.0, 0.0)
    assert difference(one, one).of_windows("none_needed_share") == Estimate(0.0, 0.0, 0.0, 0.0)
    other = dataclasses.replace(one, windows=windows.assign(loss_long_nats=windows["loss_long_nats"] + 0.1))
    assert numbers(difference(one, other).of_windows("none_needed_share")) == pytest.approx([0, low - 1, 1 - low])


def test_a_share_and_its_complement() -> None:
    assert complement(Estimate(0.3, 0.1, 0.45, 0.08)) == Estimate(0.7, pytest.approx(0.55), 0.9, 0.08)
    assert complement(Estimate(0.3)) == Estimate(0.7)


def test_the_k_that_reaches_a_share_with_the_ends_of_its_band() -> None:
    shares = (Estimate(0.1, 0.0, 0.5), Estimate(0.5, 0.3, 0.8), Estimate(0.8, 0.6, 0.9), Estimate(0.9, 0.79, 1.0))
    found = Spectrum(Curve("kl", "real", 0.05), (0, 1, 4, 9), shares)
    assert found.reaching(0.5) == SmallestK(1, 0, 4)
    assert found.reaching(0.8) == SmallestK(4, 1, None)
    assert found.reaching(0.95) == SmallestK(None, 9, None)
    assert found.reaching(0.1 + 0.4 + 1e-12) == SmallestK(1, 0, 4)  # but for rounding
    bare = Spectrum(found.curve, found.ks, tuple(share.without_interval() for share in shares))
    assert bare.reaching(0.5) == SmallestK(1, None, None)
    assert (found.has_intervals, bare.has_intervals, found.at_most(4), found.at_most(2)) == (
        True,
        False,
        shares[2],
        None,
    )


def test_rows_of_the_spectrum_are_of_their_windows() -> None:
    measurement = made_up(30, 0.5)
    windows = measurement.windows.assign(target_class=[f"c{i % 4}" for i in range(len(measurement.windows))])
    measurement = dataclasses.replace(
        measurement, windows=windows, manifest={**measurement.manifest, "precision": "bf16"}
    )
    frame = spectrum_frame(measurement)
    assert set(frame["max_k"]) == {4} and frame["min_context_tokens"].isna().all()
    for _, rows in frame.groupby(["family", "context", "tolerance_nats"]):
        for column in ("window_id", "doc_id", "weight", "target_class"):
            assert rows[column].tolist() == windows[column].tolist()
    assert spectra(measurement).is_rounded
    assert not spectra(
        dataclasses.replace(measurement, manifest={**measurement.manifest, "precision": "fp32"})
    ).is_rounded
    assert spectra(measurement).max_k == 4
