"""What is printed of invented context curves and validations, and the words about several curves."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from made_up import CONTEXTUAL
from made_up_runs import four_way_runs, made_up_curve, made_up_losses, made_up_run, pretrained_curve
from planted_measurements import ROW
from printed_text import json_lines, without_layout
from syrupy.assertion import SnapshotAssertion

from olmo_sparsity.statistics.curves import context_curve
from olmo_sparsity.statistics.several.curve_comparison import compare_curves
from olmo_sparsity.storage.manifests import write_manifest
from olmo_sparsity.tables.parts import write_part
from olmo_sparsity.tables.schemas import schemas_of
from olmo_sparsity.view.console import print_curve, print_detection
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
    assert [seed_intervals_words(number) for number in (1, 2, 3)] == snapshot


@pytest.mark.parametrize("num_documents", [90, 30])
def test_validation(
    num_documents: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    folder = validation(tmp_path / "tables", num_documents)
    print_detection(folder)
    assert without_layout(capsys.readouterr().out.replace(str(folder), "TABLES")) == snapshot
    print_detection(folder, as_json=True)
    import json

    assert json_lines(json.loads(capsys.readouterr().out)) == snapshot


def validation(folder: Path, num_documents: int) -> Path:
    """Write a validation of two suites; in one the model gains, in the other it loses."""
    rng = np.random.default_rng(8)
    planted: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    num_long_range, full, suites = (
        ROW["num_long_range"],
        ROW["full_len"],
        [("needle-name", 1, 0.7), ("needle-number", 2, -0.3)],
    )
    for number, (suite, copies, gain) in enumerate(suites):
        for w in range(num_documents + 7 * number):
            truth = sorted(rng.choice(num_long_range, int(rng.integers(1, 4)), replace=False).tolist())
            short = rng.normal(3, 0.4)
            planted.append(
                {
                    "window_id": 1000 * number + w, "suite": suite, "doc_id": f"{w % num_documents:016x}", "num_planted": copies,
                    "planted_positions": truth, "planted_distance_tokens": full - float(np.mean(truth)),
                    "token_texts": ["a"] * full, "target_text": "b",
                    "loss_short_nats": short, "loss_short_no_gap_nats": short - 0.05,
                    "loss_long_nats": short - rng.normal(gain, 0.5), "loss_planted_nats": short - rng.normal(0.2, 0.5),
                }
            )  # fmt: skip
            for selector, strength in (("kl", 3.0), ("attention", 1.0)):
                scores = rng.random(num_long_range) + strength * np.isin(np.arange(num_long_range), truth)
                found.append(
                    {"window_id": 1000 * number + w, "selector": selector, "ranked_positions": np.argsort(-scores)}
                )
    records = [
        {"suite": suite, "num_planted": copies, "local_len": ROW["local_len"], "full_len": full}
        for suite, copies, _ in suites
    ]
    manifest: dict[str, Any] = {
        "kind": "validation", "status": "complete", "run_id": "id", "run": "the run", "source": "a text", "split": "held-out",
        "num_parts": 1, "suites": records, "validation": {"k": [1, 3, 5]}, "context": ROW, "visibility": "contextual",
        "anchor": CONTEXTUAL["anchor"], "fit": CONTEXTUAL["fit"],
    }  # fmt: skip
    schemas = schemas_of(manifest)
    for table, rows in (("planted", planted), ("found", found)):
        content = pa.Table.from_pylist(rows, schema=schemas[table])
        write_part(folder, table, part=0, content=content, metadata={"run_id": "id"})
    write_manifest(folder, manifest)
    return folder
