"""A run whose files were exchanged or damaged is not measured, and no run is trained by a slip of the pen."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from typer.testing import CliRunner

from olmo_sparsity.cli.app import app
from olmo_sparsity.config import Config
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import read_json, write_json
from olmo_sparsity.measure.opening import open_model
from olmo_sparsity.text.prepare import prepare
from olmo_sparsity.text.tokenizer import vocab_size_of, word_start_table
from olmo_sparsity.train.batches import open_training_text
from olmo_sparsity.train.loop import train


@pytest.fixture
def run(tiny_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_run, tmp_path / "runs" / "tiny", symlinks=True))


def permute_tokenizer(path: Path) -> None:
    """Exchange two tokens of a tokenizer; its size and its vocabulary stay the same."""
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    first, second = list(vocabulary)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    path.write_text(json.dumps(content))


def test_another_tokenizer_of_the_same_size(run: Path, tiny_config: Config) -> None:
    open_model(tiny_config, run)
    permute_tokenizer(run / "tokenizer.json")
    with pytest.raises(UserError, match=r"tokenizer\.json: not the tokenizer that the manifest"):
        open_model(tiny_config, run)
    manifest = read_json(run / "manifest.json")
    del manifest["tokenizer_sha256"]
    write_json(run / "manifest.json", manifest)
    with pytest.raises(UserError, match=r"manifest\.json: key tokenizer_sha256 is missing"):
        open_model(tiny_config, run)


def swap_checkpoint(run: Path, other: Path) -> None:
    shutil.rmtree(run / "checkpoints" / "step12")
    shutil.copytree(other / "checkpoints" / "step12", run / "checkpoints" / "step12")


def test_a_whole_checkpoint_of_another_run(run: Path, bos_run: Path, tiny_config: Config) -> None:
    """The shapes of its weights fit."""
    swap_checkpoint(run, bos_run)
    of_other, own = (read_json(folder / "manifest.json")["run_id"] for folder in (bos_run, run))
    said = f": run {of_other} saved this checkpoint, not this run, {own}; restore it$"
    with pytest.raises(UserError, match=said):
        open_model(tiny_config, run)


def test_a_whole_checkpoint_of_another_run_under_the_name_of_this_one(
    run: Path, bos_run: Path, tiny_config: Config
) -> None:
    swap_checkpoint(run, bos_run)
    path = run / "checkpoints" / "step12" / "train.json"
    write_json(path, {**read_json(path), "run_id": read_json(run / "manifest.json")["run_id"]})
    with pytest.raises(UserError, match=r"other weights than those that this run ended with; restore the checkpoint$"):
        open_model(tiny_config, run)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"step": "12"}, "key step: expected int, got str"),
        ({"step": 8}, "a checkpoint of step 8 under another name; restore it$"),
        ({"step": 16}, "a checkpoint of step 16 under another name"),
        ({"seconds": None}, "key seconds: expected float, got null"),
        ({"tokens": 1.5}, "key tokens: expected int, got float"),
        ({"sha256": {}}, "key sha256: the hash of config.yaml is missing; the file is damaged$"),
        ({"sha256": {"model.pt": 3}}, "key sha256.*: expected str, got int"),
        ({"sha256": []}, "key sha256: expected object, got array"),
        ({"run_id": 7}, "key run_id: expected str, got int"),
    ],
)
def test_train_json_of_something_else(run: Path, tiny_config: Config, changes: dict[str, Any], error: str) -> None:
    path = run / "checkpoints" / "step12" / "train.json"
    write_json(path, {**read_json(path), **changes})
    with pytest.raises(UserError, match=error):
        open_model(tiny_config, run)


def test_a_run_whose_manifest_lacks_a_key(run: Path, tiny_config: Config) -> None:
    manifest = read_json(run / "manifest.json")
    for key in ("config", "num_parameters"):
        write_json(run / "manifest.json", {name: value for name, value in manifest.items() if name != key})
        with pytest.raises(UserError, match=f"key {key} is missing"):
            open_model(tiny_config, run)


# --- the prepared text ------------------------------------------------------------------------------------------------


@pytest.fixture
def prepared(tiny_config: Config, tmp_path: Path) -> tuple[Config, Path]:
    config = dataclasses.replace(
        tiny_config, data=dataclasses.replace(tiny_config.data, cache_dir=str(tmp_path / "cache"))
    )
    return config, prepare(config.data)


def scramble(path: Path) -> None:
    """Put the tokens, or the entries of an index, into another order."""
    values = np.fromfile(path, dtype="<u2" if path.name.startswith("tokens") else "<i8")
    values[:2] = values[:2][::-1]
    values.tofile(path)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("train/tokens-00000.bin", scramble),
        ("validation/tokens-00000.bin", scramble),
        ("train/begins.bin", scramble),
        ("train/doc_ids.bin", scramble),
        ("tokenizer.json", permute_tokenizer),
    ],
)
def test_a_prepared_text_that_was_changed_is_not_trained_on(
    prepared: tuple[Config, Path], name: str, change: Callable[[Path], None]
) -> None:
    config, folder = prepared
    open_training_text(config)
    change(folder / name)
    with pytest.raises(UserError, match=f"{name}: other contents than were written there; delete .* prepare again"):
        open_training_text(config)
    (folder / name).unlink()
    with pytest.raises(UserError) as refused:
        open_training_text(config)
    assert str(refused.value) == f"{folder / name}: this file is gone; delete {folder} and prepare again"


def test_a_tokenizer_whose_ids_have_holes(tmp_path: Path) -> None:
    """The largest ID counts, not the number of entries: 16 bits hold no ID of 70,000."""
    content = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": {"<eos>": 0, "river": 70_000, "[UNK]": 2}, "unk_token": "[UNK]"},
    }  # fmt: skip
    tokenizer, text = tmp_path / "tokenizer.json", tmp_path / "text.jsonl"
    tokenizer.write_text(json.dumps(content))
    words = random.Random(0)
    text.write_text("".join(json.dumps({"text": f"river {words.random()} river"}) + "\n" for _ in range(60)))
    config = Config()
    data = dataclasses.replace(
        config.data, source=str(text), tokenizer=str(tokenizer), eos_token="<eos>", cache_dir=str(tmp_path / "cache")
    )
    folder = prepare(data)
    manifest = read_json(folder / "manifest.json")
    assert (manifest["vocab_size"], manifest["dtype"]) == (70_001, "<u4")
    tokens = np.fromfile(folder / "train" / "tokens-00000.bin", dtype="<u4")
    assert set(tokens.tolist()) == {0, 2, 70_000}
    read = Tokenizer.from_file(str(tokenizer))
    assert vocab_size_of(read) == len(word_start_table(read)) == 70_001
    with pytest.raises(UserError, match="token_dtype = uint16"):
        prepare(dataclasses.replace(data, token_dtype="uint16"))
    for vocabulary, largest in (({"<eos>": 0, "river": 2**24}, "16,777,216"), ({}, "-1")):
        content["model"]["vocab"] = vocabulary  # type: ignore[index]
        tokenizer.write_text(json.dumps(content))
        with pytest.raises(
            UserError, match=f"data.tokenizer: its largest token ID is {largest}; it must lie below 16,77"
        ):
            vocab_size_of(Tokenizer.from_file(str(tokenizer)))


# --- training by a slip of the pen ------------------------------------------------------------------------------------


def said(*arguments: str) -> str:
    """Return the mistake of a command, which must not have trained anything."""
    result = CliRunner().invoke(app, list(arguments))
    assert isinstance(result.exception, UserError), (result.output, result.exception)
    return str(result.exception)


def no_training(*arguments: object, **options: object) -> None:
    raise AssertionError("this must be refused before the training")


MEASURING = (("influence", "--k", "2"), ("figures",))


@pytest.mark.parametrize("command", MEASURING, ids=lambda command: command[0])
def test_a_run_that_the_configuration_does_not_name_is_not_trained(
    command: tuple[str, ...], tiny_yaml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("olmo_sparsity.train.loop.train", no_training)
    message = said(*command, "--config", str(tiny_yaml), "--run", "runs/tinny")
    assert "runs/tinny: this run is not trained; train it with `olmo-sparsity train --run runs/tinny`" in message
    assert not (tmp_path / "runs").exists()
    for arguments in (("--run", "runs/tiny"), (), ("--run", "runs/tinny", "--train")):
        result = CliRunner().invoke(app, [*command, "--config", str(tiny_yaml), *arguments])
        assert isinstance(result.exception, AssertionError), arguments


@pytest.mark.parametrize("asked", [(), ("--train",)])
def test_a_trained_run_without_its_checkpoints_is_not_trained_again(
    asked: tuple[str, ...], run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(run / "checkpoints")
    monkeypatch.setattr("olmo_sparsity.train.loop.train", no_training)
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    message = said("influence", "--run", str(run), "--k", "2", *asked)
    assert "this run was trained, and its last checkpoint is gone" in message
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("influence", "--data", "nowhere"), "nowhere: no such file, folder or glob"),
        (("influence", "--out", "foreign"), "foreign: this folder exists and is no influence folder"),
        (("influence", "--k", "64"), "influence.k = [16, 32, 64]: there are only M = 12"),
        (("influence", "influence.anchor=bos"), "full_len = 20 with the anchor"),
    ],
)
def test_what_can_be_refused_is_refused_before_the_training(
    arguments: tuple[str, ...], error: str, tiny_yaml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("olmo_sparsity.train.loop.train", no_training)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "letter.txt").write_text("mine")
    assert error in said(arguments[0], "--config", str(tiny_yaml), *arguments[1:])
    assert not (tmp_path / "runs").exists()


def test_resumed_training_refuses_a_checkpoint_of_another_run(run: Path, bos_run: Path, tiny_config: Config) -> None:
    manifest = read_json(run / "manifest.json")
    write_json(run / "manifest.json", {**manifest, "status": "running"})
    swap_checkpoint(run, bos_run)
    with pytest.raises(UserError, match="saved this checkpoint, not this run"):
        train(tiny_config, run)
