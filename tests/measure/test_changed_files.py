"""A run whose files were exchanged or damaged is not measured."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from olmo_sparsity.config import Config
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import read_json, write_json
from olmo_sparsity.measure.opening import open_model


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
    with pytest.raises(UserError, match=r"not the weights that this run saved here, at step 12; restore them$"):
        open_model(tiny_config, run)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"step": "12"}, "key step: expected int, got str"),
        ({"step": 8}, "not the weights that this run saved here, at step 8; restore them$"),
        ({"seconds": None}, "key seconds: expected float, got null"),
        ({"tokens": 1.5}, "key tokens: expected int, got float"),
        ({"sha256": {}}, r"train\.json: key config\.yaml is missing; the file is damaged"),
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
    for key in ("config", "num_parameters", "tokenizer_sha256"):
        write_json(run / "manifest.json", {name: value for name, value in manifest.items() if name != key})
        with pytest.raises(UserError, match=f"key {key} is missing"):
            open_model(tiny_config, run)
