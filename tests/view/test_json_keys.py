"""Each key of the JSON outputs has the field of the record that it names. No two values of these records are equal."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any, Optional, get_type_hints

import pytest
from made_up import CONTEXTUAL, MODEL, made_up_tables
from made_up_runs import four_way_runs
from numbered import numbered_summary
from planted_measurements import PLANTED, write

from olmo_sparsity.records.selectors import MAIN_SELECTORS
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.several.comparison import compare
from olmo_sparsity.statistics.several.curve_comparison import compare_curves
from olmo_sparsity.statistics.several.subjects import read_subjects
from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.statistics.single.measurement import load
from olmo_sparsity.statistics.single.spectrum import REACHED
from olmo_sparsity.statistics.single.summary import SELECTION_QUANTITIES, WINDOW_QUANTITIES, Summary, summarize
from olmo_sparsity.tables.schemas import SCHEMA_VERSION
from olmo_sparsity.view.as_json import (
    class_json,
    compared_curves_json,
    comparison_json,
    definition_columns,
    spectra_json,
    summary_json,
)

WORDS = ("source", "split", "run", "run_id")


def estimate_json(estimate: Optional[Estimate]) -> Optional[dict[str, Any]]:
    if estimate is None:
        return None
    found = {"mean": estimate.mean, "low": estimate.low, "high": estimate.high}
    return {**found, "standard_error": estimate.standard_error}


def same_estimate(found: Optional[dict[str, Any]], estimate: Optional[Estimate]) -> bool:
    """Return whether JSON holds the numbers of an estimate under their names."""
    expected = estimate_json(estimate)
    if expected is None or found is None:
        return found is expected
    return {name: found[name] for name in expected} == expected


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("json")
    return made_up_tables(folder / "tables", gain_beyond=0.2, selectors=MAIN_SELECTORS)


@pytest.fixture(scope="module")
def summary(tables: Path) -> Summary:
    """A summary whose every number is another one."""
    return numbered_summary(
        summarize(load(tables)),
        itertools.count(1),
        **{name: name.upper() for name in WORDS},
        gate="passed",
        beyond_gate="failed",
        is_fragile=True,
        unit="block:3",
    )


def test_a_summary_has_each_number_under_its_name(summary: Summary) -> None:
    found = json.loads(json.dumps(summary_json(summary)))
    for name in (
        *WORDS,
        "num_windows",
        "num_documents",
        "overlap_percent",
        "gate",
        "beyond_gate",
        "is_fragile",
        "unit",
    ):
        assert found[name] == getattr(summary, name), name
    assert found["tables_version"] == SCHEMA_VERSION
    assert (found["estimand"], found["null_context"]) == (summary.estimand, summary.null_context)
    for name in WINDOW_QUANTITIES:
        assert same_estimate(found[name], getattr(summary, name)), name
    lengths = {name: getattr(summary.lengths, name) for name in get_type_hints(type(summary.lengths))}
    assert lengths["local_len"] != lengths["num_long_range"] != lengths["train_len"]
    for name, value in lengths.items():
        assert found.get(name) == value, name
    assert (found["model"], found["anchor"], found["anchor_warning"]) == (None, None, None)
    assert found["visibility"] == "hidden"


def test_a_selection_has_each_number_under_its_name(summary: Summary) -> None:
    found = json.loads(json.dumps(summary_json(summary)))["selections"]
    assert len(found) == len(summary.selections) > 20
    for entry, selection in zip(found, summary.selections, strict=True):
        for name in ("selector", "context", "k", "mean_tokens", "all_visible_share"):
            assert entry[name] == getattr(selection, name), name
        assert entry["sees_target"] == selection.info.sees_target
        assert entry["num_evaluations"] == selection.info.num_evaluations
        for name in SELECTION_QUANTITIES:
            assert same_estimate(entry[name], getattr(selection, name)), name
        for name in ("correlation", "ols_slope", "tls_slope"):
            assert same_estimate(entry["figure4"][name], getattr(selection.figure4, name)), name


def test_classes_have_their_own_numbers(tables: Path) -> None:
    measured = Measured.read(tables)
    gains = set()
    for of_class in measured.classes:
        entry = class_json(of_class)
        assert entry["target_class"] == of_class.target_class
        assert entry["num_windows"] == of_class.summary.num_windows
        assert same_estimate(entry["long_gain_nats"], of_class.summary.long_gain_nats)
        gains.add(entry["long_gain_nats"]["mean"])
    assert len(gains) == 4


def test_columns_of_a_csv_say_what_their_names_say(tmp_path: Path) -> None:
    setup = {**CONTEXTUAL, "model": {**MODEL, "rope_scaling": "yarn:2"}}
    found = summarize(load(made_up_tables(tmp_path / "tables", setup=setup, selectors=["kl", "random"])))
    found = dataclasses.replace(found, gate="passed", beyond_gate="not-applicable", unit="word")
    columns = definition_columns(found)
    assert columns["run"] == "someone--made-up-2m" and columns["model"] == "someone/Made-Up-2M"
    assert columns["revision"] == "main-commit" and columns["rope_scaling"] == "yarn:2"
    assert (columns["local_len"], columns["full_len"]) == ("8", "20")
    assert columns["k_unit"] == "word" and columns["anchor"] == "<bos>"
    assert columns["visibility"] == "contextual"
    assert (columns["gate"], columns["beyond_gate"]) == ("passed", "not-applicable")
    in_json = summary_json(found)
    for name, value in in_json["model"].items():
        assert value == {**MODEL, "rope_scaling": "yarn:2"}[name], name
    assert (
        in_json["anchor"] == {"id": 7, "text": "<bos>"} and in_json["anchor_warning"] == columns["anchor_warning"] != ""
    )


def test_what_qualifies_the_numbers_is_in_json_and_csv(tmp_path: Path) -> None:
    """The precision, the null context, and the row, stated or not."""
    of = {name: Measured.read(write(tmp_path / name, PLANTED[name])).summary for name in ("failed", "words", "stated")}
    in_json = {name: json.loads(json.dumps(summary_json(summary))) for name, summary in of.items()}
    columns = {name: definition_columns(summary) for name, summary in of.items()}
    assert (in_json["words"]["precision"], in_json["failed"]["precision"]) == ("bf16", None)
    assert (columns["words"]["precision"], columns["failed"]["precision"]) == ("bf16", "")
    assert columns["words"]["null_context"] == in_json["words"]["null_context"] == "shuffled"
    rows = {name: (of["train_len"], of["train_len_is_stated"]) for name, of in columns.items()}
    assert rows == {"failed": ("9", ""), "words": ("", ""), "stated": ("30", "true")}


def test_spectra_have_the_numbers_of_their_curves(tables: Path) -> None:
    spectra = Measured.read(tables).spectra
    found = json.loads(json.dumps(spectra_json(spectra)))
    assert (found["row_k"], found["max_k"]) == (spectra.row_k, spectra.max_k)
    assert len(found["curves"]) == len(spectra.by_curve)
    for entry, (curve, spectrum) in zip(found["curves"], spectra.by_curve.items(), strict=True):
        for name in ("family", "context", "tolerance_nats"):
            assert entry[name] == getattr(curve, name), name
        assert entry["ks"] == list(spectrum.ks)
        assert all(map(same_estimate, entry["shares"], spectrum.shares))
        for reached, share in zip(entry["reaching"], REACHED, strict=True):
            k = spectrum.reaching(share)
            assert (reached["share"], reached["value"], reached["low"], reached["high"]) == (
                share,
                k.value,
                k.low,
                k.high,
            )
    for entry in found["beyond_row"]:
        assert same_estimate(entry["share"], spectra.beyond_row(entry["context"], tolerance=entry["tolerance_nats"]))


def test_a_comparison_has_values_and_differences_in_the_order_of_its_subjects(tables: Path, tmp_path: Path) -> None:
    other = made_up_tables(tmp_path / "other", long_gain=0.8, seed=1, gain_beyond=0.3, selectors=MAIN_SELECTORS)
    comparison = compare(read_subjects([str(tables), str(other)]))
    found = json.loads(json.dumps(comparison_json(comparison)))
    assert [entry["label"] for entry in found["subjects"]] == comparison.labels
    assert [entry["tables"] for entry in found["subjects"]] == [str(tables), str(other)]
    of_selector = comparison_json(compare(read_subjects([f"{tables}:kl", f"{other}:attention"])))["subjects"]
    named = [(entry["label"], entry["tables"], entry["selector"]) for entry in of_selector]
    assert [(path, selector) for _, path, selector in named] == [(str(tables), "kl"), (str(other), "attention")]
    assert all(label != path for label, path, _ in named)
    for entry, subject in zip(found["subjects"], comparison.subjects, strict=True):
        assert entry["selector"] == subject.selector
        assert same_estimate(entry["summary"]["long_gain_nats"], subject.summary.long_gain_nats)
    assert [pairing["paired"] for pairing in found["pairings"]] == [pairing.paired for pairing in comparison.pairings]
    for entry, row in zip(found["rows"], comparison.rows, strict=True):
        assert entry["words"] == row.words + " (includes optimism)" * row.includes_optimism
        for name in ("quantity", "selector", "k"):
            assert entry[name] == getattr(row, name), name
        assert len(entry["values"]) == 2 and len(entry["differences"]) == 1
        assert all(map(same_estimate, entry["values"], row.values))
        assert all(map(same_estimate, entry["differences"], row.differences))


def test_compared_curves_have_the_numbers_of_each_model_and_seed(tmp_path: Path) -> None:
    runs = four_way_runs(tmp_path, seeds=(0, 1))
    compared = compare_curves([run for kind in ("pose", "ceiling") for run in runs[kind]])
    found = json.loads(json.dumps(compared_curves_json(compared)))
    for name in ("reference_len", "row_len", "full_len", "shares_are_fragile"):
        assert found[name] == getattr(compared, name), name
    first = compared.models[0].curve
    for name in ("num_windows", "num_documents", "source", "split"):
        assert found[name] == getattr(first, name), name
    for entry, model in zip(found["models"], compared.models, strict=True):
        assert entry["runs"] == [seed.run for seed in model.seeds] and entry["seeds"] == [0, 1]
        assert entry["is_ceiling"] == model.is_ceiling
        for name in ("gain_beyond_nats", "share_of_ceiling"):
            assert same_estimate(entry[name], getattr(model, name)), name
        assert entry["gain_beyond_nats_of_seeds"] == [seed.gain_beyond_nats for seed in model.seeds]
        for number, (point, of_curve) in enumerate(zip(entry["points"], model.curve.points, strict=True)):
            assert point["num_visible_tokens"] == of_curve.num_visible_tokens
            for name in ("loss_nats", "change_nats"):
                assert same_estimate(point[name], getattr(of_curve, name)), name
            assert point["loss_nats_of_seeds"] == [seed.losses_nats[number] for seed in model.seeds]
    assert len({entry["gain_beyond_nats"]["mean"] for entry in found["models"]}) == 2
