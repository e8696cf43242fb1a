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
from conftest import Messages
from olmo.model import OLMo

from olmo_sparsity.errors import UserError
from olmo_sparsity.model.checkpoint import (
    CheckpointInfo,
    CheckpointState,
    list_checkpoints,
    load_model,
    newest_intact_checkpoint,
    read_model_config,
    save_checkpoint,
)
from olmo_sparsity.storage.files import partial_path, read_json, sha256_file, write_json

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


def saving_the_newest(folder: Path, run: Path) -> Callable[[int], None]:
    """Return a function that saves the model of a run as a checkpoint of a step, of which the newest is kept."""
    model = load_model(run / "checkpoints" / "latest", CPU)
    state = CheckpointState(weights=model.state_dict(), optimizer={})

    def save(step: int) -> None:
        info = CheckpointInfo(step=step, tokens=0, seconds=0.0, run_id="0123")
        save_checkpoint(folder, info, config=model.config, state=state, keep=1)

    return save


def test_a_checkpoint_that_was_moved_and_linked_loses_its_link_only(tiny_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    save = saving_the_newest(folder, tiny_run)
    save(1)
    shutil.move(folder / "step1", tmp_path / "archive")
    (folder / "step1").symlink_to(tmp_path / "archive")
    partial_path(folder / "step0").symlink_to(tmp_path / "archive")  # what a process left that was killed here
    save(2)
    assert [path.name for path in list_checkpoints(folder)] == ["step2"]
    assert newest_intact_checkpoint(folder) == folder / "step2"
    assert (tmp_path / "archive" / "model.pt").is_file()
    assert sorted(path.name for path in folder.iterdir()) == ["latest", "step2"]


def test_a_full_disk_leaves_no_part_of_a_checkpoint(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where one is written, nor where an old one is deleted: that loses its name before its files."""
    folder = tmp_path / "checkpoints"
    save = saving_the_newest(folder, tiny_run)
    save(1)

    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(torch, "save", fails)
        with pytest.raises(OSError, match="No space left"):
            save(2)
    assert sorted(path.name for path in folder.iterdir()) == ["latest", "step1"]
    with monkeypatch.context() as killed:
        killed.setattr(Path, "rmdir", fails)
        with pytest.raises(OSError, match="No space left"):
            save(3)
    assert [path.name for path in list_checkpoints(folder)] == ["step3"]
    assert newest_intact_checkpoint(folder) == folder / "step3"
    assert sorted(path.name for path in folder.iterdir()) == ["latest", "step3"]


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


def test_what_somebody_put_beside_checkpoints_is_kept(tiny_run: Path, tmp_path: Path, messages: Messages) -> None:
    """In a folder of the name that a damaged checkpoint gets, in a checkpoint that is deleted, and in a partial folder."""
    folder = tmp_path / "checkpoints"
    save = saving_the_newest(folder, tiny_run)
    save(1)
    (folder / "step1" / "notes.txt").write_text("of step 1")
    for name in ("damaged-step2", "damaged-step2-2", "step7.partial", "rest-of-step1"):
        (folder / name).mkdir()
        (folder / name / "notes.txt").write_text(f"of {name}")
    (folder / "latest.partial").write_text("of the latest")
    leftover = partial_path(folder / "step2")  # of a process that was killed
    leftover.mkdir()
    (leftover / "model.pt").write_bytes(b"half")
    partial_path(leftover / "config.yaml").write_text("half")
    save(2)
    assert (folder / "rest-of-step1-2" / "notes.txt").read_text() == "of step 1"
    assert f"{folder}/rest-of-step1-2: what lay in step1 and is no part of that checkpoint" in messages[-1]
    (folder / "step2" / "model.pt").write_bytes(b"short")
    messages.clear()
    assert newest_intact_checkpoint(folder) is None
    said = "missing, cut short or changed since it was written; skipped, and renamed to damaged-step2-3"
    assert messages.lines == [f"{folder}/step2/model.pt: {said}"]
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == {
        *(f"damaged-step2-3/{name}" for name in ("config.yaml", "model.pt", "optim.pt", "train.json")),
        *(f"{name}/notes.txt" for name in ("damaged-step2", "damaged-step2-2", "step7.partial", "rest-of-step1")),
        *("latest.partial", "rest-of-step1-2/notes.txt"),
    }


def test_latest_leads_to_the_newest_checkpoint_that_is_intact(tiny_run: Path, tmp_path: Path) -> None:
    """Before training goes on: what was damaged gets another name, and a link to it would lead nowhere."""
    folder = Path(shutil.copytree(tiny_run / "checkpoints", tmp_path / "checkpoints", symlinks=True))
    (folder / "latest").unlink()
    for newest in ("step12", "step8"):
        assert newest_intact_checkpoint(folder) == folder / newest
        assert os.readlink(folder / "latest") == newest
        (folder / newest / "optim.pt").write_bytes(b"short")
    assert newest_intact_checkpoint(folder) is None


@pytest.mark.parametrize("name", ["model.pt", "optim.pt", "config.yaml"])
def test_a_damaged_checkpoint_is_an_error(saved: Path, name: str) -> None:
    path = saved / name
    path.write_bytes(path.read_bytes()[:-7])
    said = (
        f"{path}: missing, cut short or changed since it was written; `olmo-sparsity train` makes it again, from the checkpoint "
        "before it or from the start"
    )
    with pytest.raises(UserError, match=f"^{re.escape(said)}$"):
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


def test_aliases_which_double_what_they_stand_for_are_refused(tmp_path: Path) -> None:
    doubled = "".join(f"  a{i}: &a{i} {{x: *a{i - 1}, y: *a{i - 1}}}\n" for i in range(1, 26))
    (tmp_path / "config.yaml").write_text("model:\n  a0: &a0 {x: 1}\n" + doubled)
    said = f"{tmp_path / 'config.yaml'}: not loaded, because it contains an alias (*name), which may stand for any amount of YAML"
    with pytest.raises(UserError, match=f"^{re.escape(said)}$"):
        read_model_config(tmp_path)


@pytest.mark.parametrize(
    "content", ["", "model", "[1]", "model: 5", "model: [1]", "optimizer: {}", "model: {", b"model: \xff"]
)
def test_a_configuration_without_the_section_of_the_model_is_one_line(content: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    said = f"{path}: no section `model`, as OLMo writes it; the file is damaged, or of another kind"
    with pytest.raises(UserError, match=f"^{re.escape(said)}$"):
        read_model_config(tmp_path)


class Exploit:
    def __init__(self, witness: Path):
        self.witness = witness

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.witness,))


def test_a_crafted_checkpoint_runs_no_code(saved: Path, tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    pickle.loads(pickle.dumps(Exploit(tmp_path / "control")))
    assert (tmp_path / "control").exists()
    size = (saved / "model.pt").stat().st_size  # a smaller file is refused before it is read
    torch.save({"weight": Exploit(witness), "more": torch.zeros(size)}, saved / "model.pt")
    info = read_json(saved / "train.json")
    info["sha256"]["model.pt"] = sha256_file(saved / "model.pt")  # an attacker can compute the hash, too
    write_json(saved / "train.json", info)
    with pytest.raises(UserError, match=r"model\.pt: .*tensors"):
        load_model(saved, CPU)
    assert not witness.exists()
