"""Runs that start from the weights of an earlier run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Messages
from watched_runs import metrics, weights

from olmo_sparsity.config import Config
from olmo_sparsity.errors import UserError
from olmo_sparsity.storage.files import read_json, write_json
from olmo_sparsity.storage.manifests import earlier_stages
from olmo_sparsity.torchrun import SINGLE_PROCESS
from olmo_sparsity.training import first_stage
from olmo_sparsity.training.data import open_training_text
from olmo_sparsity.training.first_stage import FirstStage
from olmo_sparsity.training.loop import train


def second_stage(config: Config, first: Path, **training: Any) -> Config:
    """Return a stage of 2 steps with PoSE behind a run without it, whose positions end elsewhere."""
    return replace(
        config,
        pose=replace(config.pose, num_chunks=2, max_position=64),
        training=replace(config.training, steps=2, start_from=str(first), **training),
    )


@pytest.fixture(scope="module")
def first(tiny_config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("stages") / "first"
    train(replace(tiny_config, pose=replace(tiny_config.pose, num_chunks=1)), run)
    return run


def test_it_starts_from_the_last_weights_of_the_first_stage(
    first: Path, tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nearly no learning rate the weights stay those of the first stage; the first loss is that of a trained model."""
    at_rest = second_stage(tiny_config, first, learning_rate=1e-30, weight_decay=0.0)
    train(at_rest, tmp_path / "rest")
    of_first, of_second = weights(first)["model.pt"], weights(tmp_path / "rest")["model.pt"]
    assert of_first.keys() == of_second.keys()
    assert all(torch.equal(of_first[name], of_second[name]) for name in of_first)
    assert read_json(tmp_path / "rest/manifest.json")["first_stage"] == {
        "run": "first",
        "folder": str(first),
        "run_id": read_json(first / "manifest.json")["run_id"],
        "step": 12,
        "model_sha256": read_json(first / "manifest.json")["checkpoint"]["model_sha256"],
    }
    drawn = replace(at_rest, training=replace(at_rest.training, start_from=None))
    train(drawn, tmp_path / "drawn")
    losses = [metrics(tmp_path / name)[0]["loss_nats"] for name in ("rest", "drawn")]
    assert losses[0] < losses[1] - 0.3


def test_a_stopped_run_goes_on_bit_for_bit_without_its_first_stage(
    first: Path, tiny_config: Config, tmp_path: Path, messages: Messages
) -> None:
    """Its own checkpoint holds all weights."""
    copy = Path(shutil.copytree(first, tmp_path / "first", symlinks=True))
    config = second_stage(tiny_config, copy, checkpoint_every=1)
    train(config, tmp_path / "whole")
    train(config, tmp_path / "stopped")
    record = read_json(tmp_path / "stopped/manifest.json")["first_stage"]
    shutil.rmtree(tmp_path / "stopped/checkpoints/step2")
    shutil.rmtree(copy)
    train(config, tmp_path / "stopped")
    assert f"{tmp_path / 'stopped'}: resuming at step 1" in messages
    assert read_json(tmp_path / "stopped/manifest.json")["first_stage"] == record
    whole, stopped = (weights(tmp_path / name)["model.pt"] for name in ("whole", "stopped"))
    assert all(torch.equal(whole[name], stopped[name]) for name in whole)


def test_a_first_stage_that_has_changed_is_refused(first: Path, tiny_config: Config, tmp_path: Path) -> None:
    """The new run may have been killed before its first checkpoint, and would begin with other weights."""
    copy = tmp_path / "first"
    shutil.copytree(first, copy, symlinks=True)
    train(second_stage(tiny_config, copy), tmp_path / "second")
    shutil.rmtree(tmp_path / "second/checkpoints")
    shutil.rmtree(copy)
    train(replace(tiny_config, training=replace(tiny_config.training, seed=5)), copy)
    with pytest.raises(UserError, match="second: the run that it starts from has changed since it began"):
        train(second_stage(tiny_config, copy), tmp_path / "second")


def test_a_relative_path_names_the_first_stage_from_any_folder(
    first: Path, tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where both runs have moved, and are named as they were written from there."""

    def found() -> Path | None:
        (stage,) = earlier_stages(read_json(run / "manifest.json"))
        return None if stage.manifest is None else stage.folder.resolve()

    for place in ("old", "new"):
        (tmp_path / place).mkdir()
    shutil.copytree(first, tmp_path / "old" / "first", symlinks=True)
    monkeypatch.chdir(tmp_path / "old")
    train(second_stage(tiny_config, Path("first")), Path("second"))
    run = tmp_path / "old" / "second"
    assert read_json(run / "manifest.json")["config"]["training"]["start_from"] == "first"
    for folder in (tmp_path / "old", tmp_path / "new"):
        monkeypatch.chdir(folder)
        assert found() == tmp_path / "old" / "first"
    for name in ("first", "second"):
        (tmp_path / "old" / name).rename(tmp_path / "new" / name)
    run = tmp_path / "new" / "second"
    assert found() == tmp_path / "new" / "first"
    monkeypatch.chdir(tmp_path)
    assert found() is None


def test_rows_that_the_first_stage_drew_are_said(
    first: Path, tiny_config: Config, tmp_path: Path, messages: Messages
) -> None:
    """Whatever positions contiguous rows have; those of other contents depend on these."""

    def told(config: Config, tokens_sha256: str, *, contents: str = "contiguous") -> int:
        messages.clear()
        stage = first_stage.open_first_stage(config, tmp_path / "second")
        stage = replace(stage, config=replace(stage.config, pose=replace(stage.config.pose, contents=contents)))
        stage.warn_of_same_rows(config, tokens_sha256=tokens_sha256)
        return len(list(messages))

    config = second_stage(tiny_config, first)
    train(config, tmp_path / "second")
    said = [line for line in messages if "start_from" in line]
    assert said == [
        "training.start_from = first: this run draws the rows of its first stage again, in the same order; with another "
        "training.seed than 0 it draws others"
    ]
    drawn, again = (
        open_training_text(of, SINGLE_PROCESS).draw(3)
        for of in (replace(tiny_config, pose=replace(tiny_config.pose, num_chunks=1)), config)
    )
    assert torch.equal(drawn.tokens_BT, again.tokens_BT) and not torch.equal(drawn.positions_BT, again.positions_BT)
    sha256 = read_json(first / "manifest.json")["tokens_sha256"]
    assert told(config, sha256) == 1
    assert told(config, "another text") == 0
    assert told(second_stage(tiny_config, first, seed=7), sha256) == 0
    assert told(second_stage(tiny_config, first, batch_rows=4), sha256) == 0
    for contents in ("matched", "uniform"):  # which depend on the chunks
        otherwise = replace(config, pose=replace(config.pose, contents=contents))
        assert told(otherwise, sha256) == told(otherwise, sha256, contents=contents) == 0
    # The hash of a synthetic task does not have these.
    for sequences in ({"train_lengths": [5, 9]}, {"max_sparsity": 2}):
        assert told(replace(config, synthetic=replace(config.synthetic, **sequences)), sha256) == 0


def test_weights_of_another_shape_and_missing_ones_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(3, 2)
    stage = FirstStage(Path("step5"), {"run": "first"}, {"tokenizer_sha256": "abc"}, Config())
    found = {"weight": torch.ones(2, 3), "bias": torch.ones(2)}
    monkeypatch.setattr(first_stage, "read_weights", lambda checkpoint: dict(found))
    assert stage.weights(model, tokenizer_sha256="abc").keys() == found.keys()
    with pytest.raises(UserError, match="start_from = first: it was trained with another tokenizer"):
        stage.weights(model, tokenizer_sha256="abd")
    found["weight"] = torch.ones(3, 2)  # as many numbers
    with pytest.raises(
        UserError, match=r"its weight weight has the shape \[3, 2\], and that of the new run has \[2, 3\]"
    ):
        stage.weights(model, tokenizer_sha256="abc")
    del found["weight"]
    with pytest.raises(UserError, match=r"its weight weight is missing, and that of the new run has \[2, 3\]"):
        stage.weights(model, tokenizer_sha256="abc")


def test_a_first_stage_that_has_not_ended_is_said(
    first: Path, tiny_config: Config, tmp_path: Path, messages: Messages
) -> None:
    """It may have been interrupted; whoever means it so goes on."""
    copy = Path(shutil.copytree(first, tmp_path / "first", symlinks=True))
    config = second_stage(tiny_config, copy)
    reason = "its training is not finished, or its last checkpoint is gone"
    said = f"training.start_from = {copy}: {reason}; this run starts from step"
    first_stage.open_first_stage(config, tmp_path / "second")
    assert not [line for line in messages if line.startswith(said)]
    for status, checkpoint in (("running", "step12"), ("complete", "step8")):
        write_json(copy / "manifest.json", {**read_json(first / "manifest.json"), "status": status})
        if checkpoint == "step8":
            shutil.rmtree(copy / "checkpoints" / "step12")
        messages.clear()
        assert first_stage.open_first_stage(config, tmp_path / "second").checkpoint.name == checkpoint
        assert list(messages) == [said + checkpoint.removeprefix("step")]


def test_a_damaged_first_stage_is_refused(first: Path, tiny_config: Config, tmp_path: Path) -> None:
    """By the hashes of all files of its checkpoint; one number of a weight is enough."""
    copy = Path(shutil.copytree(first, tmp_path / "first", symlinks=True))
    file = copy / "checkpoints" / "step12" / "model.pt"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"step12/model\.pt"):
        train(second_stage(tiny_config, copy), tmp_path / "second")
    assert not (tmp_path / "second").exists()


def test_a_run_that_starts_from_itself_is_refused_before_its_weights_are_deleted(
    first: Path, tiny_config: Config, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(first, tmp_path / "first"))
    (tmp_path / "link").symlink_to(copy)
    before = weights(copy)["model.pt"]
    for name in ("first", "link"):
        said = rf"start_from = {tmp_path / name}: this is the folder of the new run; choose another one for that with --run DIR"
        with pytest.raises(UserError, match=said):
            train(second_stage(tiny_config, tmp_path / name), copy, overwrite=True)
    assert all(torch.equal(before[name], value) for name, value in weights(copy)["model.pt"].items())


def test_mistakes_are_told_before_a_folder_is_made(first: Path, tiny_config: Config, tmp_path: Path) -> None:
    def told(config: Config, message: str) -> None:
        with pytest.raises(UserError, match=message):
            train(config, tmp_path / "second")
        assert not (tmp_path / "second").exists()

    told(
        second_stage(tiny_config, tmp_path / "none"),
        "start_from = .*none: no such run; name the folder of a trained run",
    )
    config = second_stage(tiny_config, first)
    told(
        replace(config, model=replace(config.model, n_heads=4)),
        "first: it was trained with model.n_heads = 2, not 4; its weights do not fit",
    )
    told(
        replace(config, data=replace(config.data, tokenizer="bpe:300")),
        "start_from = first: it was trained with another tokenizer",
    )
    other = replace(config, model=replace(config.model, init_std=0.5))  # says only how weights are drawn
    train(other, tmp_path / "third")
    untrained = tmp_path / "untrained"
    shutil.copytree(first, untrained, ignore=shutil.ignore_patterns("checkpoints"))
    told(
        second_stage(tiny_config, untrained),
        f"untrained: this run has no checkpoint; train it first with `olmo-sparsity train --run {untrained}`$",
    )
    longer = tmp_path / "longer"
    shutil.copytree(first, longer, symlinks=True)
    manifest = read_json(longer / "manifest.json")
    manifest["config"]["context"]["train_len"] = 12
    write_json(longer / "manifest.json", manifest)
    told(
        second_stage(tiny_config, longer),
        "longer: it was trained on rows of 12 tokens, longer than 8 here, .* set context.train_len to 12 or more",
    )
