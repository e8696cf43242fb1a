"""Checkpoints: save, load, latest. Tensors only; nothing is unpickled.

A checkpoint is a folder in OLMo's layout (``config.yaml``, ``model.pt``, ``optim.pt``), which
``OLMo.from_checkpoint`` loads, with ``train.json`` in place of OLMo's pickled trainer state: the step, and the hash of
every file. The folder appears whole, by rename; ``latest`` is a link to the newest.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import pickle
import shutil
from enum import Enum
from pathlib import Path
from typing import Any, Optional

import torch
import yaml
from olmo import config as olmo_config

from olmo_sparsity.config.files import interpolates
from olmo_sparsity.errors import UserError
from olmo_sparsity.model.olmo import OLMoWithPositions
from olmo_sparsity.storage.files import read_json, sha256_file, write_json, write_text

logger = logging.getLogger(__name__)

FILES = ("config.yaml", "model.pt", "optim.pt")


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix("step"))


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    found = [p for p in folder.glob("step*") if p.is_dir() and p.name.removeprefix("step").isdigit()]
    return sorted(found, key=_step_of)


def save_checkpoint(
    folder: Path,
    step: int,
    config: olmo_config.ModelConfig,
    weights: dict[str, Any],
    optimizer_state: dict[str, Any],
    facts: dict[str, Any],
    keep: int,
    keep_every: Optional[int] = None,
) -> Path:
    """Writes ``folder/step{step}``, points ``latest`` at it and deletes all but the newest ``keep`` and those of every
    ``keep_every``-th step."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob("step*.partial"):  # by a process that was ended, or found the disk full
        shutil.rmtree(left)
    partial = folder / f"step{step}.partial"
    partial.mkdir()
    plain = {
        key: value.value if isinstance(value, Enum) else value for key, value in dataclasses.asdict(config).items()
    }
    write_text(partial / "config.yaml", yaml.safe_dump({"model": plain}, sort_keys=False))
    _save_tensors(weights, partial / "model.pt")
    _save_tensors(optimizer_state, partial / "optim.pt")
    write_json(
        partial / "train.json",
        {"step": step, **facts, "sha256": {name: sha256_file(partial / name) for name in FILES}},
    )
    target = folder / f"step{step}"
    if target.exists():
        shutil.rmtree(target)
    os.replace(partial, target)
    _point_latest(folder, target)
    for old in list_checkpoints(folder)[:-keep]:
        if keep_every is None or _step_of(old) % keep_every:
            shutil.rmtree(old)
    return target


def _save_tensors(state: dict[str, Any], path: Path) -> None:
    with open(path, "wb") as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):  # a full disk, which torch's own error does not tell
                raise error.__context__ from None
            raise


def _point_latest(folder: Path, target: Path) -> None:
    link = folder / "latest.partial"
    link.unlink(missing_ok=True)
    link.symlink_to(target.name)
    os.replace(link, folder / "latest")


def latest_checkpoint(folder: Path) -> Optional[Path]:
    """The newest checkpoint of a run, or None."""
    found = list_checkpoints(folder)
    return found[-1] if found else None


def verify_checkpoint(checkpoint: Path) -> dict[str, Any]:
    """``train.json`` of a checkpoint whose files are what was written.

    Raises:
        UserError: a file is missing, cut short or changed.
    """
    facts = read_json(checkpoint / "train.json")
    hashes = facts.get("sha256", {})
    for name in FILES:
        path = checkpoint / name
        if not path.is_file() or sha256_file(path) != hashes.get(name):
            raise UserError(
                f"{path}: missing, cut short or changed since it was written; `olmo-sparsity train` makes it again, from the "
                "checkpoint before it or from the start"
            )
    return facts


def is_intact(checkpoint: Path) -> bool:
    """Are the files of a checkpoint what was written."""
    try:
        verify_checkpoint(checkpoint)
    except UserError:
        return False
    return True


def newest_intact_checkpoint(folder: Path) -> Optional[Path]:
    """The newest checkpoint whose files are what was written, to go on from; None where there is none.

    Those that are newer and damaged are passed over with a remark, and renamed (``damaged-step500``), so that nothing
    takes them for checkpoints again.
    """
    for checkpoint in reversed(list_checkpoints(folder)):
        try:
            verify_checkpoint(checkpoint)
        except UserError as error:
            aside = checkpoint.with_name(f"damaged-{checkpoint.name}")
            if aside.exists():
                shutil.rmtree(aside)
            os.replace(checkpoint, aside)
            logger.warning(f"{str(error).partition(';')[0]}; passed over, and renamed {aside.name}")
            continue
        _point_latest(folder, checkpoint)
        return checkpoint
    return None


def _load_tensors(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise UserError(f"{path}: this file holds more than tensors, so it is not loaded") from None


def load_model(checkpoint: Path, device: torch.device, max_position: Optional[int] = None) -> OLMoWithPositions:
    """The model of a checkpoint, in evaluation mode, its weights fixed.

    Its position IDs lie below ``max_position`` (None: those of training): rotary embeddings have no weights, so that any
    number of positions fits the same checkpoint.

    Raises:
        UserError: the checkpoint does not verify.
    """
    verify_checkpoint(checkpoint)
    text = (checkpoint / "config.yaml").read_text(encoding="utf-8")
    if interpolates(text):
        raise UserError(f"{checkpoint / 'config.yaml'}: it holds ${{...}}, so it is not loaded")
    raw = yaml.safe_load(text)["model"]
    if max_position is not None:
        raw["max_sequence_length"] = max_position
    config = olmo_config.ModelConfig.new(**raw)
    model = OLMoWithPositions(config, init_params=False)
    model.load_state_dict(_load_tensors(checkpoint / "model.pt"))
    return model.to(device).eval().requires_grad_(False)


def read_state(checkpoint: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(weights, optimizer state) of a checkpoint that was verified, on the CPU.

    Raises:
        UserError: a file holds more than tensors.
    """
    return _load_tensors(checkpoint / "model.pt"), _load_tensors(checkpoint / "optim.pt")
