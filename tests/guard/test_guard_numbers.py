"""What is computed from committed tables, and the synthetic tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from guard_commands import DATA, Command, run
from guard_tables import assert_numbers, flat

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


def summary_of(folder: Path) -> dict[str, Any]:
    """Return value, low and high of each number of ``Results.summary()``, by quantity, selector, context and k."""
    frame = read_results(folder).summary()
    numbers = {}
    for row in frame.astype(object).where(frame.notna(), None).to_dict("records"):
        name = " ".join(str(row[key]) for key in ("quantity", "selector", "context", "k") if row[key] is not None)
        numbers.update({f"{name} {what}": row[what] for what in ("mean", "low", "high", "standard_error")})
    return numbers


@pytest.mark.parametrize("name", SUMMARIZED)
def test_summary(name: str) -> None:
    assert_numbers(f"summary-{name}", summary_of(DATA / SUMMARIZED[name]), tolerance=EXACT)


def printed(*arguments: str, cwd: Path) -> Any:
    return json.loads(run(*arguments, "--json", cwd=cwd))


def test_spectrum_and_classes(workplace: Path) -> None:
    found = printed("summary", "--run", "runs/seed0", cwd=workplace)
    curves = {
        f"{one['family']} {one['context']} {one['tolerance_nats']}": {"ks": one["ks"], "shares": one["shares"]}
        for one in found["spectrum"]["curves"]
    }
    assert_numbers("spectrum", flat(curves), tolerance=EXACT)
    names = ("window_share", "long_gain_nats", "null_long_gain_nats", "num_windows")
    classes = {one["target_class"]: {name: one[name] for name in names if name in one} for one in found["classes"]}
    assert_numbers("classes", flat(classes), tolerance=EXACT)


def test_seeds_and_hypothesis(workplace: Path) -> None:
    seeds = printed("summary", *SEEDS[2:], cwd=workplace)
    numbers = flat({name: value for name, value in seeds["mean"].items() if name != "selections"})
    for one in seeds["mean"]["selections"]:
        numbers |= flat(one, f"{one['selector']} {one['context']} {one['k']}")
    assert_numbers("seeds", numbers, tolerance=EXACT)
    hypothesis = flat(printed("hypothesis", *SEEDS, cwd=workplace)["main"])
    assert_numbers("hypothesis", hypothesis, tolerance=EXACT)


def test_interrupted(workplace: Path) -> None:
    command = Command("summary", "--tables", "tables/interrupted", cwd=workplace)
    assert command.wait() == 2
    assert "tables/interrupted" in command.err


def test_context_curve(workplace: Path) -> None:
    keys = ["influence.num_windows=12", "context_curve.max_visible=20"]
    run("-q", "context-curve", "--run", "runs/guard", "--out", "curve", *keys, cwd=workplace)
    rows = pq.read_table(workplace / "curve" / "curve").to_pylist()
    numbers = {
        f"{row['window_id']} {row['doc_id']} {length}": loss
        for row in rows
        for length, loss in zip(row["num_visible_tokens"], row["loss_nats"], strict=True)
    }
    assert_numbers("curve", numbers, tolerance=2e-5)


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
