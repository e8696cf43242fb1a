from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up import M, made_up_tables

from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.single import breakdowns
from olmo_sparsity.statistics.single.breakdowns import ClassSummary, by_class, by_distance
from olmo_sparsity.statistics.single.measurement import Measurement, load
from olmo_sparsity.statistics.single.summary import Summary, summarize
from olmo_sparsity.tables.reading import read_table
from olmo_sparsity.view.as_json import class_json


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_up_tables(tmp_path_factory.mktemp("made-up") / "tables", num_documents=240)


@pytest.fixture(scope="module")
def measurement(tables: Path) -> Measurement:
    return load(tables)


@pytest.fixture(scope="module")
def summary(measurement: Measurement) -> Summary:
    return summarize(measurement)


@pytest.fixture(scope="module")
def classes(measurement: Measurement, summary: Summary) -> tuple[ClassSummary, ...]:
    return tuple(by_class(measurement, summary))


def bounds_of(estimate: Estimate | None) -> tuple[float, float]:
    assert estimate is not None and estimate.bounds is not None
    return estimate.bounds


def mean(estimate: Estimate | None) -> float:
    assert estimate is not None
    return estimate.mean


def numbers(estimate: Estimate | None) -> list[float]:
    """Return mean, low and high."""
    return [mean(estimate), *bounds_of(estimate)]


def test_classes_against_groupby(measurement: Measurement, classes: tuple[ClassSummary, ...]) -> None:
    json.dumps([class_json(entry) for entry in classes], allow_nan=False)
    windows = measurement.windows.astype({"target_class": str, "gain_long_nats": float})
    gains = measurement.gains.astype(float)  # pandas would add float32 up in float32
    means = windows.groupby("target_class")["gain_long_nats"].mean().sort_values(ascending=False)
    assert [e.target_class for e in classes] == list(means.index)
    assert sum(e.summary.num_windows for e in classes) == len(windows)
    assert sum(e.window_share.mean for e in classes) == pytest.approx(1.0)
    for entry in classes:
        inside, summary = (windows["target_class"] == entry.target_class).to_numpy(), entry.summary
        assert summary.num_windows == inside.sum()
        assert summary.num_documents == windows["doc_id"][inside].nunique()
        assert entry.window_share.mean == pytest.approx(inside.mean())
        low, high = bounds_of(entry.window_share)
        assert low < inside.mean() < high
        assert summary.long_gain_nats.mean == pytest.approx(means[entry.target_class])
        for selection in summary.selections:
            gain = gains[selection.key][inside].mean()
            assert mean(selection.gain_sparse_nats) == pytest.approx(gain)
            if selection.context == "real":
                null = gains[selection.selector, "null", selection.k][inside].mean()
                assert mean(selection.excess_gain_nats) == pytest.approx(gain - null)
            if summary.gate == "passed":
                assert mean(selection.recovered_fraction) == pytest.approx(gain / means[entry.target_class])


@pytest.fixture(scope="module")
def weighted(measurement: Measurement) -> Measurement:
    """The same windows with weights of 1 to 3."""
    weights = np.random.default_rng(3).integers(1, 4, len(measurement.windows)).astype(float)
    return dataclasses.replace(measurement, windows=measurement.windows.assign(weight=weights))


def test_classes_and_their_contrasts_are_weighted(weighted: Measurement) -> None:
    windows, weights = weighted.windows, weighted.weights_W
    for entry in by_class(weighted, summarize(weighted)):
        inside = (windows["target_class"] == entry.target_class).to_numpy()
        assert entry.window_share.mean == pytest.approx(weights[inside].sum() / weights.sum())
        gains = windows["gain_long_nats"].to_numpy(float)
        assert entry.summary.long_gain_nats.mean == pytest.approx(np.average(gains[inside], weights=weights[inside]))
        assert (entry.contrast is not None) == (entry.target_class in ("induction", "repeat"))
        if entry.contrast is None:
            continue
        by_null = (windows["null_target_class"] == entry.target_class).to_numpy()
        null_gains = windows["null_gain_long_nats"].to_numpy(float)
        assert entry.contrast.null_num_windows == by_null.sum()
        for estimate, values, keep in (
            (entry.contrast.others_gain_nats, gains, ~inside),
            (entry.contrast.null_gain_nats, null_gains, by_null),
            (entry.contrast.null_others_gain_nats, null_gains, ~by_null),
        ):
            assert mean(estimate) == pytest.approx(np.average(values[keep], weights=weights[keep]))
            low, high = bounds_of(estimate)
            assert low < mean(estimate) < high


def test_a_class_without_windows_of_its_rule_under_the_null_context_has_no_contrast_there(
    measurement: Measurement,
) -> None:
    changed = dataclasses.replace(measurement, windows=measurement.windows.assign(null_target_class="other"))
    (repeat,) = (e for e in by_class(changed, summarize(changed)) if e.target_class == "repeat")
    assert repeat.contrast is not None
    assert (repeat.contrast.null_gain_nats, repeat.contrast.null_num_windows) == (None, 0)
    json.dumps(class_json(repeat), allow_nan=False)


def test_intervals_of_classes_are_bca(measurement: Measurement, classes: tuple[ClassSummary, ...]) -> None:
    (repeat,) = (e for e in classes if e.target_class == "repeat")
    inside = measurement.restrict((measurement.windows["target_class"] == "repeat").to_numpy())
    assert repeat.summary == summarize(inside, method="bca") != summarize(inside)
    others = measurement.restrict((measurement.windows["target_class"] != "repeat").to_numpy())
    assert repeat.contrast is not None
    assert repeat.contrast.others_gain_nats == summarize(others, method="bca").long_gain_nats
    assert repeat.contrast.others_gain_nats != summarize(others).long_gain_nats


@pytest.mark.parametrize("every", [1, 3])
def test_distances_are_weighted_and_of_the_windows_that_are_kept(
    tables: Path, weighted: Measurement, every: int
) -> None:
    weighted = weighted.restrict(np.arange(len(weighted.windows)) % every == 0)
    weight_of = dict(zip(weighted.windows["window_id"], weighted.weights_W, strict=True))
    rows: dict[int, Any] = {}
    for row in read_table(tables, "selections").to_pylist():
        if row["context"] == "real" and row["selector"] == "kl" and row["window_id"] in weight_of:
            rows[row["window_id"]] = row
    weights = np.array([weight_of[w] for w in rows])
    (entry,) = (e for e in by_distance(tables, weighted) if (e.selector, e.context, e.k) == ("kl", "real", 2))
    for b in entry.bins:
        in_bin = [
            sum(b.from_tokens <= d <= b.to_tokens for d in row["distance_tokens"][:2]) / 2 for row in rows.values()
        ]
        assert mean(b.share) == pytest.approx(np.average(in_bin, weights=weights))


def test_each_class_has_its_own_gate(summary: Summary, classes: tuple[ClassSummary, ...]) -> None:
    assert summary.gate == "passed"
    of_class = {entry.target_class: entry.summary for entry in classes}
    assert of_class["function-word"].gate == "failed"  # its windows were made up without long gain
    assert all(e.recovered_fraction is None for e in of_class["function-word"].selections)
    assert of_class["repeat"].gate == "passed"
    assert all(e.recovered_fraction is not None for e in of_class["repeat"].selections)


def test_no_class_has_a_recovered_fraction_where_the_gate_of_all_windows_failed(measurement: Measurement) -> None:
    """The class `repeat` alone gains; its own gate passes, the gate of all windows fails."""
    windows = measurement.windows.copy()
    windows.loc[windows["target_class"] != "repeat", "gain_long_nats"] -= 2.0
    changed = dataclasses.replace(measurement, windows=windows)
    whole = summarize(changed)
    assert whole.gate == "failed"
    entries = by_class(changed, whole)
    (repeat,) = (entry.summary for entry in entries if entry.target_class == "repeat")
    assert repeat.gate == "passed"
    assert all(e.recovered_fraction is None for entry in entries for e in entry.summary.selections)
    (shown,) = (class_json(entry) for entry in entries if entry.target_class == "repeat")
    assert {e["recovered_fraction"] for e in shown["selections"]} == {None}


def test_a_rare_class_has_no_interval(measurement: Measurement, summary: Summary) -> None:
    windows = measurement.windows.astype({"target_class": str})
    windows.loc[:10, "target_class"] = "rare"
    with_rare = by_class(dataclasses.replace(measurement, windows=windows), summary)
    (rare,) = (e.summary for e in with_rare if e.target_class == "rare")
    assert rare.num_windows == 11
    assert rare.gate == "not-assessed"
    assert not rare.long_gain_nats.has_interval


@pytest.mark.filterwarnings("error")
def test_a_class_whose_windows_all_weigh_0_is_left_out(measurement: Measurement) -> None:
    windows = measurement.windows
    is_repeat_W = windows["target_class"] == "repeat"
    weightless = dataclasses.replace(measurement, windows=windows.assign(weight=np.where(is_repeat_W, 0.0, 2.0)))
    entries = by_class(weightless, summarize(weightless))
    assert {e.target_class for e in entries} == set(windows["target_class"]) - {"repeat"}
    assert sum(e.window_share.mean for e in entries) == pytest.approx(1)
    by_null = windows.assign(
        null_target_class=np.where(is_repeat_W, "repeat", "other"), weight=np.where(windows.index % 2, 3.0, 1.0)
    )
    by_null.loc[by_null["null_target_class"] == "repeat", "weight"] = 0.0
    by_null.loc[5, ["target_class", "weight"]] = ["repeat", 1.0]
    of_null = dataclasses.replace(measurement, windows=by_null)
    (repeat,) = (e for e in by_class(of_null, summarize(of_null)) if e.target_class == "repeat")
    assert repeat.contrast is not None and repeat.contrast.null_gain_nats is None
    assert repeat.summary.num_windows == is_repeat_W.sum() + (not is_repeat_W[5])


def test_shares_by_distance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shares are counted again row by row; a restricted measurement counts only its own windows."""
    folder = made_up_tables(tmp_path / "tables", num_documents=90)
    everything = load(folder)
    some = everything.restrict(np.arange(len(everything.windows)) < 100)
    rows = read_table(folder, "selections").to_pylist()
    for measurement in (everything, some):
        ids = set(measurement.windows["window_id"])
        entries = by_distance(folder, measurement)
        assert [(entry.selector, entry.context, entry.k) for entry in entries] == measurement.keys
        for entry in entries:
            selector, context, k, bins = entry.selector, entry.context, entry.k, entry.bins
            assert [(b.from_tokens, b.to_tokens) for b in bins] == [(d, d) for d in range(9, 21)]
            chosen = [
                distance
                for row in rows
                if (row["selector"], row["context"]) == (selector, context) and row["window_id"] in ids
                for distance in row["distance_tokens"][:k]
            ]
            assert [mean(b.share) for b in bins] == pytest.approx([chosen.count(d) / len(chosen) for d in range(9, 21)])
            assert sum(b.uniform for b in bins) == pytest.approx(1)
            for b in bins:
                low, high = bounds_of(b.share)
                assert low <= mean(b.share) <= high
    monkeypatch.setattr(breakdowns, "MAX_BINS", 5)  # edges at 8 + 12 i / 5, rounded down
    for entry in by_distance(folder, everything.restrict_selectors({"nearest": "nearest"})):
        of = [row for row in rows if (row["selector"], row["context"]) == ("nearest", entry.context)]
        chosen = [distance for row in of for distance in row["distance_tokens"][: entry.k]]
        assert [(b.from_tokens, b.to_tokens, b.center_tokens) for b in entry.bins] == [
            (9, 10, 9.5), (11, 12, 11.5), (13, 15, 14), (16, 17, 16.5), (18, 20, 19),
        ]  # fmt: skip
        assert [b.uniform for b in entry.bins] == pytest.approx([2 / M, 2 / M, 3 / M, 2 / M, 3 / M])
        for b in entry.bins:
            share = sum(b.from_tokens <= distance <= b.to_tokens for distance in chosen) / len(chosen)
            assert mean(b.share) == pytest.approx(share)
            assert mean(b.relative_share) == pytest.approx(share / b.uniform)
