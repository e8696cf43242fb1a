from __future__ import annotations

import errno
import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from olmo.model import OLMo

from olmo_sparsity.errors import UserError
from olmo_sparsity.files import partial_path, read_json, sha256_file, write_json
from olmo_sparsity.model.checkpoint import CheckpointInfo, list_checkpoints, save_checkpoint
from olmo_sparsity.model.olmo import load_model

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


def saving_the_newest(folder: Path, run: Path) -> Callable[[int], None]:
    """Return a function that saves the model of a run as a checkpoint of a step, of which the newest is kept."""
    model = load_model(run / "checkpoints" / "latest", CPU)
    tensors = {"model.pt": model.state_dict(), "optim.pt": {}}

    def save(step: int) -> None:
        info = CheckpointInfo(step=step, tokens=0, seconds=0.0, run_id="0123")
        save_checkpoint(folder, info, config=model.config, tensors=tensors, keep=1)

    return save


def test_a_checkpoint_that_was_moved_and_linked_loses_its_link_only(tiny_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    save = saving_the_newest(folder, tiny_run)
    save(1)
    shutil.move(folder / "step1", tmp_path / "archive")
    (folder / "step1").symlink_to(tmp_path / "archive")
    partial_path(folder / "step0").symlink_to(tmp_path / "archive")  # what a process left that was killed here
    save(2)
    (folder / "step3").mkdir()  # of another program, and what a person put aside
    shutil.copytree(folder / "step2", folder / "step2-copy")
    assert [path.name for path in list_checkpoints(folder)] == ["step2"]
    assert (tmp_path / "archive" / "model.pt").is_file()
    assert sorted(path.name for path in folder.iterdir()) == ["latest", "step2", "step2-copy", "step3"]


def test_a_full_disk_leaves_no_part_of_a_checkpoint(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where one is written, nor where an old one is deleted: that loses its name before its files."""
    folder = tmp_path / "checkpoints"
    save = saving_the_newest(folder, tiny_run)
    save(1)

    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fails_as_torch(*_: object, **__: object) -> None:
        try:
            fails()
        finally:
            raise RuntimeError("unexpected pos 64 vs 0")  # all that torch says of it

    with monkeypatch.context() as full:
        full.setattr(torch, "save", fails_as_torch)
        with pytest.raises(OSError, match="No space left"):
            save(2)
    assert sorted(path.name for path in folder.iterdir()) == ["latest", "step1"]
    with monkeypatch.context() as killed:
        killed.setattr(os, "rmdir", fails)
        with pytest.raises(OSError, match="No space left"):
            save(3)
    assert [path.name for path in list_checkpoints(folder)] == ["step3"]
    save(4)
    assert sorted(path.name for path in folder.iterdir()) == ["latest", "step4"]


def test_a_checkpoint_is_on_the_disk_before_older_ones_are_deleted(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole, by what is flushed of each file: otherwise a crash of the machine could leave none."""
    save, flush = saving_the_newest(tmp_path / "checkpoints", tiny_run), os.fsync
    save(1)
    flushed: list[tuple[int, bool]] = []

    def watched(file: int) -> None:
        flushed.append((os.fstat(file).st_size, (tmp_path / "checkpoints" / "step1").is_dir()))
        flush(file)

    monkeypatch.setattr(os, "fsync", watched)
    save(2)
    sizes = {path.stat().st_size for path in (tmp_path / "checkpoints" / "step2").iterdir()}
    assert len(sizes) == 4 and {(size, True) for size in sizes} <= set(flushed)


@pytest.mark.parametrize("name", ["model.pt", "config.yaml"])
def test_a_damaged_checkpoint_is_an_error(saved: Path, name: str) -> None:
    path = saved / name
    path.write_bytes(path.read_bytes()[:-7])
    said = f"{path}: missing, cut short or changed since it was written; restore it, or delete {saved} and train again"
    with pytest.raises(UserError, match=f"^{re.escape(said)}"):
        load_model(saved, CPU)
    path.unlink()
    with pytest.raises(UserError, match="missing"):
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
