from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tiny_stores import EOS, tiny_store
from watched_runs import metrics

from olmo_sparsity.config import Config, PoseConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import read_json
from olmo_sparsity.model.checkpoint import load_model
from olmo_sparsity.text.store import open_store
from olmo_sparsity.torchrun import ProcessInfo
from olmo_sparsity.train.batches import batch_at, row_source
from olmo_sparsity.train.data import VALIDATION_SEED, _evaluation_rows
from olmo_sparsity.train.evaluation import Evaluation
from olmo_sparsity.train.loop import train
from olmo_sparsity.train.metrics import StepMetrics, check_trackers, metrics_writer
from olmo_sparsity.train.step import SummedLoss


def with_trackers(config: Config, *trackers: str) -> Config:
    return dataclasses.replace(config, training=dataclasses.replace(config.training, trackers=list(trackers)))


def step_metrics(step: int, *, evaluation: Evaluation | None) -> StepMetrics:
    return StepMetrics(
        step=step,
        loss_nats=1.0,
        evaluation=evaluation,
        learning_rate=0.1,
        grad_norm=5.0,
        tokens=64,
        tokens_per_second=1000,
        share_of_peak=0.25,
        seconds=7.5,
    )


@pytest.mark.parametrize("num_bos", [0, 1])
def test_losses_by_position_are_those_of_consecutive_held_out_text(
    request: pytest.FixtureRequest, num_bos: int
) -> None:
    """A BOS in front of a row has no loss of its own, and shifts no position. Losses are computed token by token."""
    run: Path = request.getfixturevalue("bos_run" if num_bos else "tiny_run")
    record = metrics(run)[-1]
    store = open_store(Path(read_json(run / "manifest.json")["token_store"]), "validation")
    rows = row_source(store, row_len=20, max_position=20)
    drawn = batch_at(rows, PoseConfig(num_chunks=1), num_rows=32, seed=VALIDATION_SEED, step=1)
    text = torch.cat([drawn.tokens_BT, drawn.targets_BT[:, -1:]], dim=1)
    held_out = " ".join(map(str, store.tokens[: int(store.ends_G[-1])].tolist()))
    assert all(" ".join(map(str, row.tolist())) in held_out for row in text)
    eos_id = int(store.tokens[int(store.ends_G[0]) - 1])
    model = load_model(run / "checkpoints" / "latest", torch.device("cpu"))
    expected = []
    for position in range(20):
        seen = torch.nn.functional.pad(text[:, : position + 1], (num_bos, 0), value=eos_id)
        log_q = model(seen, torch.arange(seen.shape[1]).expand(32, -1))[:, -1].log_softmax(-1)
        expected.append(float(-log_q.gather(1, text[:, position + 1, None]).mean()))
    assert record["loss_by_position_nats"] == pytest.approx(expected, abs=1e-5)
    assert max(expected) - min(expected) > 0.05  # the order of the positions can be told
    assert record["loss_within_train_len_nats"] == pytest.approx(sum(expected[:8]) / 8, abs=1e-5)
    assert record["loss_beyond_train_len_nats"] == pytest.approx(sum(expected[8:]) / 12, abs=1e-5)
    assert metrics(run)[4]["loss_by_position_nats"] is None


@pytest.mark.parametrize("bos_id", [None, 0])
@pytest.mark.parametrize(("longest", "fits"), [(19, False), (20, True)])
def test_losses_by_position_need_a_held_out_document_of_a_window_and_its_target(
    longest: int, fits: bool, bos_id: int | None, tiny_config: Config
) -> None:
    """20 tokens and the EOS, which is the target of the last; without one, the run is evaluated on rows like its own alone."""
    context = dataclasses.replace(tiny_config.context, bos=bos_id is not None)
    assert (context.row_len, context.full_len) == (8, 20)
    held_out = tiny_store([[*range(50, 50 + longest)], [*range(10, 20)]])
    config = dataclasses.replace(tiny_config, context=context)
    rows = _evaluation_rows(held_out, config, share=slice(3, 7), bos_id=bos_id)
    num_bos = int(context.bos)
    assert rows.num_bos == num_bos and rows.like_training.tokens_BT.shape == (4, 8 + num_bos)
    assert (rows.consecutive is not None) == fits
    if rows.consecutive is not None:
        assert rows.consecutive.tokens_BT.tolist() == [[0] * num_bos + [*range(50, 70)]] * 4
        assert rows.consecutive.positions_BT.tolist() == [[*range(20 + num_bos)]] * 4
        assert rows.consecutive.targets_BT[:, num_bos:].tolist() == [[*range(51, 70), EOS]] * 4
        assert rows.consecutive.num_targets == 20 * config.training.eval_rows


def test_a_row_as_long_as_the_full_context_has_nothing_beyond_it(tiny_config: Config, tmp_path: Path) -> None:
    context = dataclasses.replace(tiny_config.context, train_len=tiny_config.context.full_len)
    settings = dataclasses.replace(tiny_config.training, steps=1)
    train(dataclasses.replace(tiny_config, context=context, training=settings), tmp_path / "run")
    last = metrics(tmp_path / "run")[-1]
    assert last["loss_beyond_train_len_nats"] is None
    assert last["loss_within_train_len_nats"] == pytest.approx(sum(last["loss_by_position_nats"]) / 20, abs=1e-5)


@pytest.mark.parametrize(("micro_batch_rows", "most"), [(8, 8 * 8), (1, 20)])
def test_evaluation_puts_no_more_tokens_into_a_pass_than_training(
    micro_batch_rows: int, most: int, tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for a row that is longer than those."""
    shapes = []

    def logits(self: SummedLoss, tokens_BT: torch.Tensor, positions_BT: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(tokens_BT.shape))
        return unchanged(self, tokens_BT, positions_BT)

    unchanged = SummedLoss.logits
    monkeypatch.setattr(SummedLoss, "logits", logits)
    settings = dataclasses.replace(tiny_config.training, steps=1, micro_batch_rows=micro_batch_rows, compile="never")
    train(dataclasses.replace(tiny_config, training=settings), tmp_path / "run")
    assert {columns for _, columns in shapes} == {8, 20}
    assert max(rows * columns for rows, columns in shapes) == most
    assert sum(rows for rows, columns in shapes if columns == 20) == settings.eval_rows


def test_lines_after_the_step_and_a_cut_line_are_removed(tiny_config: Config, tmp_path: Path) -> None:
    lines = [json.dumps({"step": step}) for step in range(1, 8)]
    (tmp_path / "metrics.jsonl").write_bytes("\n".join(lines).encode() + b'\n{"step": 8, "lo\xff')
    with metrics_writer(tmp_path, 5, config=tiny_config, run_id="run") as write:
        write(step_metrics(6, evaluation=None))
        write(step_metrics(7, evaluation=Evaluation(2.0, 3.0, 4.0, [3.0, 4.0])))
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5, 6, 7]
    keys = [
        "step", "loss_nats", "validation_loss_nats", "loss_within_train_len_nats", "loss_beyond_train_len_nats",
        "loss_by_position_nats", "learning_rate", "grad_norm", "tokens", "tokens_per_second", "share_of_peak", "seconds",
    ]  # fmt: skip
    for record, losses in ((records[-2], [None] * 4), (records[-1], [2.0, 3.0, 4.0, [3.0, 4.0]])):
        assert list(record) == keys
        assert list(record.values()) == [record["step"], 1.0, *losses, 0.1, 5.0, 64, 1000, 0.25, 7.5]


def test_blank_lines_are_left_out_and_a_line_of_something_else_is_named(tiny_config: Config, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n\n{"step": 2}\n{"step": 3}\n')
    with metrics_writer(tmp_path, 2, config=tiny_config, run_id="run"):
        assert path.read_text() == '{"step": 1}\n{"step": 2}\n'
    for line in (b'{"steps": 2}', b'{"step": \xff}'):
        path.write_bytes(b'{"step": 1}\n\n' + line + b"\n")
        with (
            pytest.raises(UserError, match=r"metrics\.jsonl:3"),
            metrics_writer(tmp_path, 2, config=tiny_config, run_id="x"),
        ):
            pass


def test_another_process_writes_no_metrics_and_ends_where_the_leader_cannot_write_them(
    tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = [None, None, OSError(28, "No space left on device")]  # when it opens the file, and at two lines
    monkeypatch.setattr(dist, "broadcast_object_list", lambda sent, device: sent.__setitem__(0, found.pop(0)))
    with metrics_writer(tmp_path, 0, config=tiny_config, run_id="run", process=ProcessInfo(1, 2)) as write:
        write(step_metrics(1, evaluation=None))
        with pytest.raises(OSError, match="No space left"):
            write(step_metrics(2, evaluation=None))
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_removes_what_comes_behind_the_step(
    tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events of ``purge_step`` and later are those that it removes."""
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    opened: list[tuple[str, int]] = []

    class Writer:
        def __init__(self, folder: str, purge_step: int) -> None:
            opened.append((folder, purge_step))

        def __enter__(self) -> Writer:
            return self

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(tensorboard, "SummaryWriter", Writer)
    with metrics_writer(tmp_path, 5, config=with_trackers(tiny_config, "tensorboard"), run_id="run"):
        pass
    assert opened == [(str(tmp_path / "tensorboard"), 6)]


def test_tensorboard_gets_the_numbers_of_metrics_jsonl(tiny_config: Config, tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train(with_trackers(tiny_config, "tensorboard"), tmp_path / "run")
    events = reader.EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    for key in ("loss_nats", "learning_rate", "validation_loss_nats", "loss_beyond_train_len_nats"):
        expected = [(r["step"], r[key]) for r in metrics(tmp_path / "run") if r[key] is not None]
        written = [(event.step, event.value) for event in events.Scalars(key)]
        assert [step for step, _ in written] == [step for step, _ in expected]
        assert [value for _, value in written] == pytest.approx([value for _, value in expected], rel=1e-6)


def test_wandb_gets_the_run_and_its_metrics(
    tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in that takes the arguments of the real one: name, ID, resume, config; then numbers by step."""
    init_arguments: list[dict[str, Any]] = []
    logged: list[tuple[int, dict[str, float]]] = []

    class Tracked:
        def __enter__(self) -> Tracked:
            return self

        def __exit__(self, *_: object) -> None: ...

        def log(self, values: dict[str, float], step: int) -> None:
            logged.append((step, values))

    def init(**arguments: Any) -> Tracked:
        init_arguments.append(arguments)
        return Tracked()

    module = types.ModuleType("wandb")
    module.init = init  # type: ignore[attr-defined]
    module.__spec__ = importlib.util.spec_from_loader("wandb", None)
    monkeypatch.setitem(sys.modules, "wandb", module)
    train(with_trackers(tiny_config, "wandb"), tmp_path / "run")
    (arguments,) = init_arguments
    named = {name: arguments[name] for name in ("project", "name", "resume", "dir")}
    assert named == {"project": "olmo-sparsity", "name": "run", "resume": "allow", "dir": str(tmp_path / "run")}
    assert arguments["id"] == read_json(tmp_path / "run" / "manifest.json")["run_id"]
    assert arguments["config"]["training"]["steps"] == 12
    assert [step for step, _ in logged] == list(range(1, 13))
    for (_, values), record in zip(logged, metrics(tmp_path / "run"), strict=True):
        assert values["loss_nats"] == record["loss_nats"]
        assert ("validation_loss_nats" in values) == (record["validation_loss_nats"] is not None)
        assert "step" not in values and all(isinstance(value, (int, float)) for value in values.values())


def test_a_tracker_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_trackers([])
    with pytest.raises(
        UserError,
        match=r"training\.trackers: tensorboard is not installed; run pip install 'olmo-sparsity\[tensorboard\]', or remove "
        r"it from the configuration \(metrics\.jsonl is always written\)",
    ):
        check_trackers(["tensorboard"])


def test_a_folder_with_the_name_of_a_tracker_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m` and torchrun import from the current folder, where logs may lie in a folder of this name."""
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    assert importlib.util.find_spec("wandb") is not None
    with pytest.raises(UserError, match="wandb is not installed"):
        check_trackers(["wandb"])


def test_training_with_a_tracker_that_is_not_installed_writes_nothing(
    tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "wandb" else find(name, *rest))
    with pytest.raises(UserError, match="wandb is not installed"):
        train(with_trackers(tiny_config, "wandb"), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
