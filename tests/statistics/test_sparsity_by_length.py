"""Effective sparsity against context length: planted D curves give their k and their growth back."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from made_up import made_up_tables
from planted_lengths import ATTENTION, GROWTHS, NULL, RANDOM, k_of_share, planted_length

from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.several.same_targets import MeasuredLength, read_length
from olmo_sparsity.statistics.several.sparsity_by_length import (
    SHARES,
    PointKey,
    ReachingK,
    log_smallest_k,
    reaching_k,
    slope_over_lengths,
    sparsity_by_length,
)
from olmo_sparsity.statistics.single.measurement import SelectorInfo
from olmo_sparsity.tables.reading import read_table

LENGTHS = (128, 256, 512, 1024)


def test_planted_curves_give_their_k_and_their_growth() -> None:
    found = sparsity_by_length([planted_length(length) for length in reversed(LENGTHS)], selector="attention")
    assert found.lengths == list(LENGTHS) and found.lines == (ATTENTION, NULL, RANDOM)
    (model,) = found.models
    for line in found.lines:
        for share in SHARES:
            planted = {length: k_of_share(line, share, length) for length in LENGTHS}
            is_reached = {length: k <= length - 64 for length, k in planted.items()}
            for length, k in planted.items():
                point = model.points[PointKey(line, share, length)]
                assert point.max_k == length - 64 and point.has_interval
                expected = (pytest.approx(k),) * 3 if is_reached[length] else (None,) * 3
                assert (point.value, point.low, point.high) == expected
            slope = model.slopes[line, share]
            if all(is_reached.values()):
                assert slope is not None and slope.mean == pytest.approx(GROWTHS[line])
                assert slope.bounds == pytest.approx((GROWTHS[line],) * 2)
            else:
                assert slope is None
    assert model.slopes[ATTENTION, 0.9] is not None and model.slopes[RANDOM, 0.9] is None


def test_slopes_are_paired_over_the_lengths() -> None:
    """What a document adds to log k is the same at every length: it widens the points, and not the slope."""
    (model,) = sparsity_by_length([planted_length(n, spread=1.0) for n in LENGTHS], selector="attention").models
    added = np.log([model.points[PointKey(ATTENTION, 0.5, n)].value / k_of_share(ATTENTION, 0.5, n) for n in LENGTHS])
    of_documents = np.random.default_rng(0).normal(0, 1.0, 1000)  # as `planted_length` draws them
    expected = np.average(of_documents, weights=1.0 + np.arange(1000) % 3)
    assert added == pytest.approx(np.full(len(LENGTHS), expected)) and abs(expected - of_documents.mean()) > 1e-3
    for length in LENGTHS:
        point = model.points[PointKey(ATTENTION, 0.5, length)]
        low, value, high = np.log([point.low, point.value, point.high])
        # Standard error of a weighted mean over 1,000 documents whose values have a standard deviation of 1 or so: 0.034.
        assert 0.05 < value - low < 0.1 and 0.05 < high - value < 0.1
    slope = model.slopes[ATTENTION, 0.5]
    assert slope is not None and slope.bounds == pytest.approx((0.4, 0.4))


def test_an_interval_may_reach_beyond_the_measured_k() -> None:
    of_lengths = [planted_length(n, spread=6.0, ks=[1, 2, 4, 8]) for n in (128, 512)]
    (model,) = sparsity_by_length(of_lengths, selector="attention").models
    for length, is_reached in ((128, True), (512, True)):
        point = model.points[PointKey(ATTENTION, 0.5, length)]
        assert (point.value is not None) == is_reached and point.low is not None and point.max_k == 8
    assert model.points[PointKey(ATTENTION, 0.5, 512)].high is None
    slope = model.slopes[ATTENTION, 0.5]
    assert slope is not None and not slope.has_interval  # some resample has no k at 512
    assert model.slopes[ATTENTION, 0.9] is None


@pytest.mark.parametrize(
    ("num_documents", "of_k", "of_slope"),
    [(49, False, False), (299, False, False), (300, True, False), (999, True, False)],
)
def test_too_few_documents_have_no_intervals(num_documents: int, of_k: bool, of_slope: bool) -> None:
    measured = [planted_length(n, num_documents=num_documents) for n in LENGTHS]
    (model,) = sparsity_by_length(measured, selector="attention").models
    assert {point.has_interval for point in model.points.values()} == {of_k}
    assert of_k or {(point.low, point.high) for point in model.points.values()} == {(None, None)}
    slope = model.slopes[ATTENTION, 0.5]
    assert slope is not None and slope.mean == pytest.approx(0.4) and slope.has_interval == of_slope


def test_an_interval_of_k_holds_every_k_whose_recovered_share_may_be_the_wanted_one() -> None:
    """D(k) rises by 0.1 with each doubling, and may be 0.05 more or less: half a doubling of k."""
    recovered = [Estimate(0.3 + 0.1 * i, 0.25 + 0.1 * i, 0.35 + 0.1 * i) for i in range(5)]
    point = reaching_k(recovered, [1, 2, 4, 8, 16], 0.5)
    assert (point.low, point.value, point.high) == pytest.approx((4 / 2**0.5, 4, 4 * 2**0.5))
    assert reaching_k(recovered, [1, 2, 4, 8, 16], 0.68).high is None
    partly = reaching_k([Estimate(0.4, 0.3, 0.5), Estimate(0.6)], [1, 2], 0.5)
    assert (partly.low, partly.high, partly.max_k, partly.has_interval) == (None, None, 2, False)
    assert reaching_k([Estimate(0.5)], [1], 0.5) == ReachingK(1.0, None, None, 1, has_interval=False)


def test_the_smallest_k_is_the_first_that_reaches_the_share() -> None:
    curves_KX = np.array([[0.6, 0.0, 0.1, 0.2], [0.7, 0.5, 0.9, 0.3], [0.8, 1.0, 0.2, 0.4]])
    found = np.exp(log_smallest_k(curves_KX, [2, 8, 32], 0.5))
    assert found == pytest.approx([2, 8, 2 * 4**0.5, np.inf])  # the first; exactly there; before a fall; none
    assert np.exp(log_smallest_k(curves_KX[:, 2], [2, 8, 32], 0.5)) == pytest.approx(4)


def other_targets(one: MeasuredLength, column: str) -> MeasuredLength:
    targets = one.targets.copy()
    targets.loc[3, column] = "1" if targets[column].dtype == object else 9
    return dataclasses.replace(one, targets=targets)


@pytest.mark.parametrize("column", ["doc_id", "target", "target_id", "weight", "null_doc_id"])
def test_measurements_of_other_targets_are_refused(column: str) -> None:
    measured = [planted_length(n, num_documents=4) for n in (128, 256)]
    measured.append(other_targets(planted_length(512, num_documents=4), column))
    with pytest.raises(UserError, match=r"128 and 512 do not share their targets.*influence.min_preceding=512"):
        sparsity_by_length(measured, selector="attention")


@pytest.mark.parametrize(
    ("other", "line"),
    [
        ({"full_len": 256, "visibility": "hidden"}, "has visibility hidden, .* 128 contextual"),
        ({"full_len": 256, "positions": "compact"}, "has positions compact, .* 128 kept"),
        ({"full_len": 256, "anchor": {"id": 1, "text": "<s>"}}, "has anchor bos"),
        ({"full_len": 256, "influence": {"null_context": "shuffled"}}, "has null context shuffled"),
        ({"full_len": 256, "precision": "bf16"}, r"has precision bf16, .* at full_len 128 fp32; measure all"),
        ({"full_len": 256, "influence": {"unit": "word", "null_context": "same-source"}}, "has unit word"),
        ({"full_len": 256, "context": {"local_len": 32, "full_len": 256, "num_long_range": 224}}, "has local_len 32"),
        ({"full_len": 256, "model": {"weights_sha256": "f" * 64}}, "was measured at full_len 128 alone"),
        ({"full_len": 256, "model": {"dtype": "float32"}}, "was measured at full_len 128 alone"),
        ({"full_len": 256, "model": {"rope_scaling": "yarn:4"}}, "was measured at full_len 128 alone"),
        (
            {"full_len": 128},
            r"someone/Made-Up-2M: two of these tables have the same full_len, of \[128, 128\]; give each",
        ),
    ],
)
def test_measurements_that_differ_in_more_than_length_are_refused(other: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line):
        sparsity_by_length([planted_length(128), planted_length(**other)], selector="attention")


def test_a_length_at_which_candidates_were_screened_is_refused() -> None:
    """Only where they are those of the selector; ``attention`` has none."""
    settings = {
        "null_context": "same-source",
        "sampling": "documents",
        "selectors": ["kl", "attention"],
        "screen": 32,
        "screen_by": "gradient",
    }
    measured = [planted_length(128), planted_length(256, influence=settings)]
    sparsity_by_length(measured, selector="attention")
    for one in measured:
        one.measurement.selectors["kl"] = SelectorInfo(False, 1)
    with pytest.raises(
        UserError, match=r"has candidates of kl screened to 32 by gradient, .* at full_len 128 not screened"
    ):
        sparsity_by_length(measured, selector="kl")


def test_units_other_than_tokens_are_refused() -> None:
    settings = {"unit": "word", "null_context": "same-source"}
    measured = [planted_length(n, influence=settings) for n in (128, 256)]
    with pytest.raises(UserError, match="these tables count k in units of word; measure them with --unit token"):
        sparsity_by_length(measured, selector="attention")


@pytest.mark.parametrize("other", [{"screen": 31}, {"screen_by": "patching"}])
def test_candidates_that_were_screened_otherwise_are_refused(other: dict[str, Any]) -> None:
    settings = {"null_context": "same-source", "selectors": ["kl"], "screen": 32, "screen_by": "gradient"}
    measured = [planted_length(n, influence={**settings, **changes}) for n, changes in ((128, {}), (256, other))]
    for one in measured:
        one.measurement.selectors["kl"] = SelectorInfo(False, 1)
    with pytest.raises(UserError, match="has candidates of kl screened to"):
        sparsity_by_length(measured, selector="kl")


def test_a_selector_of_ones_own_with_another_source_is_refused() -> None:
    def measured(*sources: str) -> list[MeasuredLength]:
        return [
            planted_length(n, own_selectors={"attention": {"sha256": sha256}})
            for n, sha256 in zip((128, 256), sources, strict=True)
        ]

    assert sparsity_by_length(measured("aa", "aa"), selector="attention")
    with pytest.raises(UserError, match=r"has hash of the source of attention bb, .* at full_len 128 aa; measure all"):
        sparsity_by_length(measured("aa", "bb"), selector="attention")


@pytest.mark.parametrize("other", [{"run": "another"}, {"checkpoint": {"model_sha256": "b"}}])
def test_trained_runs_are_told_apart_by_name_and_weights(other: dict[str, Any]) -> None:
    def trained(full_len: int, **changes: Any) -> MeasuredLength:
        one = planted_length(full_len)
        manifest = {**one.measurement.manifest, "checkpoint": {"model_sha256": "a"}, **changes}
        del manifest["model"]
        return dataclasses.replace(one, measurement=dataclasses.replace(one.measurement, manifest=manifest))

    assert len(sparsity_by_length([trained(128), trained(256)], selector="attention").models) == 1
    with pytest.raises(UserError, match="was measured at full_len 128 alone"):
        sparsity_by_length([trained(128), trained(256, **other)], selector="attention")


def test_models_of_one_name_are_told_apart_by_their_weights() -> None:
    def runs(sha256: str) -> list[MeasuredLength]:
        planted = [planted_length(n, num_documents=60) for n in (128, 256)]
        for one in planted:
            del one.measurement.manifest["model"]
            one.measurement.manifest["checkpoint"] = {"model_sha256": sha256 * 32}
        return planted

    found = sparsity_by_length([*runs("ab"), *runs("cd")], selector="attention")
    assert [model.name for model in found.models] == ["planted, weights abababababab", "planted, weights cdcdcdcdcdcd"]
    models = [
        planted_length(n, num_documents=60, model={"weights_sha256": sha256 * 64})
        for sha256 in "ef"
        for n in (128, 256)
    ]
    found = sparsity_by_length([*models, *runs("ab")], selector="attention")
    short = [f"someone/Made-Up-2M, weights {sha256 * 12}" for sha256 in "ef"]
    assert [model.name for model in found.models] == [*short, "planted"]


def test_where_nothing_reacts_no_k_reaches_a_share() -> None:
    measured = [planted_length(n, num_documents=60) for n in (128, 256)]
    measured[1].measurement.windows["null_kl_short_nats"] = 0.0
    (model,) = sparsity_by_length(measured, selector="attention").models
    expected = {(line, n) for line in (ATTENTION, NULL, RANDOM) for n in (128, 256)} - {(NULL, 256)}
    assert {(point.line, point.full_len) for point in model.points} == expected
    assert [model.slopes[line, 0.5] is None for line in (ATTENTION, NULL, RANDOM)] == [False, True, False]


def test_models_may_be_measured_at_other_lengths() -> None:
    measured = [planted_length(n, num_documents=60) for n in (256, 128)]
    measured += [planted_length(n, num_documents=60, model={"weights_sha256": "f" * 64}) for n in (128, 512)]
    found = sparsity_by_length(measured, selector="attention")
    assert found.lengths == [128, 256, 512]
    assert [list(model.measurements) for model in found.models] == [[128, 256], [128, 512]]


def test_a_target_is_where_its_window_ends(tmp_path: Path) -> None:
    """Rows stand by the number of the window, in whatever order the tables hold them."""
    read = read_length(made_up_tables(tmp_path / "tables", selectors=["kl", "random"]))
    rows = {row["window_id"]: row for row in read_table(tmp_path / "tables", "windows").to_pylist()}
    assert list(rows) != sorted(rows) == read.targets["window_id"].tolist()
    for row in read.targets.to_dict("records"):
        window = rows[row.pop("window_id")]
        assert row.pop("target") == window["start_token"] + 20
        assert row == {name: window[name] for name in row} and len(row) == 4


def test_selectors_that_do_not_answer_the_question_are_refused() -> None:
    measured = [planted_length(128), planted_length(256)]
    with pytest.raises(UserError, match="kl not measured; measure it with --selector kl"):
        sparsity_by_length(measured, selector="kl")
    with pytest.raises(UserError, match="choose one that does not see the target"):
        sparsity_by_length(measured, selector="random")
    with pytest.raises(UserError, match="--selector: h2o-heads chooses by head"):
        sparsity_by_length(measured, selector="h2o-heads")
    measured[0].measurement.selectors["attention"] = SelectorInfo(True, 1)
    with pytest.raises(UserError, match="choose one that does not see the target"):
        sparsity_by_length(measured, selector="attention")


def test_the_gate_of_a_length_judges_what_is_left_without_the_gap() -> None:
    """The gap costs 0.6 nats in the longer window, more than the long gain; without it the loss is lower."""
    measured = [planted_length(128), planted_length(256)]
    for one, cost in zip(measured, (-0.1, 0.6), strict=True):
        one.measurement.windows["loss_short_no_gap_nats"] = 4.0 - cost
    (model,) = sparsity_by_length(measured, selector="attention").models
    gains = {n: gain.mean for n, gain in model.long_gains_nats.items()}
    assert {n: gain.mean for n, gain in model.gate_gains_nats.items()} == pytest.approx(
        {128: gains[128], 256: gains[256] - 0.6}
    )
    assert gains == pytest.approx({128: 0.5, 256: 0.5}, abs=0.02)


def test_gains_are_weighted_means_with_the_intervals_of_documents() -> None:
    """Gains and the cost of the gap rise with the weight of a document, each at its own rate at every length."""
    measured = [planted_length(n, num_documents=80) for n in (128, 256)]
    rng, num = np.random.default_rng(15), 160
    for one, factor in zip(measured, (1.0, 3.0), strict=True):
        windows = one.measurement.windows
        windows["gain_long_nats"] = factor * windows["weight"] + rng.normal(0, 1, num)
        windows["loss_short_no_gap_nats"] = (
            windows["loss_short_nats"] + rng.normal(0, 0.1, num) + (2 - factor) * 0.1 * windows["weight"]
        )
    (model,) = sparsity_by_length(measured, selector="attention").models
    draws = np.random.default_rng(0).integers(0, 80, (2000, 80))
    for one in measured:
        windows = one.measurement.windows
        cost_W = windows["loss_short_nats"] - windows["loss_short_no_gap_nats"]
        weight_W, gain_W = windows["weight"], windows["gain_long_nats"]
        gain, cost = (np.average(values_W, weights=weight_W) for values_W in (gain_W, cost_W))
        found = model.long_gains_nats[one.full_len]
        assert (found.mean, model.gate_gains_nats[one.full_len].mean) == pytest.approx((gain, gain - max(cost, 0)))
        total_U, weight_U = (np.bincount(np.arange(num) // 2, weights=of) for of in (weight_W * gain_W, weight_W))
        resampled = total_U[draws].sum(axis=1) / weight_U[draws].sum(axis=1)
        assert found.bounds == pytest.approx(np.percentile(resampled, [2.5, 97.5]))


def test_slopes_are_those_of_least_squares() -> None:
    lengths, logs = [100, 130, 700, 900], np.array([[0.3, 2.0], [1.1, 1.0], [0.2, 3.0], [2.5, 0.5]])
    expected = [scipy.stats.linregress(np.log(lengths), column).slope for column in logs.T]
    assert slope_over_lengths(lengths, logs) == pytest.approx(expected)
    (model,) = sparsity_by_length([planted_length(n) for n in (128, 256, 1024)], selector="attention").models
    constant = scipy.stats.linregress(np.log([128, 256, 1024]), np.log([64, 192, 960])).slope
    assert model.growth_of_constant_share == pytest.approx(constant)
