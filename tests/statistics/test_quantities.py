"""Every quantity against loops over windows; groups, differences and seeds; gates; what must not change a number."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from naive import as_dict, bootstrap_t, korn_graubard, numbers_of
from unlike_tables import KS, M, Rows, unlike_manifest, unlike_rows, write_rows

from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.frames import Frames, read_frames
from olmo_sparsity.statistics.quantities import (
    QUANTITIES,
    estimate,
    first_blind,
    gate,
    pick,
    selectors_of,
    shown_ks,
    side_of_zero,
)

OF_RUN = unlike_manifest()
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "words": ({"unit": "word"}, {}),
    "no row, no drawn labels": ({"train_len": None}, {"draws": 0}),
    "random first": ({}, {"draws": 0, "selectors": {"random": False, "unmask-one": True, "kl": False}}),
    "row as long as a window": ({"train_len": 20}, {"draws": 0}),
    "ceiling": ({"train_len": 30}, {}),  # tokens; a window has 20
}
NUMBERS = ("value", "low", "high", "se")


@pytest.fixture(scope="module")
def rows() -> Rows:
    return unlike_rows(OF_RUN, num_documents=90)


@pytest.fixture(scope="module")
def folder(rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("tables"), OF_RUN, rows)


@pytest.fixture(scope="module")
def frames(folder: Path) -> Frames:
    return read_frames(folder)


@pytest.fixture(scope="module")
def table(frames: Frames) -> pd.DataFrame:
    return estimate(frames)


@pytest.mark.parametrize("case", CASES)
def test_every_value_is_that_of_loops_over_windows(case: str, tmp_path: Path) -> None:
    of_manifest, of_rows = CASES[case]
    manifest = unlike_manifest(**of_manifest)
    rows = unlike_rows(manifest, **of_rows)
    table = estimate(read_frames(write_rows(tmp_path, manifest, rows)))
    found, expected = as_dict(table), numbers_of(rows, manifest)
    assert set(found) == set(expected)
    assert found == pytest.approx(expected, abs=2e-6)
    assert set(table["n_windows"]) == {len(rows["windows"])}
    assert set(table["n_documents"]) == {60}
    if case == "words":  # no number is left that the loops do not know
        assert set(table["quantity"]) == {*QUANTITIES, "spectrum_share"}


def test_every_interval_is_that_of_its_documents(tmp_path: Path) -> None:
    """Percentiles of resampled documents; the exact interval of a share; the bootstrap-t of D."""
    selectors = {"kl": False, "unmask-one": True, "random": False}
    rows = unlike_rows(OF_RUN, num_documents=300, ks=(2,), draws=1, selectors=selectors)
    table = estimate(read_frames(write_rows(tmp_path, OF_RUN, rows)))
    documents = list(dict.fromkeys(window["doc_id"] for window in rows["windows"]))
    draws = np.random.default_rng(0).integers(0, len(documents), (2000, len(documents)))
    counts_UX = np.stack([np.bincount(draw, minlength=len(documents)) for draw in draws], axis=1)

    def numbers(counts_UX: np.ndarray) -> dict[Any, np.ndarray]:
        times = dict(zip(documents, counts_UX, strict=True))
        windows = [{**window, "weight": window["weight"] * times[window["doc_id"]]} for window in rows["windows"]]
        return numbers_of({**rows, "windows": windows}, OF_RUN)

    resampled, of_document = numbers(counts_UX), numbers(np.eye(len(documents)))
    weight_U = np.array([sum(w["weight"] for w in rows["windows"] if w["doc_id"] == of) for of in documents])
    low, high, error = (as_dict(table, name) for name in ("low", "high", "se"))
    for key, values in resampled.items():
        if key[0] == "spectrum_share":  # its bands are simultaneous; test_spectrum.py
            continue
        ends, se = np.quantile(values, [0.025, 0.975]), np.std(values, ddof=1)
        if key[0].endswith("_share"):
            ends = korn_graubard(of_document[key] * weight_U, weight_U)[1:3]
        elif key[0] == "prediction_recovered":
            reaction = "kl_short_nats" if key[2] == "real" else "null_kl_short_nats"
            whole_U = of_document[reaction, None, None, None, None] * weight_U
            ends = bootstrap_t((1 - of_document[key]) * whole_U, whole_U, draws)
        if key[0].endswith("_share") or key[0] == "prediction_recovered":
            se = (ends[1] - ends[0]) / (2 * scipy.stats.norm.isf(0.025))
        assert (low[key], high[key], error[key]) == pytest.approx((*ends, se), abs=2e-5, rel=2e-5), key


def test_every_value_of_a_class_is_that_of_its_windows(rows: Rows, frames: Frames) -> None:
    table = estimate(frames, by="target_class")
    assert set(table["group"]) == {window["target_class"] for window in rows["windows"]}
    weight = sum(window["weight"] for window in rows["windows"])
    for group, of_group in table.groupby("group"):
        windows = [window for window in rows["windows"] if window["target_class"] == group]
        window_ids = {window["window_id"] for window in windows}
        expected = numbers_of(
            {
                "windows": windows,
                "selections": [row for row in rows["selections"] if row["window_id"] in window_ids],
            },
            OF_RUN,
        )
        per = {name: quantity.per for name, quantity in QUANTITIES.items()}
        expected = {key: value for key, value in expected.items() if per.get(key[0]) in ("window", "selection")}
        expected["window_share", None, None, None, None] = sum(window["weight"] for window in windows) / weight
        documents = {window["doc_id"] for window in windows}
        if len(documents) < 50:
            expected = {key: value for key, value in expected.items() if key[0] != "recovered_fraction"}
        assert as_dict(of_group) == pytest.approx(expected, abs=2e-6)
        assert set(of_group["n_documents"]) == {len(documents)}
    sizes = table.drop_duplicates("group")["n_documents"]
    assert sizes.min() < 50 <= sizes.max()


def test_a_difference_is_that_of_the_values_and_paired_on_the_same_windows(frames: Frames, table: pd.DataFrame) -> None:
    rng = np.random.default_rng(3)
    changed = frames.windows.assign(
        loss_short_nats=frames.windows["loss_short_nats"] + rng.normal(0.1, 0.02, len(frames.windows))
    )
    other = replace(frames, windows=changed, gain=frames.gain + rng.normal(0.2, 0.02, frames.gain.shape))
    found = estimate(frames, minus=other)
    values, others = as_dict(table), as_dict(estimate(other))
    for key, value in as_dict(found).items():
        assert value == pytest.approx(values[key] - others[key], abs=1e-9), key
    subtracted = replace(frames, gain=frames.gain - other.gain)
    ends = as_dict(found, "low"), as_dict(estimate(subtracted), "low")
    for key in values:
        if key[0] == "gain_sparse_nats":  # the difference is a mean over the same windows, drawn with them
            assert ends[0][key] == pytest.approx(ends[1][key], abs=1e-9)
    left_out = set(QUANTITIES) - set(found["quantity"])
    assert left_out == {
        *(name for name, quantity in QUANTITIES.items() if quantity.per in ("last", "damped")),
        "prediction_recovered",  # its interval has no difference
        "mean_tokens",  # k itself
    }


def test_a_difference_has_the_selections_that_both_have(frames: Frames, table: pd.DataFrame) -> None:
    other = frames.renamed({"kl": "kl", "random": "another"})
    found = estimate(frames, minus=replace(other, gain=other.gain + 1))
    of_selections = found[found["selector"].notna()]
    assert set(of_selections["selector"]) == {"kl"}
    assert "gain_over_random_nats" not in set(found["quantity"])
    row = pick(found, "gain_sparse_nats", selector="kl", context="real", k=KS[1])
    assert row is not None
    assert row["value"] == pytest.approx(-1)
    of_windows = estimate(frames, minus=frames.renamed({}))
    assert set(of_windows["quantity"]) == {name for name, quantity in QUANTITIES.items() if quantity.per == "window"}


def test_seeds_are_averaged_and_equal_seeds_add_no_variance(frames: Frames, table: pd.DataFrame) -> None:
    seeds = estimate(frames, seeds=[frames, frames])
    assert "spectrum_share" not in set(seeds["quantity"])
    means = [name for name, of in QUANTITIES.items() if of.least_documents <= 90 and "share" not in name]
    reach = scipy.stats.t.ppf(0.975, 89)  # of 90 documents
    expected = table[table["quantity"].isin(means)].set_index(["quantity", "selector", "context", "k", "x"])
    found = seeds[seeds["quantity"].isin(means)].set_index(["quantity", "selector", "context", "k", "x"])
    assert len(found) == len(expected)
    assert found["value"].to_numpy() == pytest.approx(expected["value"].to_numpy(), abs=1e-12)
    assert found["se"].to_numpy() == pytest.approx(expected["se"].to_numpy(), abs=1e-12)
    high = expected["value"] + reach * expected["se"]
    assert found["high"].to_numpy() == pytest.approx(high.to_numpy(), abs=1e-12)


def test_the_interval_of_seeds_by_hand(frames: Frames, table: pd.DataFrame) -> None:
    """Seeds that differ by a constant: Student's t with the variance of their mean and that over documents."""
    shifts = np.array([0.0, 0.03, 0.09])
    seeds = [
        replace(frames, windows=frames.windows.assign(loss_short_nats=frames.windows["loss_short_nats"] + shift))
        for shift in shifts
    ]
    found = pick(estimate(seeds[0], seeds=seeds[1:]), "loss_short_nats")
    one = pick(table, "loss_short_nats")
    assert found is not None and one is not None
    over_seeds, over_documents = shifts.var(ddof=1) / 3, one["se"] ** 2
    freedom = (over_seeds + over_documents) ** 2 / (over_seeds**2 / 2 + over_documents**2 / 89)
    half = scipy.stats.t.ppf(0.975, freedom) * np.sqrt(over_seeds + over_documents)
    value = one["value"] + shifts.mean()
    assert [found[name] for name in NUMBERS] == pytest.approx(
        [value, value - half, value + half, np.sqrt(over_seeds + over_documents)], abs=1e-7
    )


@pytest.mark.parametrize(("most", "end", "bound"), [(True, "high", 1.0), (False, "low", 0.0)])
def test_intervals_of_shares_over_seeds_hold_no_impossible_share(
    most: bool, end: str, bound: float, frames: Frames
) -> None:
    """Two seeds agree, a third one is far from them, so Student's interval reaches beyond the possible shares."""
    overlap = [
        np.full(len(frames.windows), most),
        np.full(len(frames.windows), most),
        np.arange(len(frames.windows)) % 2 == 0,
    ]
    seeds = [replace(frames, windows=frames.windows.assign(train_overlap=of_seed)) for of_seed in overlap]
    found = pick(estimate(seeds[0], seeds=seeds[1:]), "train_overlap_share")
    assert found is not None and found[end] == bound and 0 < found["value"] < 1


def test_seeds_must_have_the_same_windows(frames: Frames) -> None:
    moved = frames.windows.assign(doc_id=frames.windows["doc_id"].to_numpy()[::-1])
    with pytest.raises(UserError, match="not measured on the same windows"):
        estimate(frames, seeds=[replace(frames, windows=moved)])


def test_seeds_pass_the_gate_only_where_both_long_gains_do(frames: Frames) -> None:
    """The lower gain is alike in all seeds, and above 0; the other one is larger, and varies."""
    loss = frames.windows["loss_short_no_gap_nats"]
    seeds = [
        replace(frames, windows=frames.windows.assign(loss_short_no_gap_nats=loss + shift)) for shift in (0.1, 0.3, 9)
    ]
    table = estimate(seeds[0], seeds=seeds[1:])
    assert gate(table) == "unclear"
    assert side_of_zero(pick(table, "long_gain_nats")) == "above"
    assert side_of_zero(pick(table, "long_gain_no_gap_nats")) == "unclear"
    assert pick(table, "recovered_fraction", selector="kl", context="real", k=KS[0]) is None


def test_a_difference_from_few_documents_has_no_interval(frames: Frames) -> None:
    """Even where the documents of both are enough together."""
    first = frames.windows["doc_id"].unique()[:49]
    few = frames.restrict(frames.windows["doc_id"].isin(first).to_numpy())
    for table in (estimate(frames, minus=few), estimate(few, minus=frames)):
        assert table["value"].notna().all()
        assert table[["low", "high", "se"]].isna().all(axis=None)
        assert "recovered_fraction" not in set(table["quantity"])  # the gate of one did not pass


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ({"long_gain": 0.6}, "above"),
        ({"long_gain": 0.0, "num_documents": 55}, "unclear"),
        ({"long_gain": -0.6}, "below"),
        (
            {"long_gain": 0.6, "gap_cost": 0.6},
            "unclear",
        ),  # the gain of the long context is no more than the cost of the gap
        ({"long_gain": 0.6, "num_documents": 49}, "too few"),
        ({"long_gain": 0.6, "num_documents": 50}, "above"),
    ],
)
def test_no_fraction_of_a_gain_that_is_not_there(case: dict[str, Any], expected: str, tmp_path: Path) -> None:
    table = estimate(read_frames(write_rows(tmp_path, OF_RUN, unlike_rows(OF_RUN, **case))))
    assert gate(table) == expected
    assert ("recovered_fraction" in set(table["quantity"])) == (expected == "above")
    assert {"gain_sparse_nats", "prediction_recovered"} <= set(table["quantity"])


def test_no_class_has_a_fraction_where_the_gate_of_all_did_not_pass(tmp_path: Path) -> None:
    rows = unlike_rows(OF_RUN, num_documents=150, long_gain=0.0, gap_cost=0.0)
    for window in rows["windows"]:
        change = 0.4 if window["target_class"] == "other" else -1.0
        for name in ("loss_long_nats", "gain_long_nats"):
            window[name] += change * (1 if name == "gain_long_nats" else -1)
    table = estimate(read_frames(write_rows(tmp_path, OF_RUN, rows)), by="target_class")
    assert side_of_zero(pick(table, "gate_gain_nats", group="other")) == "above"
    assert "recovered_fraction" not in set(table["quantity"])


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.1, 0.2, "above"), (-0.2, -0.1, "below"), (-0.1, 0.2, "unclear"), (0.0, 0.2, "unclear"), (-0.2, 0.0, "unclear")],
)
def test_sides_of_zero(low: float, high: float, expected: str) -> None:
    assert side_of_zero(pd.Series({"value": 0.1, "low": low, "high": high})) == expected


def test_a_gate_that_does_not_apply(tmp_path: Path) -> None:
    manifest = unlike_manifest(train_len=None)
    frames = read_frames(write_rows(tmp_path, manifest, unlike_rows(manifest)))
    assert gate(estimate(frames), "gain_beyond_nats") == "not applicable"
    assert gate(estimate(frames)) == "above"


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Frames:
    """Of 300 documents."""
    rows = unlike_rows(OF_RUN, num_documents=300)
    return read_frames(write_rows(tmp_path_factory.mktemp("many"), OF_RUN, rows))


def test_intervals_of_d_over_seeds_end_at_one(many: Frames) -> None:
    """Two seeds leave hardly anything of the reaction, a third one leaves more than all of it."""
    blends = many.lists["kl_damped_nats"]
    seeds = [
        replace(many, divergence=many.divergence * left, lists={**many.lists, "kl_damped_nats": blends * left})
        for left in (0.01, 0.01, 2)
    ]
    table = estimate(seeds[0], seeds=seeds[1:])
    chosen = pick(table, "prediction_recovered", selector="kl", context="real", k=KS[0])
    for row in (chosen, pick(table, "damped_recovered", context="real", x=0.1)):
        assert row is not None and row["value"] < row["high"] == 1


@pytest.mark.parametrize("number", [299, 300])
def test_intervals_that_depend_on_d_begin_with_300_documents(many: Frames, number: int) -> None:
    doc_ids = many.windows["doc_id"]
    table = estimate(many.restrict(doc_ids.isin(doc_ids.unique()[:number]).to_numpy()))
    for quantity in ("prediction_recovered", "expected_gain_nats", "gain_over_damping_nats", "gain_sparse_nats"):
        rows = table[table["quantity"] == quantity]
        assert rows["n_documents"].eq(number).all()
        has_interval = number == 300 or quantity == "gain_sparse_nats"
        ends = rows[["low", "high", "se"]]
        assert (ends.notna() if has_interval else ends.isna()).all(axis=None), quantity
        assert ((rows["low"] < rows["value"]) & (rows["value"] < rows["high"])).all() == has_interval, quantity


def test_all_tokens_give_all_of_the_gain_and_of_the_reaction(tmp_path: Path) -> None:
    rows = unlike_rows(OF_RUN, ks=(1, M))
    for row, window in ((row, rows["windows"][row["window_id"]]) for row in rows["selections"]):
        if row["context"] in ("real", "null"):
            gain = window["gain_long_nats" if row["context"] == "real" else "null_gain_long_nats"]
            row["gain_sparse_nats"][1], row["kl_sparse_nats"][1] = gain, 0.0
    table = estimate(read_frames(write_rows(tmp_path, OF_RUN, rows)))
    expected = {
        "recovered_fraction": [1, 1, 1, 0],
        "gain_over_damping_nats": [0, np.nan, np.nan, np.nan],
        "sufficient_share": [1, 1, 1, 0],  # by definition, no estimate
        "prediction_recovered": [1, np.nan, np.nan, np.nan],
    }
    for quantity, numbers in expected.items():
        row = pick(table, quantity, selector="kl", context="real", k=M)
        assert row is not None
        assert [row[name] for name in NUMBERS] == pytest.approx(numbers, abs=1e-6, nan_ok=True), quantity
    below = table[(table["k"] == 1) & (table["quantity"] == "sufficient_share")]
    assert (below["low"] < below["value"]).all()


@pytest.mark.parametrize("blend", [0, 4, 8])
def test_a_blend_gains_nothing_over_damping(many: Frames, blend: int) -> None:
    """A selection with the losses and divergences of a blend has its D, and no gain over it in any resample."""
    gain, divergence = many.gain.copy(), many.divergence.copy()
    at = many.rows("kl", "real")[0]
    gain[at] = many.windows["loss_short_nats"].to_numpy() - many.lists["loss_damped_nats"][blend]
    divergence[at] = many.lists["kl_damped_nats"][blend]
    table = estimate(replace(many, gain=gain, divergence=divergence))
    of = {"selector": "kl", "context": "real", "k": KS[0]}
    over = pick(table, "gain_over_damping_nats", **of)
    assert over is not None
    assert [over[name] for name in NUMBERS] == pytest.approx([0, 0, 0, 0], abs=1e-6)
    for quantity, of_blend in (
        ("prediction_recovered", "damped_recovered"),
        ("expected_gain_nats", "damped_gain_nats"),
    ):
        row, expected = pick(table, quantity, **of), pick(table, of_blend, context="real", x=(blend + 1) / 10)
        assert row is not None and expected is not None
        assert row["value"] == pytest.approx(expected["value"], abs=1e-6)


@pytest.mark.parametrize(("share", "expected"), [(-0.5, 0.0), (1.0, 1.0)])
def test_the_expected_gain_ends_at_nothing_and_at_the_long_gain(frames: Frames, share: float, expected: float) -> None:
    divergence = frames.divergence.copy()
    at = frames.rows("kl", "null")[2]
    divergence[at] = (1 - share) * frames.windows["null_kl_short_nats"].to_numpy()
    table = estimate(replace(frames, divergence=divergence))
    row, long_gain = (
        pick(table, "expected_gain_nats", selector="kl", context="null", k=KS[2]),
        pick(table, "null_long_gain_nats"),
    )
    assert row is not None and long_gain is not None
    assert row["value"] == pytest.approx(expected * long_gain["value"], abs=1e-6)


@pytest.mark.parametrize("constant", [2, -3.2])  # the losses are then below 1
def test_a_constant_added_to_all_losses_leaves_all_but_the_losses(
    constant: float, rows: Rows, table: pd.DataFrame, tmp_path: Path
) -> None:
    moved = copy.deepcopy(rows)
    for row in (*moved["windows"], *moved["selections"]):
        for name, value in row.items():
            if name.endswith("_nats") and ("loss" in name or name.startswith("entropy")) and value is not None:
                row[name] = [of + constant for of in value] if isinstance(value, list) else value + constant
    found = estimate(read_frames(write_rows(tmp_path, OF_RUN, moved)))
    losses = {"loss_short_nats", "loss_short_no_gap_nats", "loss_long_nats", "loss_last_nats"}
    for number in ("value", "low", "high"):
        expected = {key: of + constant * (key[0] in losses) for key, of in as_dict(table, number).items()}
        assert as_dict(found, number) == pytest.approx(expected, abs=5e-6, nan_ok=True)


def test_parts_and_their_order_do_not_matter(rows: Rows, table: pd.DataFrame, tmp_path: Path) -> None:
    order = np.random.default_rng(1).permutation(len(rows["windows"]))
    split = write_rows(tmp_path, OF_RUN, rows, parts=np.split(order, [7, 50, 51, 120]))
    again = estimate(read_frames(split))
    pd.testing.assert_frame_equal(again, table, check_exact=True)


def test_documents_count_and_not_how_they_are_called(rows: Rows, table: pd.DataFrame, tmp_path: Path) -> None:
    renamed = copy.deepcopy(rows)
    for row in (*renamed["windows"], *renamed["selections"]):
        row["doc_id"] = f"{2**40 - int(row['doc_id'], 16):016x}"
    found = estimate(read_frames(write_rows(tmp_path, OF_RUN, renamed)))
    pd.testing.assert_frame_equal(found, table, check_exact=True)


def test_weights_count_by_their_ratios(rows: Rows, table: pd.DataFrame, tmp_path: Path) -> None:
    heavier = copy.deepcopy(rows)
    for window in heavier["windows"]:
        window["weight"] *= 8
    found = estimate(read_frames(write_rows(tmp_path, OF_RUN, heavier)))
    for column in NUMBERS:
        assert found[column].to_numpy() == pytest.approx(table[column].to_numpy(), abs=1e-9, nan_ok=True)


def test_picked_rows(table: pd.DataFrame) -> None:
    assert pick(table, "gain_sparse_nats", selector="kl", context="null", k=2) is None
    assert pick(table, "gain_sparse_nats") is None  # it is of a selection
    both = pd.concat([table, table])
    with pytest.raises(ValueError, match="2 rows"):
        pick(both, "loss_short_nats")


@pytest.mark.parametrize(("ks", "expected"), [((1, 3, 5), [1, 3]), ((4, 5), [4]), ((1, 2, M), [1, 2])])
def test_few_tokens_are_at_most_a_quarter(ks: tuple[int, ...], expected: list[int], tmp_path: Path) -> None:
    rows = unlike_rows(OF_RUN, ks=ks)
    for window in rows["windows"]:
        window["weight"] = 0.7  # rounding: the mean of 12 everywhere is 11.999999999999998
    assert shown_ks(estimate(read_frames(write_rows(tmp_path, OF_RUN, rows)))) == expected


def test_selectors_and_the_first_that_does_not_see_the_target(table: pd.DataFrame, frames: Frames) -> None:
    found = selectors_of(table)
    assert found["sees_target"].to_dict() == {"kl": False, "unmask-one": True, "random": False, "nearest": False}
    assert found["num_evaluations"].to_dict() == {"kl": 6, "unmask-one": 30, "random": 18, "nearest": 21}
    assert first_blind(table) == "kl"
    kept = frames.renamed({"unmask-one": "unmask-one", "random": "random", "nearest": "nearest"})
    assert first_blind(estimate(kept)) is None
