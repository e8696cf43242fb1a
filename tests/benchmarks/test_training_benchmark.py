"""Both sides of the training benchmark do the same work, and it reports when they do not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from benchmarks import training
from olmo_sparsity.config import Config
from olmo_sparsity.config.files import config_folder, load_config
from olmo_sparsity.synthetic.data import SYNTHETIC

SMALL = ["model.d_model=16", "model.n_layers=1", "training.batch_rows=8", "training.compile=never"]


@pytest.mark.parametrize("micro_batch_rows", [None, 4])
def test_the_bare_loop_trains_as_the_tool_does(
    tiny_config: Config, tmp_path: Path, micro_batch_rows: int | None
) -> None:
    settings = dataclasses.replace(
        tiny_config.training, micro_batch_rows=micro_batch_rows, weight_decay=1.0, max_grad_norm=0.1, z_loss=1e-4
    )
    pose = dataclasses.replace(
        tiny_config.pose, seam_targets="none"
    )  # the number of targets differs from batch to batch
    config = training.settle(dataclasses.replace(tiny_config, training=settings, pose=pose), 10)
    turns = training.one_turn(config, tmp_path / "run")
    tool, bare = turns[training.TOOL], turns[training.BARE]
    assert config.training.steps == 30 and len(tool.losses) == len(bare.losses) == 3
    assert len(tool.seconds) == len(bare.seconds) == 1 and tool.seconds[0] > 0 and bare.seconds[0] > 0
    assert tool.losses == pytest.approx(bare.losses, abs=1e-4)
    # AdamW hides a wrong scale of the gradient from the losses.
    assert tool.grad_norms == pytest.approx(bare.grad_norms, rel=2e-3)
    assert turns[training.FREE].losses == pytest.approx(bare.losses, abs=1e-3)
    assert tool.losses[-1] < tool.losses[0] - 0.1


def test_of_a_synthetic_task_it_does_the_same_work_too(tmp_path: Path) -> None:
    config = training.settle(load_config(config_folder() / "synthetic" / "parity-cpu10x.yaml", SMALL), 10)
    turns = training.one_turn(config, tmp_path / "run", SYNTHETIC)
    tool, bare = turns[training.TOOL], turns[training.BARE]
    assert len(tool.losses) == 3 and tool.losses == pytest.approx(bare.losses, abs=1e-4)
    assert tool.grad_norms == pytest.approx(bare.grad_norms, rel=2e-3)
    assert len(set(tool.losses)) == 3


def test_other_work_is_told(tiny_config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    config = training.settle(tiny_config, 10)
    turns = {name: [training.Turn([0.5], [2.0], [3.0])] for name in (training.TOOL, training.BARE, training.FREE)}
    assert training._print_all(config, turns)
    for losses, grad_norms in (([2.0], [6.0]), ([2.2], [3.0])):
        turns[training.TOOL] = [training.Turn([0.4], losses, grad_norms)]
        assert not training._print_all(config, turns)
    printed = capsys.readouterr().out
    assert "train to bare loop, stretch by stretch: median 0.800" in printed and printed.count("NOT the same work") == 2
    assert training.main(["training.no_such_key=1"]) == 2
    assert training.main(["--synthetic", "synthetic.scratchpad=true", "synthetic.positions=predicted"]) == 2
