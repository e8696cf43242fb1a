"""The bridge: every number of its table from the definition, and what its folder depends on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import numpy as np
import pytest
import torch
from brute_force import Choice, Definition, assert_forward_selection, assert_same_row, expected_scores, kl
from conftest import Messages

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
from olmo_sparsity.measure import bridge, synthetic_accuracy
from olmo_sparsity.measure.bridge import check_bridge, measure_bridge
from olmo_sparsity.measure.setup import opened_model
from olmo_sparsity.measure.setup.opened_model import open_model
from olmo_sparsity.measure.synthetic_accuracy import evaluate_synthetic, open_synthetic_run, synthetic_manifest
from olmo_sparsity.measure.visible.batch_size import make_evaluator
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.work import Share
from olmo_sparsity.model.checkpoint import load_model
from olmo_sparsity.model.olmo import OLMoWithPositions
from olmo_sparsity.records.selectors import LASSO_ALPHA
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.synthetic.data import SYNTHETIC, evaluated_sequences
from olmo_sparsity.synthetic.evaluation import respond
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
        model=ModelConfig(d_model=16, n_heads=2, n_layers=2, mlp_ratio=2, position_embedding="rope"),
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


def strong(checkpoint: Path, device: torch.device) -> OLMoWithPositions:
    """The model with large random weights: every token matters, which a few steps of training do not achieve."""
    model = load_model(checkpoint, device)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return model


@pytest.fixture(scope="module", autouse=True)
def lengths_of_passes() -> Iterator[list[dict[str, Any]]]:
    """What the evaluators of the bridge were made for; its model is ``strong``."""
    made: list[dict[str, Any]] = []

    def evaluator(*given: Any, **named: Any) -> Evaluator:
        made.append(named)
        return make_evaluator(*given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthetic_accuracy, "load_model", strong)
        patch.setattr(bridge, "make_evaluator", evaluator)
        yield made


@pytest.fixture(scope="module")
def folder(config: Config, run: Path) -> Path:
    return measure_bridge(config, run)


def changed(config: Config, section: str, **values: Any) -> Config:
    return dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **values)})


def test_every_column_of_the_table(
    config: Config, run: Path, folder: Path, lengths_of_passes: list[dict[str, Any]]
) -> None:
    """The query is the only local token, hidden means hidden from everyone, and a cell's sequences follow one another."""
    assert lengths_of_passes[:4] == [{"full_len": length + 1, "local_len": 1} for length in LENGTHS for _ in SPARSITIES]
    definition = Definition(strong(run / "checkpoints" / "latest", torch.device("cpu")), 1)
    evaluated = changed(config, "synthetic", test_rows=ROWS, test_row_len=None)
    rows = iter(read_table(folder, "parities").to_pylist())
    cells = [(length, k) for length in LENGTHS for k in SPARSITIES]
    answers, found, of_short = [], [], []
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
            of_short.append(int(p_short.argmax()) == target)
    assert next(rows, None) is None
    assert 0 < np.mean(answers) < 1 and 0 < np.mean(found) < 1 and answers != of_short


def test_the_manifest_and_the_folder_say_what_was_measured(config: Config, run: Path, folder: Path) -> None:
    manifest = read_json(folder / "manifest.json")
    assert folder == run / "bridge" / f"to9-{manifest['run_id'][:6]}"
    assert (manifest["kind"], manifest["status"], manifest["selectors"]) == ("bridge", "complete", SELECTORS)
    assert (manifest["num_windows"], manifest["num_parts"], manifest["windows_per_part"]) == (4 * ROWS, 4, ROWS)
    assert manifest["context"] == {"max_position": 24, "num_long_range": 9}
    assert (manifest["task"], manifest["training_seed"], manifest["train_lengths"]) == ("parity", 0, [4, 8])


def test_a_finished_table_is_left_alone_and_parts_are_those_of_any_share(
    config: Config, run: Path, folder: Path, tmp_path: Path, messages: Messages
) -> None:
    """Positions are kept, whatever ``influence`` asks for: the model was trained with the gaps that hidden tokens leave."""
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert measure_bridge(config, run) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    measure_bridge(config, run, out=tmp_path / "shared", share=Share(1, 2))
    assert sorted(path.name for path in (tmp_path / "shared" / "parities").iterdir()) == [
        "part-00001.parquet",
        "part-00003.parquet",
    ]
    assert messages[-1] == f"{tmp_path / 'shared'}: 20 prompts, {', '.join(SELECTORS)}"
    closed_up = changed(config, "influence", visibility="hidden", positions="compact")
    measure_bridge(closed_up, run, out=tmp_path / "shared")
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


def test_what_the_manifest_says_of_a_run_and_its_task() -> None:
    """Every key from a field of its own."""
    keys = (
        "task", "scratchpad", "positions", "max_sparsity", "hide_tokens", "modulus", "background", "locality", "spread",
    )  # fmt: skip
    of_run = {key: f"run's {key}" for key in ("num_parameters", "seconds", "validation_loss_nats", "ended_by")}
    given: Any = SimpleNamespace(
        synthetic=SimpleNamespace(
            **{key: f"its {key}" for key in keys}, train_lengths=[4, 8], test_lengths=[5, 9]
        ),
        model=SimpleNamespace(position_embedding="none"), pose=SimpleNamespace(num_chunks=6),
        training=SimpleNamespace(seed=3), max_position=40,
    )  # fmt: skip
    opened: Any = SimpleNamespace(
        manifest=of_run, checkpoint=SimpleNamespace(record={"step": 8}), device=torch.device("cpu")
    )
    manifest = synthetic_manifest(given, Path("runs/own"), opened=opened, kind="a kind", run_id="an ID", num_windows=7)
    assert manifest == {
        **{key: f"its {key}" for key in keys}, "kind": "a kind", "run_id": "an ID", "run": "own", "num_windows": 7,
        "position_embedding": "none", "num_chunks": 6, "train_lengths": [4, 8], "training_seed": 3,
        "num_parameters": "run's num_parameters", "training_seconds": "run's seconds", "ended_by": "run's ended_by",
        "validation_loss_nats": "run's validation_loss_nats", "checkpoint": {"step": 8}, "device": "cpu",
        "context": {"max_position": 40, "num_long_range": 9},
    }  # fmt: skip


@pytest.mark.parametrize("threads", [None, 3])
def test_a_process_takes_its_own_gpu_and_as_many_threads_as_are_asked_for(
    threads: Optional[int],
    config: Config,
    run: Path,
    tiny_config: Config,
    tiny_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before a device is chosen, for models of text and of synthetic tasks."""
    done: list[tuple[str, Any]] = []
    monkeypatch.setattr(torch, "set_num_threads", lambda number: done.append(("threads", number)))
    for module in (opened_model, synthetic_accuracy):
        monkeypatch.setattr(module, "take_own_gpu", lambda device: done.append(("own", device)))
        monkeypatch.setattr(module, "pick_device", lambda device: done.append(("pick", device)) or torch.device("cpu"))
    asked = {"threads": threads, "device": "cuda:1"}
    open_synthetic_run(changed(config, "training", **asked), run)
    open_model(changed(tiny_config, "training", **asked), tiny_run)
    once = [("own", "cuda:1"), ("pick", "cuda:1"), *([] if threads is None else [("threads", threads)])]
    assert done == once * 2
    said = rf"nowhere: this run has no checkpoint; train it first with `olmo-sparsity synth train --run {tmp_path}/nowhere`$"
    with pytest.raises(UserError, match=said):
        open_synthetic_run(config, tmp_path / "nowhere")


def test_the_answers_to_the_evaluated_sequences(config: Config, run: Path, tmp_path: Path, messages: Messages) -> None:
    """Places within a length, sparsities within them; parts of another size change nothing."""
    folder = evaluate_synthetic(config, run)
    assert f"{folder}: 56 sequences, lengths [6, 9], k [1, 3], 7 of each" in messages.lines
    manifest = read_json(folder / "manifest.json")
    assert folder == run / "synthetic" / f"to9-{manifest['run_id'][:6]}"
    cells = [(length, k, place) for length in LENGTHS for k in SPARSITIES for place in config.synthetic.places(length)]
    assert len(cells) == 8 and len({place for *_, place in cells}) == 2
    assert (manifest["num_windows"], manifest["windows_per_part"], manifest["test_row_len"]) == (8 * 7, 7, 3)
    assert (manifest["max_sparsity"], manifest["num_chunks"], manifest["hide_tokens"]) == (
        3,
        config.pose.num_chunks,
        True,
    )
    model = strong(run / "checkpoints" / "latest", torch.device("cpu"))
    rows = read_table(folder, "answers").to_pylist()
    for number, (length, k, place) in enumerate(cells):
        answers = respond(model, evaluated_sequences(config, length, k, place=place), predict_ids=False)
        for w in range(7):
            row, right = rows[7 * number + w], answers.tokens_WK[w].tolist() == answers.true_tokens_WK[w].tolist()
            assert row == {
                "window_id": 7 * number + w, "length_tokens": length, "sparsity": k, "place": place,
                "response_ids": answers.tokens_WK[w].tolist(), "true_ids": answers.true_tokens_WK[w].tolist(),
                "response_positions": answers.ids_WK[w].tolist(), "true_positions": answers.true_ids_WK[w].tolist(),
                "tokens_right": right, "positions_right": None, "right": right,
            }  # fmt: skip
    assert 0 < np.mean([row["right"] for row in rows]) < 1 and len(rows) == 8 * 7
    for values in (
        {"test_rows": 8},
        {"test_row_len": None},
        {"test_seed": 5},
        {"test_sparsity": [1, 2]},
        {"test_lengths": [6]},
    ):
        with pytest.raises(UserError, match="other settings"):
            evaluate_synthetic(changed(config, "synthetic", **values), run, out=folder)
    assert evaluate_synthetic(changed(config, "synthetic", bridge_rows=6, bridge_selectors=["kl"]), run) == folder
