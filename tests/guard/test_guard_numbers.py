"""What is computed from committed tables, and the synthetic tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from guard_commands import DATA, Command, run
from guard_tables import assert_numbers

from olmo_sparsity.api import read_results

SUMMARIZED = {
    "hidden": "runs/seed0/influence/measured",
    "seed1": "runs/seed1/influence/measured",
    "seed2": "runs/seed2/influence/measured",
    "contextual": "tables/contextual",
    "words": "tables/words",
}
EXACT = 1e-9
SEEDS = [option for seed in (0, 1, 2) for option in ("--run", f"runs/seed{seed}")]
TASKS = ("parity", "scratchpad-coupled", "scratchpad-predicted", "variables")


def numbers(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Value, low, high and se of rows of the frame, by what tells rows apart."""
    keys = ("quantity", "selector", "context", "k", "group", "x")
    names = (" ".join(str(row[key]) for key in keys if row[key] is not None) for row in rows)
    counted = ("value", "low", "high", "se", "n_windows")
    return {f"{name} {what}": row[what] for name, row in zip(names, rows, strict=True) for what in counted}


@pytest.mark.parametrize("name", SUMMARIZED)
def test_summary(name: str) -> None:
    frame = read_results(DATA / SUMMARIZED[name]).summary()
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    assert_numbers(f"summary-{name}", numbers(rows), tolerance=EXACT)


def printed(*arguments: str, cwd: Path) -> Any:
    return json.loads(run(*arguments, "--json", cwd=cwd))


def test_spectrum_and_classes(workplace: Path) -> None:
    found = numbers(printed("summary", "--run", "runs/seed0", cwd=workplace)["estimates"])
    assert_numbers("spectrum", found, tolerance=EXACT)
    assert_numbers("classes", found, tolerance=EXACT)


def test_seeds(workplace: Path) -> None:
    found = numbers(printed("summary", *SEEDS[2:], cwd=workplace)["estimates"])
    assert_numbers("seeds", found, tolerance=EXACT)


def test_hypothesis(workplace: Path) -> None:
    rows = printed("hypothesis", *SEEDS, cwd=workplace)["estimates"]
    found = {f"{row['quantity']} {row['group']} {what}": row[what] for row in rows for what in row}
    thirds = [
        row for row in rows if row["quantity"] == "third_gain_nats" and row["group"] in ("dense", "middle", "sparse")
    ]
    targets = sum(row["n_windows"] for row in thirds)
    assert_numbers("hypothesis", {**found, "targets": targets}, tolerance=EXACT)


def test_interrupted(workplace: Path) -> None:
    command = Command("summary", "--tables", "tables/interrupted", cwd=workplace)
    assert command.wait() == 2
    assert "tables/interrupted" in command.err


@pytest.mark.parametrize("task", TASKS)
def test_synthetic(task: str, workplace: Path) -> None:
    folder = f"runs/synthetic-{task}"
    config = ["--config", f"synthetic/{task}.yaml", "--run", folder, "--out", f"answers-{task}"]
    run("-q", "synth", "eval", task, *config, cwd=workplace)
    lines = [json.loads(line) for line in (workplace / folder / "metrics.jsonl").read_text().splitlines()]
    losses = {f"loss of step {line['step']}": line["loss_nats"] for line in lines if line["step"] <= 12}
    assert_numbers(f"synthetic-losses-{task}", losses, tolerance=1e-6)
    answers: dict[str, Any] = {}
    for row in pq.read_table(workplace / f"answers-{task}" / "answers").to_pylist():
        name = f"{row['window_id']} {row['length_tokens']} {row['sparsity']}"
        answers[name] = [row["true_ids"], row["true_positions"], row["response_ids"], row["right"]]
    assert_numbers(f"synthetic-{task}", answers, tolerance=0)
