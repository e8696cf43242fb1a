from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up import KS, SEES_TARGET, M, made_up_tables
from scipy.stats import spearmanr

from olmo_sparsity.statistics import bootstrap
from olmo_sparsity.statistics.agreement import agreement
from olmo_sparsity.statistics.breakdowns import by_class, by_distance, by_sample_size, sample_sizes
from olmo_sparsity.statistics.measurement import Measurement, load
from olmo_sparsity.statistics.summary import summarize
from olmo_sparsity.tables.reading import read_table


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_up_tables(tmp_path_factory.mktemp("made-up") / "tables", num_documents=150)


@pytest.fixture(scope="module")
def measurement(tables: Path) -> Measurement:
    return load(tables)


def test_classes_against_groupby(measurement: Measurement) -> None:
    entries = by_class(measurement)
    json.dumps(entries, allow_nan=False)
    windows = measurement.windows.astype({"target_class": str, "gain_long_nats": float})
    gains = measurement.gains.astype(float)  # pandas would add float32 up in float32
    means = windows.groupby("target_class")["gain_long_nats"].mean().sort_values(ascending=False)
    assert [e["target_class"] for e in entries] == list(means.index)
    assert sum(e["num_windows"] for e in entries) == len(windows)
    assert sum(e["window_share"]["mean"] for e in entries) == pytest.approx(1.0)
    for entry in entries:
        inside = (windows["target_class"] == entry["target_class"]).to_numpy()
        assert entry["num_windows"] == inside.sum()
        assert entry["num_documents"] == windows["doc_id"][inside].nunique()
        assert entry["window_share"]["mean"] == pytest.approx(inside.mean())
        assert entry["window_share"]["low"] < inside.mean() < entry["window_share"]["high"]
        assert entry["long_gain_nats"]["mean"] == pytest.approx(means[entry["target_class"]])
        for one in entry["selections"]:
            gain = gains[one["selector"], one["context"], one["k"]][inside].mean()
            assert one["gain_sparse_nats"]["mean"] == pytest.approx(gain)
            if one["context"] == "real":
                null = gains[one["selector"], "null", one["k"]][inside].mean()
                assert one["excess_gain_nats"]["mean"] == pytest.approx(gain - null)
            if entry["gate"] == "passed":
                assert one["recovered_fraction"]["mean"] == pytest.approx(gain / means[entry["target_class"]])


def test_each_class_has_its_own_gate(measurement: Measurement) -> None:
    assert summarize(measurement)["gate"] == "passed"
    gates = {entry["target_class"]: entry for entry in by_class(measurement)}
    assert gates["function-word"]["gate"] == "failed"  # its windows were made up without long gain
    assert all(e["recovered_fraction"] is None for e in gates["function-word"]["selections"])
    assert gates["repeat"]["gate"] == "passed"
    assert all(e["recovered_fraction"] is not None for e in gates["repeat"]["selections"])


def test_a_rare_class_has_no_interval(measurement: Measurement) -> None:
    windows = measurement.windows.astype({"target_class": str})
    windows.loc[:10, "target_class"] = "rare"
    rare = by_class(Measurement(windows, measurement.gains, measurement.selectors, measurement.facts))
    (entry,) = (e for e in rare if e["target_class"] == "rare")
    assert entry["num_windows"] == 11
    assert entry["gate"] == "failed"
    assert entry["long_gain_nats"]["low"] is None


def test_sample_sizes() -> None:
    assert sample_sizes(6000)[0] == 100 and sample_sizes(6000)[-1] == 6000 and len(sample_sizes(6000)) == 8
    assert sample_sizes(60) == [60]
    ratios = np.diff(np.log(sample_sizes(100_000)))
    assert ratios == pytest.approx(ratios.mean(), rel=0.02)


def test_by_sample_size_is_what_the_first_windows_say(measurement: Measurement) -> None:
    entries = by_sample_size(measurement)
    json.dumps(entries, allow_nan=False)
    assert [e["num_windows"] for e in entries] == sample_sizes(len(measurement.windows))
    assert entries[-1] == summarize(measurement)
    first = measurement.windows[:100]
    assert entries[0]["long_gain_nats"]["mean"] == pytest.approx(first["gain_long_nats"].mean())
    assert entries[0]["num_documents"] == first["doc_id"].nunique()
    widths = [e["long_gain_nats"]["high"] - e["long_gain_nats"]["low"] for e in entries]
    assert widths[-1] < widths[0]


@pytest.mark.parametrize("context", ["real", "null"])
def test_agreement_by_hand(tables: Path, measurement: Measurement, context: str) -> None:
    entries = agreement(tables, measurement, context)
    json.dumps(entries, allow_nan=False)
    assert len(entries) == 36
    rows: dict[str, dict[int, Any]] = {name: {} for name in SEES_TARGET}
    for row in read_table(tables, "selections").to_pylist():
        if row["context"] == context:
            rows[row["selector"]][row["window_id"]] = row
    for entry in entries:
        a, b = (rows[name] for name in entry["selectors"])
        assert entry["context"] == context
        for one in entry["overlap"]:
            k = one["k"]
            common = [len(set(a[w]["positions"][:k]) & set(b[w]["positions"][:k])) / k for w in a]
            assert one["mean"] == pytest.approx(np.mean(common))
            assert one["low"] <= one["mean"] <= one["high"]
            assert one["chance"] == k / M
        assert [one["k"] for one in entry["overlap"]] == KS
        flat = [w for w in a if len(set(a[w]["scores"])) == 1 or len(set(b[w]["scores"])) == 1]
        assert entry["num_windows_left_out"] == len(flat)
        assert (len(flat) > 0) == ("lasso" in entry["selectors"])
        correlations = [spearmanr(a[w]["scores"], b[w]["scores"]).statistic for w in a if w not in flat]
        assert entry["rank_correlation"]["mean"] == pytest.approx(np.mean(correlations))
        assert entry["rank_correlation"]["low"] < np.mean(correlations) < entry["rank_correlation"]["high"]


def test_agreement_does_not_depend_on_the_parts(tmp_path: Path) -> None:
    found = []
    for name, sizes in (("even", None), ("uneven", [1, 50, 7, 32])):
        tables = made_up_tables(tmp_path / name, part_sizes=sizes)
        found.append({tuple(sorted(e["selectors"])): e for e in agreement(tables, load(tables))})
    assert found[0].keys() == found[1].keys()
    for pair, entry in found[0].items():
        other = found[1][pair]
        assert entry["num_windows_left_out"] == other["num_windows_left_out"]
        for one, two in zip(
            [*entry["overlap"], entry["rank_correlation"]], [*other["overlap"], other["rank_correlation"]], strict=True
        ):
            assert one == pytest.approx(two)


def test_agreement_of_some_windows_and_selectors(tables: Path, measurement: Measurement) -> None:
    keep = np.arange(len(measurement.windows)) % 3 == 0
    some = measurement.restrict(keep)
    few = {name: some.selectors[name] for name in ("kl", "lasso")}
    (entry,) = agreement(tables, Measurement(some.windows, some.gains[["kl", "lasso"]], few, some.facts))
    kept = set(some.windows["window_id"])
    assert 0 < len(kept) < len(measurement.windows) / 2
    rows: dict[tuple[str, int], Any] = {}
    for row in read_table(tables, "selections").to_pylist():
        if row["context"] == "real" and row["window_id"] in kept:
            rows[row["selector"], row["window_id"]] = row
    common = [len(set(rows["kl", w]["positions"]) & set(rows["lasso", w]["positions"])) / 8 for w in kept]
    assert entry["overlap"][-1]["mean"] == pytest.approx(np.mean(common))
    flat = [w for w in kept if len(set(rows["lasso", w]["scores"])) == 1]
    assert entry["num_windows_left_out"] == len(flat) > 0


def test_agreement_of_groups_of_documents_has_the_same_means(
    tables: Path, measurement: Measurement, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = agreement(tables, measurement)
    monkeypatch.setattr(bootstrap, "MAX_UNITS", 40)
    for one, pooled in zip(every, agreement(tables, measurement), strict=True):
        assert pooled["rank_correlation"]["mean"] == pytest.approx(one["rank_correlation"]["mean"])
        assert pooled["overlap"][0]["mean"] == pytest.approx(one["overlap"][0]["mean"])
        assert pooled["rank_correlation"] != one["rank_correlation"]  # other draws


def test_choices_at_random_agree_by_chance(tables: Path, measurement: Measurement) -> None:
    """The made-up scores have nothing to do with each other."""
    for entry in agreement(tables, measurement):
        for one in entry["overlap"]:
            assert abs(one["mean"] - one["chance"]) < 1.2 * (one["high"] - one["low"])  # nearly five standard errors
        assert abs(entry["rank_correlation"]["mean"]) < 0.1


def test_one_selector_has_none_to_agree_with(tables: Path, measurement: Measurement) -> None:
    one = {"kl": measurement.selectors["kl"]}
    assert agreement(tables, Measurement(measurement.windows, measurement.gains[["kl"]], one, measurement.facts)) == []


def test_shares_by_distance(tmp_path: Path) -> None:
    """Counted again row by row; a restricted measurement counts its own windows only."""
    folder = made_up_tables(tmp_path / "tables")
    everything = load(folder)
    some = everything.restrict(np.arange(len(everything.windows)) < 40)
    rows = read_table(folder, "selections").to_pylist()
    for measurement in (everything, some):
        ids = set(measurement.windows["window_id"])
        found = {(e["selector"], e["context"], e["k"]): e["bins"] for e in by_distance(folder, measurement)}
        assert set(found) == set(measurement.keys)
        for (selector, context, k), bins in found.items():
            assert [(b["from_tokens"], b["to_tokens"]) for b in bins] == [(d, d) for d in range(9, 21)]
            chosen = [
                distance
                for row in rows
                if (row["selector"], row["context"]) == (selector, context) and row["window_id"] in ids
                for distance in row["distance_tokens"][:k]
            ]
            assert [b["mean"] for b in bins] == pytest.approx([chosen.count(d) / len(chosen) for d in range(9, 21)])
            assert sum(b["uniform"] for b in bins) == pytest.approx(1)
            assert all(b["low"] <= b["mean"] <= b["high"] for b in bins)
