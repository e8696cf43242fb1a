from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from olmo.model import OLMo

from olmo_sparsity.errors import UserError
from olmo_sparsity.model.checkpoint import list_checkpoints, load_model
from olmo_sparsity.storage.files import read_json, sha256_file, write_json

CPU = torch.device("cpu")


@pytest.fixture
def saved(tiny_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_run / "checkpoints" / "step12", tmp_path / "step12"))


def test_olmo_loads_what_we_save(tiny_run: Path) -> None:
    latest = tiny_run / "checkpoints" / "latest"
    theirs, ours = OLMo.from_checkpoint(str(latest)), load_model(latest, CPU)
    tokens = torch.arange(1, 19)[None]
    with torch.no_grad():
        assert torch.equal(theirs(tokens).logits, ours(tokens, torch.arange(18)[None]))


def test_the_newest_two_are_kept_and_latest_points_to_the_last(tiny_run: Path) -> None:
    assert [path.name for path in list_checkpoints(tiny_run / "checkpoints")] == ["step8", "step12"]
    assert os.readlink(tiny_run / "checkpoints" / "latest") == "step12"
    assert not list((tiny_run / "checkpoints").glob("*.partial"))


@pytest.mark.parametrize("name", ["model.pt", "optim.pt", "config.yaml"])
def test_a_damaged_checkpoint_is_an_error(saved: Path, name: str) -> None:
    path = saved / name
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(UserError, match=f"{name}: missing, cut short or changed"):
        load_model(saved, CPU)
    path.unlink()
    with pytest.raises(UserError, match="missing"):
        load_model(saved, CPU)


@pytest.mark.parametrize("crafted", ["${oc.env:NUMBER}", r'"\x24{oc.env:NUMBER}"'])
def test_a_crafted_configuration_is_not_resolved(saved: Path, crafted: str) -> None:
    path = saved / "config.yaml"
    path.write_text(path.read_text().replace("n_heads: 2", f"n_heads: {crafted}"))
    info = read_json(saved / "train.json")
    info["sha256"]["config.yaml"] = sha256_file(path)
    write_json(saved / "train.json", info)
    with pytest.raises(UserError, match=r"config\.yaml: not loaded, because it contains"):
        load_model(saved, CPU)


class Exploit:
    def __init__(self, witness: Path):
        self.witness = witness

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.witness,))


def test_a_crafted_checkpoint_runs_no_code(saved: Path, tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    pickle.loads(pickle.dumps(Exploit(tmp_path / "control")))
    assert (tmp_path / "control").exists()
    torch.save({"weight": Exploit(witness)}, saved / "model.pt")
    info = read_json(saved / "train.json")
    info["sha256"]["model.pt"] = sha256_file(saved / "model.pt")  # an attacker can compute the hash, too
    write_json(saved / "train.json", info)
    with pytest.raises(UserError, match=r"model\.pt: .*tensors"):
        load_model(saved, CPU)
    assert not witness.exists()
