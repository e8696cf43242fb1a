"""Accuracies of synthetic tasks: each number from the rows it is made of, and what is printed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scipy.stats
from guard_commands import DATA
from typer.testing import CliRunner

from olmo_sparsity.cli.app import app
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import read_json, write_manifest
from olmo_sparsity.statistics.quantities import pick
from olmo_sparsity.statistics.synthetic import read_synthetic
from olmo_sparsity.tables import schemas_of, write_part

NUM = 80
Cell = tuple[int, int, Any]  # length, k, place
Shares = dict[Cell, tuple[float, float]]  # of right responses, and of right tokens
CELLS: Shares = {
    (8, 2, None): (1.0, 1.0), (8, 3, None): (0.5, 0.75), (16, 2, None): (0.25, 0.5), (16, 3, None): (0.0, 0.1),
}  # fmt: skip


def evaluated(
    folder: Path, shares: Shares = CELLS, *, seed: int = 5, asked: int = 0, num: int = NUM, **keys: Any
) -> Path:
    """Write the answers of a run. Which of them are right depends on the seed, what was asked on ``asked``."""
    manifest: dict[str, Any] = {
        "kind": "synthetic", "status": "complete", "run_id": "0", "run": "made-up", "task": "parity", "scratchpad": False,
        "positions": "pose", "position_embedding": "rope", "max_sparsity": 3, "modulus": 2, "background": "noise",
        "num_chunks": 2, "train_lengths": [4, 9], "training_seed": seed, "num_windows": num * len(shares), "num_parts": 1,
        "context": {"max_position": 32, "num_long_range": 16},
        "test_row_len": 8 if any(place for _, _, place in shares) else None, **keys,
    }  # fmt: skip
    rng, rows = np.random.default_rng(seed), []
    for number, ((length, k, place), of_cell) in enumerate(shares.items()):
        order = rng.permutation(num)
        for i in range(num):
            right, tokens = (bool(order[i] < round(share * num)) for share in of_cell)
            rows.append(
                {
                    "window_id": number * num + i, "length_tokens": length, "sparsity": k, "place": place,
                    "true_ids": [2 + (i + asked) % 2], "response_ids": [2], "true_positions": [length],
                    "response_positions": [length], "tokens_right": tokens, "positions_right": None, "right": right,
                }
            )  # fmt: skip
    schema = schemas_of(manifest)["answers"]
    content = pa.Table.from_pylist([rows[i] for i in rng.permutation(len(rows))], schema=schema)
    write_part(folder, "answers", part=0, content=content, metadata={"run_id": "0"})
    write_manifest(folder, manifest)
    return folder


def test_each_accuracy_is_the_share_of_its_rows_with_an_exact_interval(tmp_path: Path) -> None:
    table = read_synthetic([evaluated(tmp_path / "one")])
    assert len(table) == 2 * len(CELLS) and set(table["n_windows"]) == {NUM} and table["group"].isna().all()
    for (length, k, _), shares in CELLS.items():
        for quantity, share in zip(("accuracy", "accuracy_tokens"), shares, strict=True):
            row = pick(table, quantity, k=k, x=length)
            assert row is not None and row["value"] == share
            number = share * NUM
            low = scipy.stats.beta.ppf(0.025, number, NUM - number + 1) if number else 0
            high = scipy.stats.beta.ppf(0.975, number + 1, NUM - number) if number < NUM else 1
            assert (row["low"], row["high"]) == pytest.approx((low, high), abs=1e-6)
    few = read_synthetic([evaluated(tmp_path / "few", num=40)])
    assert few[["low", "high", "se"]].isna().all(axis=None) and few["value"].notna().all()


def test_seeds_of_a_model_are_averaged_and_widen_its_intervals(tmp_path: Path) -> None:
    shares = [0.4, 0.6, 0.95]
    seeds = [evaluated(tmp_path / f"{i}", {(16, 2, None): (share, 1.0)}, seed=i) for i, share in enumerate(shares)]
    row, tokens = (pick(read_synthetic(seeds), name, k=2, x=16) for name in ("accuracy", "accuracy_tokens"))
    assert row is not None and tokens is not None
    assert row["value"] == pytest.approx(np.mean(shares)) and tokens["value"] == 1
    between = scipy.stats.sem(shares)
    assert row["se"] > between and row["low"] < np.mean(shares) - 2 * between and row["high"] == 1


def test_places_are_groups(tmp_path: Path) -> None:
    cells: Shares = {(16, 2, "beyond"): (0.25, 0.25), (16, 2, "inside"): (0.75, 0.75), (8, 2, "inside"): (1.0, 1.0)}
    table = read_synthetic([evaluated(tmp_path / "places", cells)])
    rows = table[table["quantity"] == "accuracy"]
    found = rows[["x", "group", "value"]].to_numpy().tolist()
    assert found == [[8, "inside", 1.0], [16, "inside", 0.75], [16, "beyond", 0.25]]


@pytest.mark.parametrize(
    ("share", "changes", "learned"),
    [
        (0.95, {}, (1, 2)), (0.9, {}, (0, 2)), (0.9, {"max_sparsity": 2}, (1, 2)), (0.9, {"train_lengths": [9, 16]}, (0, 2)),
        (0.9, {"train_lengths": [9, 15]}, (0, 0)),
    ],
)  # fmt: skip
def test_a_task_is_learned_by_its_accuracy_on_prompts_as_in_training(
    share: float, changes: dict[str, Any], learned: tuple[int, int], tmp_path: Path
) -> None:
    """Of two seeds the second has learned nothing."""
    cells: Shares = {(8, 2, None): (1.0, 1.0), (8, 3, None): (2 * share - 1, 1.0), (16, 2, None): (0.0, 0.0)}
    nothing = dict.fromkeys(cells, (0.0, 0.0))
    seeds = [evaluated(tmp_path / f"{i}", of, seed=i, **changes) for i, of in enumerate((cells, nothing))]
    (setting,) = read_synthetic(seeds).attrs["settings"].values()
    assert (setting["learned"], setting["seeds"]) == (learned, 2)


def test_settings_that_differ_are_models_with_names_of_their_own(tmp_path: Path) -> None:
    changes: Sequence[dict[str, Any]] = [
        {}, {"max_sparsity": 4}, {"train_lengths": [4, 16]}, {"num_chunks": 1}, {"num_chunks": 3}, {"positions": "randpos"},
        {"position_embedding": "none"}, {"modulus": 4, "background": "text"},
        {"scratchpad": True}, {"task": "variables"},
        {"context": {"max_position": 64, "num_long_range": 16}},
    ]  # fmt: skip
    table = read_synthetic([evaluated(tmp_path / f"{i}", **of) for i, of in enumerate(changes)])
    settings = table.attrs["settings"]
    assert len(settings) == len(changes) and set(table["model"]) == set(settings)
    labels = list(settings)
    assert labels[1].startswith("parity, PoSE, ") and "max_sparsity=4" in labels[1]
    assert [labels[i] for i in (3, 5, 6, 7)] == [
        "parity, without PoSE", "parity, RandPos", "parity, no positions", "sum modulo 4 in text, PoSE",
    ]  # fmt: skip


def test_answers_to_other_questions_and_repeated_seeds_are_refused(tmp_path: Path) -> None:
    first, other = evaluated(tmp_path / "first"), evaluated(tmp_path / "other", seed=6, asked=1)
    for second, said in (
        (other, "different sequences"),
        (first, "same training seed"),
        (tmp_path / "no", "no such folder"),
    ):
        with pytest.raises(UserError, match=said):
            read_synthetic([first, second])
    runs = [tmp_path / "a", tmp_path / "b"]
    manifests = [read_json(DATA / "runs" / f"seed{seed}" / "manifest.json") for seed in range(2)]
    for seed, run in enumerate(runs):
        evaluated(run / "synthetic" / "to16", seed=seed)
    write_manifest(runs[0], manifests[0])
    assert len(read_synthetic(runs).attrs["settings"]) == 1  # how the other was trained is not known
    manifests[1]["config"]["training"]["learning_rate"] *= 2
    write_manifest(runs[1], manifests[1])
    with pytest.raises(UserError, match=r"differ in training\.learning_rate .*; summarize them apart$"):
        read_synthetic(runs)


def test_the_summary_prints_what_the_frame_holds(tmp_path: Path) -> None:
    runs = [tmp_path / name for name in ("pose", "no-pose")]
    for run, num_chunks in zip(runs, (2, 1), strict=True):
        evaluated(run / "synthetic" / "to16", num_chunks=num_chunks)
    options = [word for run in runs for word in ("--run", str(run))]
    printed = CliRunner().invoke(app, ["synth", "summary", *options])
    assert printed.exit_code == 0, printed.output
    lines = [line.rstrip() for line in printed.output.splitlines()]
    at = {model: lines.index(model) for model in lines if model.startswith("parity, ")}
    assert list(at) == ["parity, PoSE", "parity, without PoSE"]
    for begin in at.values():
        assert lines[begin + 1].split() == ["tokens", "k", "=", "2", "k", "=", "3"]
        values = [[word for word in lines[begin + i].split() if "[" not in word and "]" not in word] for i in (2, 3)]
        assert values == [["8", "1.00", "0.50"], ["16", "0.25", "0.00"]]
    found = json.loads(CliRunner().invoke(app, ["synth", "summary", *options, "--json"]).output)
    table = read_synthetic(runs)
    assert [row["value"] for row in found["estimates"]] == table["value"].tolist()
    assert [row["low"] for row in found["estimates"]] == pytest.approx(table["low"].tolist(), abs=1e-12)
    assert list(found["settings"]) == list(at)
