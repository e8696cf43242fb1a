"""The bridge: every number of its table from the definition, and what its folder depends on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from brute_force import Choice, Definition, assert_forward_selection, assert_same_row, expected_scores, kl

from olmo_sparsity.config import (
    Config,
    ContextConfig,
    InfluenceConfig,
    ModelConfig,
    PoseConfig,
    SyntheticConfig,
    TrainingConfig,
)
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.bridge import check_bridge, measure_bridge
from olmo_sparsity.measure.work import Share
from olmo_sparsity.model.checkpoint import load_model
from olmo_sparsity.records.selectors import LASSO_ALPHA
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.synthetic.data import SYNTHETIC, evaluated_sequences
from olmo_sparsity.tables.reading import read_table
from olmo_sparsity.training.loop import train

LENGTHS, SPARSITIES, ROWS, SEED, MASKS = [6, 9], [1, 3], 5, 4, 12
SELECTORS = ["unmask-one", "kl", "greedy-kl", "lasso", "attention", "random"]


@pytest.fixture(scope="module")
def config() -> Config:
    """No two numbers of rows, lengths or seeds are the same."""
    return Config(
        name="tiny",
        context=ContextConfig(local_len=2, full_len=24, train_len=8),
        pose=PoseConfig(max_position=24),
        model=ModelConfig(d_model=16, n_heads=2, n_layers=1, mlp_ratio=2, position_embedding="rope"),
        training=TrainingConfig(steps=30, batch_rows=16, warmup_steps=2, compile="never", precision="fp32", device="cpu"),
        influence=InfluenceConfig(seed=9, visibility="contextual", lasso_masks=MASKS),
        synthetic=SyntheticConfig(
            max_sparsity=3, train_lengths=[4, 8], test_lengths=LENGTHS, test_sparsity=SPARSITIES, test_rows=7, test_row_len=3,
            bridge_rows=ROWS, bridge_selectors=SELECTORS, test_seed=SEED, hide_tokens=True,
        ),
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bridge") / "run"
    train(config, folder, source=SYNTHETIC)
    return folder


@pytest.fixture(scope="module")
def folder(config: Config, run: Path) -> Path:
    return measure_bridge(config, run)


def changed(config: Config, section: str, **values: Any) -> Config:
    return dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **values)})


def test_every_column_of_the_table(config: Config, run: Path, folder: Path) -> None:
    """The query is the only local token, hidden means hidden from everyone, and a cell's sequences follow one another."""
    definition = Definition(load_model(run / "checkpoints" / "latest", torch.device("cpu")), 1)
    evaluated = changed(config, "synthetic", test_rows=ROWS, test_row_len=None)
    rows = iter(read_table(folder, "parities").to_pylist())
    cells = [(length, k) for length in LENGTHS for k in SPARSITIES]
    answers, found = [], []
    for number, (length, k) in enumerate(cells):
        sequences = evaluated_sequences(evaluated, length, k).sequences
        of_cell = [next(rows) for _ in range(len(SELECTORS) * ROWS)]
        for name, w in ((name, w) for name in SELECTORS for w in range(ROWS)):
            row, window_id = of_cell.pop(0), number * ROWS + w
            *tokens, target = sequences.tokens_BT[w, : length + 2].tolist()
            bits, everything = np.flatnonzero(sequences.planted_BT[w]).tolist(), list(range(length))
            p_short, p_all, p_bits = definition.log_q(tokens, [[], everything, bits])
            choice = Choice(definition, tokens, target, p_all, [SEED, 0, window_id, 0])
            positions = row["positions"]
            assert len(set(positions)) == k
            if name == "greedy-kl":
                scores = [float(k - positions.index(j)) if j in positions else 0.0 for j in everything]
                assert_forward_selection(name, choice, scores, k)
            else:
                scores_M = expected_scores(name, choice, lasso_masks=MASKS, lasso_alpha=LASSO_ALPHA)
                ranked = [*positions, *(j for j in everything if j not in positions)]
                assert (scores_M[ranked[:-1]] > scores_M[ranked[1:]] - 2e-5)[:k].all()
                assert scores_M[positions].min() > max(scores_M[ranked[k:]]) - 2e-5
            p_sparse = definition.log_q(tokens, [positions])[0]
            expected = {
                "window_id": window_id,
                "length_tokens": length,
                "sparsity": k,
                "selector": name,
                "planted_positions": bits,
                "positions": positions,
                "num_found": len(set(bits) & set(positions)),
                "right": int(p_all.argmax()) == target,
                "loss_short_nats": -p_short[target],
                "loss_long_nats": -p_all[target],
                "loss_sparse_nats": -p_sparse[target],
                "loss_planted_nats": -p_bits[target],
                "kl_short_nats": kl(p_all, p_short),
                "kl_sparse_nats": kl(p_all, p_sparse),
            }
            assert_same_row(row, expected)
            answers.append(expected["right"])
            found.append(expected["num_found"] / k)
    assert next(rows, None) is None
    assert 0 < np.mean(answers) < 1 and 0 < np.mean(found) < 1


def test_the_manifest_and_the_folder_say_what_was_measured(config: Config, run: Path, folder: Path) -> None:
    manifest = read_json(folder / "manifest.json")
    assert folder == run / "bridge" / f"to9-{manifest['run_id'][:6]}"
    assert (manifest["kind"], manifest["status"], manifest["selectors"]) == ("bridge", "complete", SELECTORS)
    assert (manifest["num_windows"], manifest["num_parts"], manifest["windows_per_part"]) == (4 * ROWS, 4, ROWS)
    assert manifest["context"] == {"max_position": 24, "num_long_range": 9}
    assert (manifest["task"], manifest["training_seed"], manifest["train_lengths"]) == ("parity", 0, [4, 8])


def test_a_finished_table_is_left_alone_and_parts_are_those_of_any_share(
    config: Config, run: Path, folder: Path, tmp_path: Path
) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert measure_bridge(config, run) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    measure_bridge(config, run, out=tmp_path / "shared", share=Share(1, 2))
    assert sorted(path.name for path in (tmp_path / "shared" / "parities").iterdir()) == [
        "part-00001.parquet",
        "part-00003.parquet",
    ]
    measure_bridge(config, run, out=tmp_path / "shared")
    assert read_table(tmp_path / "shared", "parities").equals(read_table(folder, "parities"))
    again = tmp_path / "shared" / "parities" / "part-00000.parquet"
    written = again.stat().st_mtime_ns
    measure_bridge(config, run, out=tmp_path / "shared", overwrite=True)
    assert again.stat().st_mtime_ns != written


def test_what_changes_the_numbers_changes_the_fingerprint(config: Config, run: Path, folder: Path) -> None:
    changes: list[tuple[str, dict[str, Any]]] = [
        ("synthetic", {"test_lengths": [6, 10]}),
        ("synthetic", {"test_sparsity": [1, 2]}),
        ("synthetic", {"bridge_rows": 6}),
        ("synthetic", {"test_seed": 5}),
        ("synthetic", {"bridge_selectors": SELECTORS[1:]}),
        ("influence", {"lasso_masks": 13}),
    ]
    for section, values in changes:
        with pytest.raises(UserError, match="other settings"):
            measure_bridge(changed(config, section, **values), run, out=folder)
    for section, values in [("synthetic", {"test_rows": 8}), ("influence", {"visibility": "hidden", "seed": 1})]:
        assert measure_bridge(changed(config, section, **values), run) == folder


@pytest.mark.parametrize(
    "values",
    [
        {"task": "variables", "hide_tokens": False, "test_row_len": None, "max_sparsity": 1, "test_sparsity": [1]},
        {"scratchpad": True, "hide_tokens": False, "test_row_len": None},
        {"positions": "shifted"},
    ],
)
def test_only_parity_without_a_scratchpad_under_pose_has_a_bridge(config: Config, values: dict[str, Any]) -> None:
    settings = dataclasses.replace(config.synthetic, **values)
    named = f"task = {settings.task}, synthetic.scratchpad = {settings.scratchpad}, synthetic.positions = {settings.positions}:"
    with pytest.raises(UserError, match=named):
        check_bridge(settings)
    check_bridge(config.synthetic)
