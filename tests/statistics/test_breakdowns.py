from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up import KS, SEES_TARGET, M, made_up_tables
from planted_gains import made_up
from scipy.stats import spearmanr

from olmo_sparsity.statistics.intervals import bootstrap
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.single import breakdowns
from olmo_sparsity.statistics.single.agreement import Agreement, agreement
from olmo_sparsity.statistics.single.breakdowns import ClassSummary, by_class, by_distance, by_sample_size, sample_sizes
from olmo_sparsity.statistics.single.measurement import Measurement, load
from olmo_sparsity.statistics.single.summary import Summary, summarize
from olmo_sparsity.tables.reading import read_table
from olmo_sparsity.view.as_json import agreement_json, class_json, summary_json


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


@pytest.fixture(scope="module")
def pairs(tables: Path, measurement: Measurement) -> tuple[Agreement, ...]:
    """How far each two selectors agree under the real context."""
    return tuple(agreement(tables, measurement))


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
            if selection.context == "mimicry":
                continue
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


@pytest.mark.parametrize("num_ranked", [49, 50])
def test_a_rank_correlation_has_an_interval_where_enough_documents_have_one(
    tables: Path, measurement: Measurement, num_ranked: int
) -> None:
    """In every seventh window `lasso` scores all positions equally."""
    windows = measurement.windows
    is_tied = windows["window_id"] % 7 == 0
    kept = windows.loc[~is_tied, "doc_id"].drop_duplicates()[:num_ranked]
    some = measurement.restrict((is_tied | windows["doc_id"].isin(kept)).to_numpy())
    (pair,) = agreement(tables, some.restrict_selectors({"kl": "kl", "lasso": "lasso"}))
    assert pair.rank_correlation is not None and pair.rank_correlation.has_interval == (num_ranked == 50)
    assert bounds_of(pair.overlap[0].share)


@pytest.mark.parametrize("every", [1, 3])
def test_agreement_and_distances_are_weighted_and_of_the_windows_that_are_kept(
    tables: Path, weighted: Measurement, every: int
) -> None:
    weighted = weighted.restrict(np.arange(len(weighted.windows)) % every == 0)
    weight_of = dict(zip(weighted.windows["window_id"], weighted.weights_W, strict=True))
    rows: dict[str, dict[int, Any]] = {"kl": {}, "lasso": {}}
    for row in read_table(tables, "selections").to_pylist():
        if row["context"] == "real" and row["selector"] in rows and row["window_id"] in weight_of:
            rows[row["selector"]][row["window_id"]] = row
    (pair,) = agreement(tables, weighted.restrict_selectors({"kl": "kl", "lasso": "lasso"}))
    weights = np.array([weight_of[w] for w in rows["kl"]])
    common = [len(set(rows["kl"][w]["positions"]) & set(rows["lasso"][w]["positions"])) / 8 for w in rows["kl"]]
    assert mean(pair.overlap[-1].share) == pytest.approx(np.average(common, weights=weights))
    assert pair.num_windows_left_out == sum(len(set(row["scores"])) == 1 for row in rows["lasso"].values()) > 0
    (entry,) = (e for e in by_distance(tables, weighted) if (e.selector, e.context, e.k) == ("kl", "real", 2))
    for b in entry.bins:
        in_bin = [
            sum(b.from_tokens <= d <= b.to_tokens for d in rows["kl"][w]["distance_tokens"][:2]) / 2 for w in rows["kl"]
        ]
        assert mean(b.share) == pytest.approx(np.average(in_bin, weights=weights))


def test_each_class_has_its_own_gate(summary: Summary, classes: tuple[ClassSummary, ...]) -> None:
    assert summary.gate == "passed"
    of_class = {entry.target_class: entry.summary for entry in classes}
    assert of_class["function-word"].gate == "failed"  # its windows were made up without long gain
    assert all(e.recovered_fraction is None for e in of_class["function-word"].selections)
    assert of_class["repeat"].gate == "passed"
    assert all(e.recovered_fraction is not None for e in of_class["repeat"].selections if e.context != "mimicry")


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
    assert all(e.smallest_k is None for entry in entries for e in entry.summary.effective_sparsity)
    (shown,) = (class_json(entry) for entry in entries if entry.target_class == "repeat")
    assert {e["recovered_fraction"] for e in shown["selections"]} == {
        e["smallest_k"] for e in shown["effective_sparsity"]
    }
    assert {e["recovered_fraction"] for e in shown["selections"]} == {None}
    assert all(e.recovered_fraction is None for summary in by_sample_size(changed) for e in summary.selections)


def test_the_gate_of_all_windows_decides_whether_fewer_have_a_recovered_fraction() -> None:
    """Of the fewest windows the long gain is clearly above 0, or clearly not; of all it is the other way round."""
    measurement = made_up(120, long_gain=0.0, seed=1).restrict_selectors({"kl": "kl"})
    gain_W = measurement.windows["gain_long_nats"]
    assert len(gain_W) > 220
    is_first_W = np.arange(len(gain_W)) < 100
    for of_first, of_others, passed in ((-0.3, 2.0, (False, True)), (1.0, -2.0, (True, False))):
        windows = measurement.windows.assign(gain_long_nats=gain_W + np.where(is_first_W, of_first, of_others))
        windows["loss_long_nats"] = windows["loss_short_nats"] - windows["gain_long_nats"]
        summaries = by_sample_size(dataclasses.replace(measurement, windows=windows))
        fewest, every = summaries[0], summaries[-1]
        assert (fewest.gate_passed, every.gate_passed) == passed
        for of_size in summaries:
            has_fractions = every.gate_passed and of_size.gate_passed
            of_real = [e for e in of_size.selections if e.context == "real"]
            assert {e.recovered_fraction is not None for e in of_real} == {has_fractions}
            assert {e.smallest_k is not None for e in of_size.effective_sparsity} == {has_fractions}
        assert {of_size.gate_passed for of_size in summaries} == {False, True}


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


def test_sample_sizes() -> None:
    assert sample_sizes(6000)[0] == 100 and sample_sizes(6000)[-1] == 6000 and len(sample_sizes(6000)) == 8
    assert sample_sizes(60) == [60]
    sizes = sample_sizes(123_456)
    assert sizes[-1] == 123_456 and all(len(str(size).rstrip("0")) <= 2 for size in sizes[:-1])
    evenly_spaced = 100 * 1234.56 ** (np.arange(8) / 7)
    assert sizes == pytest.approx(evenly_spaced, rel=0.05)  # what rounding to two digits may cause
    for num_windows in (*range(1, 130), *range(130, 1200, 17)):
        sizes = sample_sizes(num_windows)
        assert sizes == sorted(set(sizes)) and sizes[-1] == num_windows and len(sizes) <= 8
        assert sizes[0] == min(num_windows, 100)


def test_by_sample_size_is_what_the_first_windows_say(measurement: Measurement, summary: Summary) -> None:
    summaries = by_sample_size(measurement)
    json.dumps([summary_json(of_size) for of_size in summaries], allow_nan=False)
    assert [of_size.num_windows for of_size in summaries] == sample_sizes(len(measurement.windows))
    assert summaries[-1] == summary
    first = measurement.windows[:100]
    assert summaries[0].long_gain_nats.mean == pytest.approx(first["gain_long_nats"].mean())
    assert summaries[0].num_documents == first["doc_id"].nunique()
    widths = [np.ptp(bounds_of(of_size.long_gain_nats)) for of_size in summaries]
    assert widths[-1] < widths[0]


def test_numbers_of_windows_that_all_weigh_nothing_are_left_out(measurement: Measurement) -> None:
    sizes = sample_sizes(len(measurement.windows))
    weights = np.where(np.arange(len(measurement.windows)) < sizes[1], 0.0, 1.0)
    summaries = by_sample_size(dataclasses.replace(measurement, windows=measurement.windows.assign(weight=weights)))
    assert [of_size.num_windows for of_size in summaries] == sizes[2:]


def test_agreement_by_hand(tables: Path, measurement: Measurement) -> None:
    pairs = agreement(tables, measurement)
    json.dumps([agreement_json(pair) for pair in pairs], allow_nan=False)
    assert len(pairs) == 45
    rows: dict[str, dict[int, Any]] = {name: {} for name in SEES_TARGET}
    for row in read_table(tables, "selections").to_pylist():
        if row["context"] == "real":
            rows[row["selector"]][row["window_id"]] = row
    names = list(SEES_TARGET)
    with warnings.catch_warnings(), np.errstate(all="ignore"):  # flat scores of the lasso, which are left out below
        warnings.simplefilter("ignore")
        correlations_of = {
            w: spearmanr(np.stack([rows[name][w]["scores"] for name in names], axis=1)).statistic
            for w in rows[names[0]]
        }
    for pair in pairs:
        a, b = (rows[name] for name in pair.selectors)
        assert pair.context == "real"
        for overlap in pair.overlap:
            k = overlap.k
            common = [len(set(a[w]["positions"][:k]) & set(b[w]["positions"][:k])) / k for w in a]
            assert mean(overlap.share) == pytest.approx(np.mean(common))
            low, high = bounds_of(overlap.share)
            assert low <= mean(overlap.share) <= high
            assert overlap.chance == k / M
        assert [overlap.k for overlap in pair.overlap] == KS
        flat = [w for w in a if len(set(a[w]["scores"])) == 1 or len(set(b[w]["scores"])) == 1]
        assert pair.num_windows_left_out == len(flat)
        assert (len(flat) > 0) == ("lasso" in pair.selectors)
        i, j = map(names.index, pair.selectors)
        correlations = [correlations_of[w][i, j] for w in a if w not in flat]
        assert mean(pair.rank_correlation) == pytest.approx(np.mean(correlations))
        low, high = bounds_of(pair.rank_correlation)
        assert low < np.mean(correlations) < high


def test_agreement_does_not_depend_on_the_parts(tmp_path: Path) -> None:
    pairs = []
    for name, sizes in (("even", None), ("uneven", [1, 50, 7, 32])):
        tables = made_up_tables(tmp_path / name, part_sizes=sizes)
        pairs.append({tuple(sorted(pair.selectors)): pair for pair in agreement(tables, load(tables))})
    assert pairs[0].keys() == pairs[1].keys()
    for names, pair in pairs[0].items():
        other = pairs[1][names]
        assert pair.num_windows_left_out == other.num_windows_left_out
        assert numbers(pair.rank_correlation) == pytest.approx(numbers(other.rank_correlation))
        for overlap, same in zip(pair.overlap, other.overlap, strict=True):
            assert (overlap.k, overlap.chance) == (same.k, same.chance)
            assert numbers(overlap.share) == pytest.approx(numbers(same.share))


def test_agreement_of_groups_of_documents_has_the_same_means(
    tables: Path, measurement: Measurement, pairs: tuple[Agreement, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "MAX_UNITS", 60)
    for pair, pooled in zip(pairs, agreement(tables, measurement), strict=True):
        assert mean(pooled.rank_correlation) == pytest.approx(mean(pair.rank_correlation))
        assert mean(pooled.overlap[0].share) == pytest.approx(mean(pair.overlap[0].share))
        assert bounds_of(pooled.rank_correlation) != bounds_of(pair.rank_correlation)  # other draws


def test_choices_at_random_agree_by_chance(pairs: tuple[Agreement, ...]) -> None:
    """The made-up scores have nothing to do with each other."""
    for pair in pairs:
        for overlap in pair.overlap:
            low, high = bounds_of(overlap.share)
            assert abs(mean(overlap.share) - overlap.chance) < 1.2 * (high - low)  # nearly five standard errors
        assert abs(mean(pair.rank_correlation)) < 0.1


def test_one_selector_has_none_to_agree_with(tables: Path, measurement: Measurement) -> None:
    assert agreement(tables, measurement.restrict_selectors({"kl": "kl"})) == []


def test_shares_by_distance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shares are counted again row by row; a restricted measurement counts only its own windows."""
    folder = made_up_tables(tmp_path / "tables", num_documents=90)
    everything = load(folder)
    some = everything.restrict(np.arange(len(everything.windows)) < 100)
    rows = read_table(folder, "selections").to_pylist()
    for measurement in (everything, some):
        ids = set(measurement.windows["window_id"])
        entries = by_distance(folder, measurement)
        expected = [key for key in measurement.keys if key.context != "mimicry"]
        assert [(entry.selector, entry.context, entry.k) for entry in entries] == expected
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
