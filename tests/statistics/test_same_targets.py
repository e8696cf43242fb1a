"""Measurements of one model at several lengths: of the same targets and definitions, with the gains at each length."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up import made_up_tables
from planted_lengths import planted_length

from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.several.same_targets import (
    MeasuredLength,
    ModelAtLengths,
    models_of_same_targets,
    read_length,
)
from olmo_sparsity.statistics.single.measurement import SelectorInfo
from olmo_sparsity.tables.reading import read_table


def models_of(measured: Sequence[MeasuredLength], selector: str = "attention") -> list[ModelAtLengths]:
    return list(models_of_same_targets(measured, selector=selector, controls=["random"]))


def other_targets(one: MeasuredLength, column: str) -> MeasuredLength:
    targets = one.targets.copy()
    targets.loc[3, column] = "1" if targets[column].dtype == object else 9
    return dataclasses.replace(one, targets=targets)


@pytest.mark.parametrize("column", ["doc_id", "target", "target_id", "weight", "null_doc_id"])
def test_measurements_of_other_targets_are_refused(column: str) -> None:
    measured = [planted_length(n, num_documents=4) for n in (128, 256)]
    measured.append(other_targets(planted_length(512, num_documents=4), column))
    with pytest.raises(UserError, match=r"128 and 512 do not share their targets.*influence.min_preceding=512"):
        models_of(measured)


@pytest.mark.parametrize(
    ("other", "line"),
    [
        ({"full_len": 256, "visibility": "hidden"}, "has visibility hidden, .* 128 contextual"),
        ({"full_len": 256, "anchor": {"id": 1, "text": "<s>"}}, "has anchor bos"),
        ({"full_len": 256, "influence": {"null_context": "shuffled"}}, "has null context shuffled"),
        ({"full_len": 256, "precision": "bf16"}, r"has precision bf16, .* at full_len 128 fp32; measure all"),
        ({"full_len": 256, "influence": {"unit": "word", "null_context": "document"}}, "has unit word"),
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
        models_of([planted_length(128), planted_length(**other)])


def test_units_other_than_tokens_are_refused() -> None:
    settings = {"unit": "word", "null_context": "document"}
    measured = [planted_length(n, influence=settings) for n in (128, 256)]
    with pytest.raises(UserError, match="these tables count k in units of word; measure them with --unit token"):
        models_of(measured)


def test_a_selector_of_ones_own_with_another_source_is_refused() -> None:
    def measured(*sources: str) -> list[MeasuredLength]:
        return [
            planted_length(n, own_selectors={"attention": {"sha256": sha256}})
            for n, sha256 in zip((128, 256), sources, strict=True)
        ]

    assert models_of(measured("aa", "aa"))
    with pytest.raises(UserError, match=r"has hash of the source of attention bb, .* at full_len 128 aa; measure all"):
        models_of(measured("aa", "bb"))


@pytest.mark.parametrize("other", [{"run": "another"}, {"checkpoint": {"model_sha256": "b"}}])
def test_trained_runs_are_told_apart_by_name_and_weights(other: dict[str, Any]) -> None:
    def trained(full_len: int, **changes: Any) -> MeasuredLength:
        one = planted_length(full_len)
        manifest = {**one.measurement.manifest, "checkpoint": {"model_sha256": "a"}, **changes}
        del manifest["model"]
        return dataclasses.replace(one, measurement=dataclasses.replace(one.measurement, manifest=manifest))

    assert len(models_of([trained(128), trained(256)])) == 1
    with pytest.raises(UserError, match="was measured at full_len 128 alone"):
        models_of([trained(128), trained(256, **other)])


def test_models_of_one_name_are_told_apart_by_their_weights() -> None:
    def runs(sha256: str) -> list[MeasuredLength]:
        planted = [planted_length(n, num_documents=60) for n in (128, 256)]
        for one in planted:
            del one.measurement.manifest["model"]
            one.measurement.manifest["checkpoint"] = {"model_sha256": sha256 * 32}
        return planted

    found = models_of([*runs("ab"), *runs("cd")])
    assert [model.name for model in found] == ["planted, weights abababababab", "planted, weights cdcdcdcdcdcd"]
    models = [
        planted_length(n, num_documents=60, model={"weights_sha256": sha256 * 64})
        for sha256 in "ef"
        for n in (128, 256)
    ]
    found = models_of([*models, *runs("ab")])
    short = [f"someone/Made-Up-2M, weights {sha256 * 12}" for sha256 in "ef"]
    assert [model.name for model in found] == [*short, "planted"]


def test_models_may_be_measured_at_other_lengths() -> None:
    measured = [planted_length(n, num_documents=60) for n in (256, 128)]
    measured += [planted_length(n, num_documents=60, model={"weights_sha256": "f" * 64}) for n in (128, 512)]
    found = models_of(measured)
    assert [list(model.measurements) for model in found] == [[128, 256], [128, 512]]


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
        models_of(measured, "kl")
    with pytest.raises(UserError, match="choose one that does not see the target"):
        models_of(measured, "random")
    measured[0].measurement.selectors["attention"] = SelectorInfo(True, 1)
    with pytest.raises(UserError, match="choose one that does not see the target"):
        models_of(measured)


def test_the_gate_of_a_length_judges_what_is_left_without_the_gap() -> None:
    """The gap costs 0.6 nats in the longer window, more than the long gain; without it the loss is lower."""
    measured = [planted_length(128), planted_length(256)]
    for one, cost in zip(measured, (-0.1, 0.6), strict=True):
        one.measurement.windows["loss_short_no_gap_nats"] = 4.0 - cost
    (model,) = models_of(measured)
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
    (model,) = models_of(measured)
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
