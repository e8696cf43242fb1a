from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from made_up import DRAWS, KS, LENGTHS, NULL_DRAWS, SEES_TARGET, made_up_tables
from pandas.testing import assert_frame_equal
from planted_gains import SELECTORS, made_up, mean, width
from scipy.stats import linregress

from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.intervals import bootstrap
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.intervals.lines import LineFit
from olmo_sparsity.statistics.intervals.ratios import MIN_RATIO_DOCUMENTS
from olmo_sparsity.statistics.several.differences import difference
from olmo_sparsity.statistics.single.measurement import (
    CLASS_COLUMNS,
    NUMBERS,
    OF_ROW,
    Lengths,
    SelectionKey,
    SelectorInfo,
    load,
    window_rows,
)
from olmo_sparsity.statistics.single.summary import (
    FRACTIONS,
    SELECTION_QUANTITIES,
    WINDOW_QUANTITIES,
    gate_of,
    is_fragile,
    summarize,
)
from olmo_sparsity.tables.parts import part_path, write_parquet
from olmo_sparsity.tables.reading import read_table
from olmo_sparsity.view.as_json import summary_json
from olmo_sparsity.view.summary_tables import loss_table
from olmo_sparsity.wording.gates import beyond_gate_words, gate_words, gates_not_passed
from olmo_sparsity.wording.setup import length_words


def test_load_reads_every_number_to_its_place(tmp_path: Path) -> None:
    tables = made_up_tables(tmp_path / "tables")
    measurement = load(tables)
    assert list(measurement.windows["window_id"]) == list(measurement.gains.index) == list(range(90))
    assert measurement.ks == KS
    assert {name: info.sees_target for name, info in measurement.selectors.items()} == SEES_TARGET
    assert measurement.selectors["lasso"].num_evaluations == list(SEES_TARGET).index("lasso")
    expected = {SelectionKey(s, c, k) for s in SEES_TARGET for c in ("real", "null") for k in KS}
    assert set(measurement.keys) == expected
    with_optimism = [s for s, sees_target in SEES_TARGET.items() if sees_target or s == "random"]
    assert set(measurement.optimisms) == {(s, c, k) for s in with_optimism for c in ("real", "null") for k in KS}
    assert measurement.divergences.columns.equals(measurement.gains.columns)
    assert measurement.lengths == Lengths(**LENGTHS)
    for row in read_table(tables, "windows").to_pylist():
        ours = measurement.windows.iloc[row["window_id"]]
        for name in ("doc_id", *CLASS_COLUMNS, *NUMBERS):
            assert ours[name] == row[name]
        gains = np.subtract(row["resampled_loss_short_nats"], row["resampled_loss_long_nats"])
        assert ours["optimism_all_nats"] == pytest.approx(gains.mean() + row["kl_short_to_long_nats"], abs=1e-5)
    resampled: dict[tuple[int, str, str], list[np.ndarray]] = {}
    for row in read_table(tables, "selections").to_pylist():
        window_id, selector, context = row["window_id"], row["selector"], row["context"]
        if "resampled" in context:
            of_context = "null" if context.startswith("null") else "real"
            optimism = np.add(row["gain_sparse_nats"], row["kl_short_to_sparse_nats"])
            resampled.setdefault((window_id, selector, of_context), []).append(optimism)
            continue
        for frame, column in ((measurement.gains, "gain_sparse_nats"), (measurement.divergences, "kl_sparse_nats")):
            assert [frame.loc[window_id, (selector, context, k)] for k in KS] == row[column]
    assert len(resampled) == 90 * 2 * len(with_optimism)
    for (window_id, selector, context), draws in resampled.items():
        assert len(draws) == (DRAWS if context == "real" else NULL_DRAWS)
        ours = [measurement.optimisms.loc[window_id, (selector, context, k)] for k in KS]
        assert ours == pytest.approx(np.mean(draws, axis=0), rel=1e-5, abs=1e-7)


def test_windows_and_gains_come_from_parts_of_any_size(tmp_path: Path) -> None:
    """The numbers equal those that DuckDB reads from the same files; parts of other sizes hold the same windows."""
    even, uneven = (
        load(made_up_tables(tmp_path / "even")),
        load(made_up_tables(tmp_path / "uneven", part_sizes=[1, 50, 7, 32])),
    )
    assert_frame_equal(even.windows, uneven.windows, check_categorical=False)
    assert_frame_equal(even.gains, uneven.gains[even.gains.columns])
    files = {name: str(tmp_path / "uneven" / name / "*.parquet") for name in ("windows", "selections")}
    columns = [name for name in uneven.windows.columns if name != "optimism_all_nats"]
    rows = duckdb.sql(f"select {', '.join(columns)} from '{files['windows']}' order by window_id").fetchall()
    assert [tuple(row) for row in uneven.windows[columns].itertuples(index=False)] == rows
    for selector, context, k in uneven.keys:
        found = duckdb.sql(
            f"select gain_sparse_nats[{KS.index(k) + 1}] from '{files['selections']}' "
            f"where selector = '{selector}' and context = '{context}' order by window_id"
        ).fetchall()
        assert [(gain,) for gain in uneven.gains[selector, context, k]] == found
    assert uneven.windows["doc_id"].nunique() == summarize(uneven).num_documents == 60


def test_a_measurement_is_held_in_few_bytes(tmp_path: Path) -> None:
    """A gain takes 4 bytes, a document's name of 16 characters 24; taking a column or the first windows copies nothing."""
    measurement = load(made_up_tables(tmp_path / "tables"))
    assert {str(kind) for kind in measurement.gains.dtypes} == {"float32"}
    assert str(measurement.windows["target_class"].dtype) == "category"
    bytes_a_window = measurement.windows.drop(columns=list(CLASS_COLUMNS)).memory_usage(index=False).sum() / 90
    assert bytes_a_window <= 8 + 24.2 + 4 * (len(NUMBERS) + 1) + 8 + 1
    gains = measurement.gains["kl", "real", 8].to_numpy()
    assert gains.flags.c_contiguous
    assert np.shares_memory(gains, measurement.restrict(slice(10)).gains["kl", "real", 8].to_numpy())


def test_a_window_without_its_selections_is_refused(tmp_path: Path) -> None:
    for name, spoil, said in (
        ("fewer", lambda table: table.slice(1), "some windows lack selections"),
        (
            "strange",
            lambda table: table.set_column(0, "window_id", pc.add(table["window_id"], 1)),
            "its parts belong to different measurements",
        ),
        (
            "other",
            lambda table: table.set_column(2, "selector", pc.replace_substring(table["selector"], "mask-one", "bell")),
            "its parts belong to different measurements",
        ),
    ):
        tables = made_up_tables(tmp_path / name)
        path = part_path(tables, "selections", part=1)
        table = pq.read_table(path)
        write_parquet(spoil(table).cast(table.schema), path)
        with pytest.raises(UserError) as error:
            load(tables)
        assert str(error.value) == f"{tables}: {said}; run the same `olmo-sparsity influence` again, with --overwrite"


def test_what_is_unknown_of_one_window_is_no_number_of_all(tmp_path: Path) -> None:
    tables = made_up_tables(tmp_path / "tables", num_documents=8, selectors=("unmask-one", "random"))
    measured, path = load(tables), part_path(tables, "windows", part=1)
    table = pq.read_table(path)
    name = "train_overlap"
    values = [None, *table[name].to_pylist()[1:]]
    field = table.schema.field(name)
    table = table.set_column(table.column_names.index(name), field, pa.array(values, field.type))
    write_parquet(table, path)
    found = load(tables)
    assert "train_overlap" in measured.windows and "train_overlap" not in found.windows
    assert summarize(found).overlap_percent is None


def test_window_rows() -> None:
    windows = pd.DataFrame({"window_id": [2, 3, 5, 8]})
    assert window_rows(windows, [5, 2, 8, 4, 9, 1]).tolist() == [2, 0, 3, -1, -1, -1]


def test_more_documents_than_units_keep_their_means_and_the_widths_of_their_intervals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measurement = made_up(1500, long_gain=0.4)
    every = summarize(measurement)
    monkeypatch.setattr(bootstrap, "MAX_UNITS", 500)
    pooled = summarize(measurement)
    assert pooled.num_documents == every.num_documents == 1500
    assert pooled.num_windows == every.num_windows
    ratios = []
    for one, other in zip(every.selections, pooled.selections, strict=True):
        for name in ("gain_sparse_nats", "recovered_fraction", "excess_gain_nats"):
            if one.estimate(name) is not None:
                assert mean(other.estimate(name)) == pytest.approx(mean(one.estimate(name)))
                ratios.append(width(other.estimate(name)) / width(one.estimate(name)))
    assert ratios and all(0.8 < ratio < 1.25 for ratio in ratios)
    change = difference(measurement, measurement)
    assert change.of_windows("long_gain_nats") == Estimate(0.0, 0.0, 0.0, 0.0)  # both in the same groups


def test_means_and_ratios_of_means_by_brute_force() -> None:
    measurement = made_up(300, long_gain=0.4)
    summary = summarize(measurement)
    windows, gains = measurement.windows, measurement.gains
    weights = windows["weight"] / windows["weight"].sum()

    def weighted(values: pd.Series) -> float:
        return float((weights * values).sum())

    long_gain, null = weighted(windows["gain_long_nats"]), weighted(windows["null_gain_long_nats"])
    assert (summary.num_windows, summary.num_documents, summary.estimand) == (len(windows), 300, "targets")
    assert summary.overlap_percent == pytest.approx(100 * weighted(windows["train_overlap"]))
    losses = {name: weighted(windows[name]) for name in NUMBERS if name.startswith("loss_")}
    shorts, rows = (
        [losses[f"loss_{which}_nats"], losses[f"loss_{which}_no_gap_nats"]] for which in ("short", "train_len")
    )
    assert shorts[0] > shorts[1] and rows[0] > rows[1]  # the gap costs
    expected_of_windows = {
        "gap_cost_nats": shorts[0] - shorts[1],
        "gate_gain_nats": min(shorts) - losses["loss_long_nats"],
        "gain_beyond_nats": min(rows) - losses["loss_long_nats"],
        "long_gain_nats": long_gain,
        "null_long_gain_nats": null,
        "content_gain_nats": long_gain - null,
        "optimism_all_nats": weighted(windows["optimism_all_nats"]),
        "corrected_gain_all_nats": long_gain - weighted(windows["optimism_all_nats"]),
        "calibration_nats": weighted(windows["entropy_short_nats"] - windows["loss_short_nats"]),
        "none_needed_share": weighted(windows["kl_short_nats"] <= 0.05),
        "null_none_needed_share": weighted(windows["null_kl_short_nats"] <= 0.05),
        **{name: weighted(windows[name]) for name in NUMBERS if name in WINDOW_QUANTITIES},
    }
    assert set(expected_of_windows) == set(WINDOW_QUANTITIES)
    assert {name: summary.of_windows(name).mean for name in WINDOW_QUANTITIES} == pytest.approx(expected_of_windows)
    assert len(summary.selections) == 12
    assert (summary.selectors, summary.ks) == (list(SELECTORS), [1, 4])
    for entry in summary.selections:
        selector, context, k = entry.key
        assert summary.at(selector, context, k) is entry
        of = {(s, c): weighted(gains[s, c, k]) for s in SELECTORS for c in ("real", "null")}
        gain = weighted(gains[selector, context, k])
        from_short = weighted(windows["null_kl_short_nats" if context == "null" else "kl_short_nats"])
        expected: dict[str, float] = {
            "gain_sparse_nats": gain,
            "prediction_recovered": 1 - weighted(measurement.divergences[selector, context, k]) / from_short,
        }
        expected["recovered_fraction"] = gain / long_gain
        up_to_k = [measurement.divergences[selector, context, one] <= 0.05 for one in (1, 4) if one <= k]
        is_enough = windows["null_kl_short_nats" if context == "null" else "kl_short_nats"] <= 0.05
        expected["sufficient_share"] = weighted(pd.Series(np.logical_or.reduce([is_enough, *up_to_k])))
        if selector != "random":
            expected["gain_over_random_nats"] = gain - of["random", context]
        if context == "real":
            expected["excess_gain_nats"] = gain - of[selector, "null"]
        if selector in ("unmask-one", "random"):
            expected["optimism_nats"] = weighted(measurement.optimisms[selector, context, k])
            expected["corrected_gain_nats"] = gain - expected["optimism_nats"]
        assert {name: mean(entry.estimate(name)) for name in expected} == pytest.approx(expected)
        assert {name for name in SELECTION_QUANTITIES if entry.estimate(name) is not None} == set(expected)
        assert entry.info == SelectorInfo(SELECTORS[selector], 7)
    with pytest.raises(KeyError):
        summary.at("kl", "real", 2)


def test_the_slopes_of_figure_4_take_the_long_gain_of_the_same_context() -> None:
    measurement = made_up(200, long_gain=0.4)
    measurement.windows["weight"] = 1.0
    for entry in summarize(measurement).selections:
        x = measurement.gains[entry.key]
        y = measurement.windows["gain_long_nats" if entry.context == "real" else "null_gain_long_nats"]
        expected, fit = linregress(x, y), entry.figure4
        assert mean(fit.ols_slope) == pytest.approx(expected.slope)
        assert mean(fit.correlation) == pytest.approx(expected.rvalue)
        main = np.linalg.svd(np.stack([x - x.mean(), y - y.mean()], axis=1), full_matrices=False)[2][0]
        assert mean(fit.tls_slope) == pytest.approx(main[1] / main[0])
        if entry.context == "real":
            assert fit.correlation is not None and fit.correlation.bounds is not None
            low, high = fit.correlation.bounds
            assert 0.2 < low < high < 0.8


def test_differences_are_paired_and_find_what_was_planted() -> None:
    summary = summarize(made_up(400, long_gain=0.4))
    for k in (1, 4):
        gain = summary.at("unmask-one", "real", k).gain_sparse_nats
        for selector, quantity, planted in (
            ("unmask-one", "excess_gain_nats", 0.2),
            ("random", "excess_gain_nats", 0.05),
            ("unmask-one", "corrected_gain_nats", 0.2),
            ("kl", "gain_over_random_nats", 0.2),
        ):
            estimate = summary.at(selector, "real", k).estimate(quantity)
            assert abs(mean(estimate) - planted) < width(estimate), (selector, quantity)  # four standard errors
            assert width(estimate) < 0.5 * width(gain)


def test_two_measurements_of_the_same_windows_are_compared_in_pairs() -> None:
    """The second gains 0.02 more everywhere, with little noise: the paired interval shows it, separate ones would overlap."""
    first = made_up(300, long_gain=0.4)
    noise = np.random.default_rng(1).normal(0, 0.01, len(first.windows))
    windows = first.windows.assign(gain_long_nats=first.windows["gain_long_nats"] + 0.02 + noise)
    gains = first.gains.copy()
    gains["kl", "real", 4] += 0.03
    second = dataclasses.replace(first, windows=windows, gains=gains)
    change, key = difference(first, second), SelectionKey("kl", "real", 4)
    long_gain, kl = change.of_windows("long_gain_nats"), change.of_selection(key, "gain_over_random_nats")
    weights = windows["weight"]
    assert long_gain.mean == pytest.approx(0.02 + np.average(noise, weights=weights))
    assert long_gain.bounds is not None and long_gain.bounds[0] < 0.02 < long_gain.bounds[1]
    assert width(long_gain) < 0.05 * width(summarize(first).long_gain_nats)
    assert kl is not None and [kl.mean, kl.low, kl.high] == pytest.approx([0.03, 0.03, 0.03])
    expected = [
        np.average(m.gains[key], weights=weights) / np.average(m.windows["gain_long_nats"], weights=weights)
        for m in (first, second)
    ]
    assert mean(change.of_selection(key, "recovered_fraction")) == pytest.approx(expected[1] - expected[0])
    assert change.of_selection(SelectionKey("kl", "real", 2), "recovered_fraction") is None


def test_without_random_there_is_no_gain_over_it() -> None:
    measurement = made_up(50, long_gain=1.0)
    alone = measurement.restrict_selectors({"kl": "kl"})
    assert list(alone.selectors) == ["kl"] and len(alone.keys) == 4 and alone.optimisms.empty
    for entry in summarize(alone).selections:
        assert entry.gain_over_random_nats is None
        assert entry.gain_sparse_nats is not None


def test_a_failed_gate_hides_fractions_and_is_stated_in_words() -> None:
    failed = summarize(made_up(200, long_gain=0.0))
    assert failed.gate == "failed" and not failed.gate_passed
    assert all(e.estimate(name) is None for e in failed.selections for name in FRACTIONS)
    assert all(e.gain_sparse_nats is not None for e in failed.selections)
    assert "GATE FAILED" in gate_words(failed)
    passed = summarize(made_up(200, long_gain=0.5))
    assert passed.gate == "passed" and passed.gate_passed
    assert all(e.recovered_fraction is not None for e in passed.selections)
    assert "passed" in gate_words(passed)


@pytest.mark.parametrize(
    ("low", "gate"), [(0.01, "passed"), (0.0, "failed"), (-0.01, "failed"), (None, "not-assessed")]
)
def test_gate_of(low: float | None, gate: str) -> None:
    assert gate_of(Estimate(0.02, low, 0.03)) == gate


@pytest.mark.parametrize(
    ("gain", "fragile"),
    [
        (Estimate(0.29, 0.09, 0.49, 0.1), True),
        (Estimate(0.75, 0.25, 1.25, 0.25), False),  # three standard errors are enough
        (Estimate(0.29, 0.0, 0.58, 0.1), False),  # no gain is shown, so the gate failed
        (Estimate(0.29, 0.09, 0.49), False),
        (Estimate(-0.29, -0.49, -0.09, 0.1), False),
    ],
)
def test_a_gain_below_three_standard_errors_is_fragile(gain: Estimate, fragile: bool) -> None:
    assert is_fragile(gain) == fragile


def test_a_summary_without_fractions_has_no_fragile_ones() -> None:
    summary = dataclasses.replace(summarize(made_up(60, long_gain=0.5)), is_fragile=True)
    without = summary.without_recovered_fractions()
    assert not without.is_fragile and all(one.recovered_fraction is None for one in without.selections)


@pytest.mark.parametrize("more", [0, 7])
def test_the_second_gate_does_not_apply_where_nothing_lies_beyond_the_row(more: int) -> None:
    measurement = made_up(60, long_gain=0.5)
    lengths = {**measurement.manifest["context"], "train_len": measurement.lengths.full_len + more}
    same = {name: measurement.windows["loss_long_nats"] for name in OF_ROW}
    windows = measurement.windows.assign(**same)
    manifest = {**measurement.manifest, "context": lengths}
    summary = summarize(dataclasses.replace(measurement, windows=windows, manifest=manifest))
    assert summary.beyond_gate == summary_json(summary)["beyond_gate"] == "not-applicable"
    assert gates_not_passed(summary) == []
    words = beyond_gate_words(summary)
    assert "does not apply" in words and "FAILED" not in words
    assert "shows selection, not length generalization" in words and "so nothing lies beyond it" in words
    has = "is longer than" if more else "is as long as"
    assert length_words(summary.lengths).endswith(f"A row {has} the full context: nothing lies beyond it.")
    assert [summary.of_windows(name) for name in (*OF_ROW, "gain_beyond_nats")] == [None] * 3
    assert not [row for row in loss_table(summary).rows if "last" in row[0].text or "row" in row[0].text]


@pytest.mark.parametrize("num_documents", [1, 2, 49])
def test_few_documents_have_no_interval_and_assess_no_gate(num_documents: int) -> None:
    summary = summarize(made_up(num_documents, long_gain=5.0))
    assert not summary.long_gain_nats.has_interval
    assert summary.gate == summary.beyond_gate == "not-assessed"
    assert all(selection.recovered_fraction is None for selection in summary.selections)
    assert "fewer than 50 documents" in gate_words(summary) and "fewer than 50 documents" in beyond_gate_words(summary)


@pytest.mark.parametrize("num_documents", [MIN_RATIO_DOCUMENTS - 1, MIN_RATIO_DOCUMENTS])
def test_d_has_an_interval_only_where_there_are_documents_enough(num_documents: int) -> None:
    shown = summary_json(summarize(made_up(num_documents, long_gain=0.5)))
    for selection in shown["selections"]:
        recovered = selection["prediction_recovered"]
        has_interval = num_documents >= MIN_RATIO_DOCUMENTS
        assert recovered["mean"] is not None
        assert [recovered[name] is not None for name in ("low", "high", "standard_error")] == [has_interval] * 3
        assert selection["gain_sparse_nats"]["low"] is not None


@pytest.mark.parametrize("long_gain", [0.0, 0.5])
def test_a_summary_is_valid_json(long_gain: float) -> None:
    measurement = made_up(60, long_gain)
    measurement.gains["kl", "real", 1] = 0.3  # no variance: no slope
    summary = summarize(measurement)
    assert summary.at("kl", "real", 1).figure4 == LineFit(None, None, None)
    shown = json.loads(json.dumps(summary_json(summary), allow_nan=False))
    assert list(shown) == [
        "gate", "beyond_gate", "is_fragile", "estimand", "null_context", "unit", "num_windows", "num_documents",
        "overlap_percent", "overlap_words", *WINDOW_QUANTITIES, "tables_version", *LENGTHS,
        "source", "split", "run", "run_id", "model", "visibility", "precision", "anchor",
        "anchor_warning", "selections",
    ]  # fmt: skip
    assert {key: shown[key] for key in LENGTHS} == LENGTHS
    for entry, selection in zip(shown["selections"], summary.selections, strict=True):
        names = ["selector", "context", "k", "sees_target", "num_evaluations", "mean_tokens", "all_visible_share"]
        names += [*SELECTION_QUANTITIES, "figure4"]
        assert list(entry) == names
        assert (entry["selector"], entry["context"], entry["k"]) == selection.key
        for name in SELECTION_QUANTITIES:
            estimate = selection.estimate(name)
            assert entry[name] == (None if estimate is None else dataclasses.asdict(estimate))
    assert shown["selections"][4]["figure4"] == dict.fromkeys(("ols_slope", "tls_slope", "correlation"))


@pytest.mark.parametrize("name", ["document", "shuffled"])
def test_the_null_context_is_that_of_the_measurement(name: str) -> None:
    measured = made_up(60, long_gain=0.5)
    influence = {**measured.manifest["influence"], "null_context": name}
    assert (
        summarize(dataclasses.replace(measured, manifest={**measured.manifest, "influence": influence})).null_context
        == name
    )
