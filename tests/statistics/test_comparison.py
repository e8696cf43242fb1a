"""Measurements side by side: paired where the windows are the same, and said so where they are not."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up import made_up_tables

from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.bootstrap import MIN_DOCUMENTS
from olmo_sparsity.statistics.comparison import CHOSEN, compare, main_rows, read_subjects, same_windows
from olmo_sparsity.statistics.differences import paired_difference, unpaired_difference
from olmo_sparsity.statistics.measurement import Measurement, load
from olmo_sparsity.statistics.summary import summarize
from olmo_sparsity.statistics.wording import verdict
from olmo_sparsity.view.comparison_page import write_comparison
from olmo_sparsity.view.console import print_comparison


def named(folder: Path, run: str, **settings: Any) -> str:
    """Made-up tables of a run of this name."""
    made_up_tables(folder / run, **settings)
    manifest = json.loads((folder / run / "manifest.json").read_text())
    (folder / run / "manifest.json").write_text(json.dumps({**manifest, "run": run, **settings.get("facts", {})}))
    return str(folder / run)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("comparison")
    return {
        "pose": named(folder, "pose", seed=1),
        "no-pose": named(folder, "no-pose", seed=1, long_gain=-0.2),
        "other": named(folder, "other", seed=2),
        "weaker": named(folder, "weaker", seed=1, long_gain=0.3),
    }


def test_the_same_windows_are_paired(folders: dict[str, str]) -> None:
    numbers = compare(read_subjects([folders["pose"], folders["weaker"]]))
    assert [one["label"] for one in numbers["subjects"]] == ["pose", "weaker"]
    (pairing,) = numbers["pairings"]
    assert pairing["paired"] and "same 90 windows" in pairing["words"]
    a, b = load(Path(folders["pose"])), load(Path(folders["weaker"]))
    expected, summaries = paired_difference(a, b), [summarize(a), summarize(b)]
    for row in numbers["rows"]:
        if row["selector"] is None:
            assert row["differences"] == [expected[row["quantity"]]]
            assert row["values"] == [one[row["quantity"]] for one in summaries]
        else:
            key = (row["selector"], "real", row["k"])
            assert row["differences"] == [expected.get((key, row["quantity"]))]
    # Pairing is what it is for: the long gains differ by a constant factor of the class, not by chance.
    long = next(row for row in numbers["rows"] if row["quantity"] == "long_gain_nats")
    assert verdict(long["differences"][0]) == "less"
    width = [value["high"] - value["low"] for value in (long["differences"][0], long["values"][0])]
    assert width[0] < 0.5 * width[1]


def test_other_windows_are_not_paired_and_it_says_so(folders: dict[str, str]) -> None:
    subjects = read_subjects([folders["pose"], folders["other"]])
    assert not same_windows(subjects[0].measurement, subjects[1].measurement)
    numbers = compare(subjects)
    assert not numbers["pairings"][0]["paired"]
    assert "NOT PAIRED" in numbers["pairings"][0]["words"]
    assert "60 documents are in both" in numbers["pairings"][0]["words"]
    with pytest.raises(ValueError, match="different windows"):
        paired_difference(subjects[0].measurement, subjects[1].measurement)


def test_same_ids_of_other_text_are_not_the_same_windows(folders: dict[str, str]) -> None:
    one = load(Path(folders["pose"]))
    other = dataclasses.replace(one, facts={**one.facts, "tokens_sha256": "else"})
    assert same_windows(one, one)
    assert not same_windows(one, other)
    longer = dataclasses.replace(one, facts={**one.facts, "context": {**one.facts["context"], "full_len": 30}})
    assert not same_windows(one, longer)


def apart(measurement: Measurement, prefix: str) -> Measurement:
    """The same of other documents."""
    windows = measurement.windows.assign(doc_id=prefix + measurement.windows["doc_id"])
    return dataclasses.replace(measurement, windows=windows)


def test_an_unpaired_difference_of_other_documents_is_as_wide_as_two_independent_ones(folders: dict[str, str]) -> None:
    a, b = load(Path(folders["pose"])), load(Path(folders["other"]))
    found = unpaired_difference(apart(a, "a"), apart(b, "b"))["long_gain_nats"]
    gains = [summarize(one)["long_gain_nats"] for one in (a, b)]
    assert found["mean"] == pytest.approx(gains[1]["mean"] - gains[0]["mean"])
    widths = [one["high"] - one["low"] for one in gains]
    assert found["high"] - found["low"] == pytest.approx(np.hypot(*widths), rel=0.1)


def test_an_unpaired_difference_of_the_same_windows_is_the_paired_one(folders: dict[str, str]) -> None:
    a, b = load(Path(folders["pose"])), load(Path(folders["weaker"]))
    assert unpaired_difference(a, b) == paired_difference(a, b)


def test_few_documents_on_either_side_have_no_interval(folders: dict[str, str]) -> None:
    a, b = load(Path(folders["pose"])), load(Path(folders["other"]))
    few = b.windows["doc_id"].unique()[: MIN_DOCUMENTS - 1]
    found = unpaired_difference(a, b.restrict(b.windows["doc_id"].isin(few).to_numpy()))["long_gain_nats"]
    assert found["low"] is None and found["mean"] is not None
    assert verdict(found) == "fewer than 20 documents"


def test_a_failed_gate_leaves_no_fraction(folders: dict[str, str]) -> None:
    numbers = compare(read_subjects([folders["pose"], folders["no-pose"]]))
    assert [one["summary"]["gate"] for one in numbers["subjects"]] == ["passed", "failed"]
    for row in numbers["rows"]:
        if row["quantity"] == "recovered_fraction":
            assert row["values"][1] is None and row["differences"] == [None]


def test_selectors_of_one_run(folders: dict[str, str]) -> None:
    subjects = read_subjects([f"{folders['pose']}:kl", f"{folders['pose']}:unmask-one"])
    numbers = compare(subjects)
    assert numbers["pairings"][0]["paired"]
    assert [bool(one["warning"]) for one in numbers["subjects"]] == [False, True]
    assert {row["selector"] for row in numbers["rows"]} == {None, CHOSEN}
    measurement = load(Path(folders["pose"]))
    row = next(r for r in main_rows(numbers) if r["quantity"] == "gain_sparse_nats")
    gains = measurement.gains
    difference = (gains["unmask-one", "real", 8] - gains["kl", "real", 8]).mean()
    assert row["differences"][0]["mean"] == pytest.approx(difference)
    long = next(r for r in numbers["rows"] if r["quantity"] == "long_gain_nats")
    assert verdict(long["differences"][0]) == "the same"


def test_mistakes(folders: dict[str, str], tmp_path: Path) -> None:
    pose = folders["pose"]
    for texts, said in (
        ([pose], "two runs or more"),
        ([f"{pose}:kl", pose], "name a selector for every run"),
        ([pose, str(tmp_path / "nowhere")], "no such folder"),
        ([pose, str(tmp_path)], "nothing has been measured"),
    ):
        with pytest.raises(UserError, match=said):
            read_subjects(texts)


def test_three_runs_are_printed_and_written(
    folders: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    subjects = read_subjects([folders["pose"], folders["weaker"], folders["other"]])
    print_comparison(subjects)
    said = capsys.readouterr().out
    assert "weaker minus pose: paired" in said and "other minus pose: NOT PAIRED" in said
    assert "gain over random" in said
    out = write_comparison(subjects, tmp_path / "comparison.html")
    page = out.read_text()
    assert "NOT PAIRED" in page and "default-src" in page
    with pytest.raises(UserError, match="--overwrite"):
        write_comparison(subjects, out)
