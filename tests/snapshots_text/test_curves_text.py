"""What is printed of invented context curves and validations, and the words about several curves."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from made_up import CONTEXTUAL
from made_up_runs import four_way_runs, made_up_curve, made_up_losses, made_up_run, pretrained_curve
from printed_text import without_layout
from syrupy.assertion import SnapshotAssertion

from olmo_sparsity.statistics.curves import context_curve
from olmo_sparsity.statistics.several.curve_comparison import compare_curves
from olmo_sparsity.view.console import print_curve
from olmo_sparsity.wording.curves import (
    curve_finding,
    curves_words,
    gain_beyond_lines,
    model_labels,
    seed_intervals_words,
)


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "600")


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    folder = tmp_path_factory.mktemp("curves")
    losses_WN, doc_ids = made_up_losses(0.01, num_documents=20)
    few = made_up_run(folder / "few")
    made_up_curve(few, losses_WN, doc_ids=doc_ids)
    stated = pretrained_curve(folder / "stated", 0.05, of_model=CONTEXTUAL, row_len=8)
    lossy = four_way_runs(folder / "lossy")
    return {
        "four": [run for runs in four_way_runs(folder / "four", seeds=(0, 2)).values() for run in runs],
        "one": lossy["pose"],
        "without PoSE": lossy["no-pose"] + lossy["ceiling"],
        "ceiling": lossy["ceiling"],
        "few": [few],
        "stated": [stated],
        "not stated": [pretrained_curve(folder / "plain", -0.02)],
    }


@pytest.mark.parametrize("name", ["four", "one", "without PoSE", "ceiling", "few", "stated", "not stated"])
def test_curves(
    name: str, curves: dict[str, list[Path]], capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    runs = curves[name]
    tables = runs[0] / "context-curve" / "made-up"
    print_curve(tables)
    assert without_layout(capsys.readouterr().out.replace(str(tables), "TABLES")) == snapshot
    compared = compare_curves(runs)
    assert [curves_words(compared), *model_labels(compared), *gain_beyond_lines(compared)] == snapshot


def test_a_curve_that_ends_with_the_training_row_tells_nothing(curves: dict[str, list[Path]]) -> None:
    curve = context_curve(curves["one"][0] / "context-curve" / "made-up")
    row = curve.lengths.len_before_gain
    short = dataclasses.replace(curve, points=tuple(of for of in curve.points if of.num_visible_tokens <= row))
    said = "No tokens beyond a training row were visible, so the curve shows nothing about length generalization."
    assert curve_finding(short) == said != curve_finding(curve)


def test_words_about_seeds(snapshot: SnapshotAssertion) -> None:
    assert [seed_intervals_words(number) for number in (2, 3)] == snapshot
