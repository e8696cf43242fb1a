"""Checkpoints of runs: save, verify, load. They hold tensors only; nothing is unpickled.

A checkpoint is a folder in OLMo's layout (``config.yaml``, ``model.pt``, ``optim.pt``), which ``OLMo.from_checkpoint`` loads. In
place of OLMo's pickled trainer state it holds ``train.json``, with the SHA-256 of every file. The folder is renamed to its
name when it is complete; ``latest`` links to the newest.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Optional, cast

import torch
import yaml

from olmo_sparsity import files
from olmo_sparsity.errors import UserError

FILES = CONFIG, MODEL, OPTIMIZER = "config.yaml", "model.pt", "optim.pt"
Tensors = dict[str, dict[str, Any]]  # by file, on the CPU: the weights; the optimizer's by names of parameters


@dataclass(frozen=True)
class CheckpointInfo:
    """The content of ``train.json``."""

    step: int  # optimizer steps done
    tokens: int  # trained on
    seconds: float  # of training, over all interruptions
    run_id: str  # of the run that saved it
    sha256: dict[str, str] = dataclasses.field(default_factory=dict)  # of each file; filled in when it is saved
    newest_loss_nats: Optional[float] = None  # on validation text, by the newest evaluation; None: not evaluated yet

    @property
    def record(self) -> dict[str, Any]:
        """The checkpoint as manifests hold it."""
        return {"step": self.step, "model_sha256": self.sha256[MODEL]}


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    paths = [path for path in folder.glob("step*") if path.name[4:].isdecimal() and (path / "train.json").is_file()]
    return sorted(paths, key=lambda path: int(path.name[4:]))


def trained_checkpoint(run: Path, *, command: str = "olmo-sparsity train") -> Path:
    """The newest checkpoint of a run; ``command`` trains a run of this kind."""
    if saved := list_checkpoints(run / "checkpoints"):
        return saved[-1]
    raise UserError(f"{run}: this run has no checkpoint; train it first with `{command} --run {run}`")


def save_checkpoint(folder: Path, info: CheckpointInfo, *, config: Any, tensors: Tensors, keep: int) -> None:
    """Write ``folder/step{info.step}``, let ``latest`` link to it, and delete all but the newest ``keep``."""
    folder.mkdir(parents=True, exist_ok=True)
    target, latest = folder / f"step{info.step}", folder / "latest"
    partial, link = files.partial_path(target), files.partial_path(latest)
    partial.mkdir()
    plain = {name: of.value if isinstance(of, Enum) else of for name, of in dataclasses.asdict(config).items()}
    try:
        files.write_text(partial / CONFIG, yaml.safe_dump({"model": plain}, sort_keys=False))
        for name in (MODEL, OPTIMIZER):
            _save_tensors(tensors[name], partial / name)
        hashes = {name: files.sha256_file(partial / name) for name in FILES}
        files.write_json(partial / "train.json", dataclasses.asdict(dataclasses.replace(info, sha256=hashes)))
        if target.exists():
            os.replace(target, files.partial_path(target))
        os.replace(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # after an error such as a full disk, which it would keep full
    link.symlink_to(target.name)
    os.replace(link, latest)
    delete_old_checkpoints(folder, keep=keep)


def _save_tensors(tensors: dict[str, Any], path: Path) -> None:
    with open(path, "wb") as file:
        try:
            torch.save(tensors, file)
        except RuntimeError as error:  # torch's message does not mention a full disk
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None
        file.flush()
        os.fsync(file.fileno())  # older checkpoints are deleted next, and a crash of the machine must not leave none


def delete_old_checkpoints(folder: Path, *, keep: int) -> None:
    """Delete all checkpoints but the newest ``keep``. Each loses its name first, so that a kill leaves no part of one."""
    for old in list_checkpoints(folder)[:-keep]:
        os.replace(old, files.partial_path(old))
    files.remove_leftovers(folder, seconds=0)


def check_checkpoint_of_run(checkpoint: Path, manifest: dict[str, Any]) -> CheckpointInfo:
    """Read ``train.json``, and check by the manifest that this run saved it: another's checkpoint matches its own hashes."""
    info, last, own = read_checkpoint_info(checkpoint), manifest.get("checkpoint") or {}, manifest.get("run_id")
    if info.run_id != own:
        raise UserError(f"{checkpoint}: run {info.run_id} saved this checkpoint, not this run, {own}; restore it")
    if checkpoint.name != f"step{info.step}" or (last.get("step") == info.step and last != info.record):
        raise UserError(f"{checkpoint}: not the weights that this run saved here, at step {info.step}; restore them")
    return info


def read_checkpoint_info(checkpoint: Path) -> CheckpointInfo:
    """Read ``train.json``. The other files are not verified."""
    path = checkpoint / "train.json"
    info = files.check_type(files.read_json(path), CheckpointInfo, where=path)
    files.need(info.sha256, *FILES, where=path)
    return info


def verify_checkpoint(checkpoint: Path, names: Sequence[str] = FILES) -> None:
    """Compare files of a checkpoint with their hashes."""
    info = read_checkpoint_info(checkpoint)
    for path in (checkpoint / name for name in names):
        if not path.is_file() or files.sha256_file(path) != info.sha256[path.name]:
            remedy = f"restore it, or delete {checkpoint} and train again"
            raise UserError(f"{path}: missing, cut short or changed since it was written; {remedy}")


def read_tensors(path: Path) -> dict[str, Any]:
    """The tensors of a file of a checkpoint that was verified before."""
    try:
        return cast(dict[str, Any], torch.load(path, map_location="cpu", weights_only=True))
    except pickle.UnpicklingError:
        raise UserError(f"{path}: not loaded, because this file holds more than tensors") from None


def read_model(checkpoint: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """OLMo's configuration, as a dictionary, and the weights of a checkpoint, which are verified."""
    verify_checkpoint(checkpoint, (CONFIG, MODEL))
    config = yaml.safe_load((checkpoint / CONFIG).read_text(encoding="utf-8"))["model"]
    return config, read_tensors(checkpoint / MODEL)
