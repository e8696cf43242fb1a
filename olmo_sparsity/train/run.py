"""The folder of a training run, and the run in training: how it begins, resumes, is saved and ends."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Optional

import torch

from olmo_sparsity import files
from olmo_sparsity.config import Config, to_dict, to_yaml
from olmo_sparsity.errors import UserError
from olmo_sparsity.model import checkpoint as checkpoints
from olmo_sparsity.model.devices import device_name
from olmo_sparsity.model.olmo import build_model, olmo_model_config
from olmo_sparsity.train.batches import Batch, TrainingData
from olmo_sparsity.train.parallel import (
    gather_state,
    load_state,
    num_processes,
    on_leader,
    share_of_rows,
)
from olmo_sparsity.train.step import TrainState, build_train_state

logger = logging.getLogger(__name__)

KEEP_CHECKPOINTS = 2  # older ones are deleted
OF_A_START = ("device", "processes", "parallel", "threads", "precision", "compiled")  # on which the last bits depend


@dataclass
class Run:
    """A run in training."""

    folder: Path
    config: Config
    data: TrainingData
    held_out: tuple[Batch, Optional[Batch]]  # this process's share
    state: TrainState
    manifest: dict[str, Any]
    step: int = 0  # optimizer steps done
    seconds_before: float = 0.0  # training time of earlier starts
    newest_loss_nats: Optional[float] = None  # of the newest evaluation
    started_at: float = field(default_factory=time.monotonic)

    @property
    def batch_tokens(self) -> int:
        """Tokens of a batch, over all processes."""
        return self.config.training.batch_rows * self.data.row_len

    @property
    def tokens(self) -> int:
        """Tokens trained on, as often as they were drawn."""
        return self.step * self.batch_tokens

    @property
    def seconds(self) -> float:
        """Training time, over all interruptions."""
        return round(self.seconds_before + time.monotonic() - self.started_at, 3)

    @property
    def ended_by(self) -> Optional[str]:
        """The key that ends training here; None: it goes on."""
        stop_loss, loss_nats = self.config.training.stop_loss, self.newest_loss_nats
        if self.step == self.config.training.steps:
            return "steps"
        return "stop_loss" if stop_loss and loss_nats is not None and loss_nats <= stop_loss else None


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a run, which only one training can hold; the leader of its processes locks. A context manager."""
    path = folder.resolve()
    busy = f"{folder}: another process is training this run; wait for it, or choose another folder with --run DIR"
    lock = files.exclusive_lock(path.with_name(f".{path.name}.lock"), busy)
    with ExitStack() as stack:
        on_leader(lambda: stack.enter_context(lock))
        yield


def open_run(
    config: Config, folder: Path, *, data: TrainingData, stored: Optional[dict[str, Any]], device: torch.device
) -> Run:
    """Build the model, create or open the folder, and load the newest intact checkpoint.

    ``stored`` is the manifest of the run that is resumed; None: what is there is deleted.
    """
    training = config.training
    if stored is not None:
        files.need(stored, "starts", where=folder / "manifest.json")
        if stored["tokens_sha256"] != data.manifest_entries["tokens_sha256"]:
            raise UserError(
                f"{folder}: its text has changed since training began; choose another folder with --run DIR"
            )
    held_out = data.draw_held_out(share_of_rows(training.eval_rows, key="training.eval_rows"))
    resumed = None if stored is None else on_leader(lambda: _newest_intact(folder, stored))
    model = build_model(olmo_model_config(config, vocab_size=data.vocab_size, eos_id=data.eos_id), training.seed)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())  # before it is sharded
    state = build_train_state(model, training, device, few_targets=data.few_targets)
    start = {
        "step": 0 if resumed is None else resumed[1].step,
        "device": device_name(device),
        "processes": num_processes(),
        "parallel": training.parallel if num_processes() > 1 else None,
        "threads": torch.get_num_threads(),
        "precision": state.precision,
        "compiled": state.is_compiled,
        "environment": files.environment(),
    }
    manifest = {
        "kind": "run",
        "status": "running",
        "run_id": uuid.uuid4().hex[:12] if stored is None else stored["run_id"],
        "config": to_dict(config),
        **data.manifest_entries,
        "num_parameters": num_parameters,
        "starts": [*([] if stored is None else stored["starts"]), start],
    }
    texts = {"config.yaml": to_yaml(config), "tokenizer.json": data.tokenizer_text}
    manifest = on_leader(lambda: _begin(folder, manifest, texts, is_new=stored is None))
    run = Run(folder, config, data, held_out, state, manifest)
    if resumed is not None:
        path, info = resumed
        load_state(model, state.optimizer, path)
        run.step, run.seconds_before, run.newest_loss_nats = info.step, info.seconds, info.newest_loss_nats
        logger.info(f"{folder}: resuming at step {info.step}")
    return run


def _newest_intact(folder: Path, stored: dict[str, Any]) -> Optional[tuple[Path, checkpoints.CheckpointInfo]]:
    """The newest intact checkpoint of a run, and what it tells; None: there is none yet."""
    saved = checkpoints.list_checkpoints(folder / "checkpoints")
    for path in reversed(saved):
        try:
            checkpoints.verify_checkpoint(path)
        except UserError:
            logger.warning(f"{path}: damaged, so training resumes from an earlier checkpoint")
            continue
        return path, checkpoints.check_checkpoint_of_run(path, stored)
    if saved:
        raise UserError(f"{folder}: all of its checkpoints are damaged; restore one, or train again with --overwrite")
    return None


def _begin(folder: Path, manifest: dict[str, Any], texts: dict[str, str], *, is_new: bool) -> dict[str, Any]:
    """Create the folder of a run, or open it again, and return its manifest, that of the leader for all processes."""
    if is_new and files.manifest_of_kind(folder, "run") is not None:
        logger.info(f"{folder}: deleting the earlier run (--overwrite)")
        files.clear_folder(folder)
    for last, start in pairwise(manifest["starts"][-2:]):
        if changed := [f"{key} {start[key]}, not {last[key]}" for key in OF_A_START if start[key] != last[key]]:
            logger.warning(f"{folder}: resumed with {', '.join(changed)}: the last bits of its weights will differ")
    files.make_folder(folder)
    files.write_manifest(folder, manifest)  # first, because the manifest marks the folder as ours
    for name, text in texts.items():
        if not (folder / name).is_file():
            files.write_text(folder / name, text)
    files.remove_leftovers(folder, folder / "checkpoints", seconds=0)
    return manifest


def save(run: Run) -> None:
    """Write a checkpoint. All processes must call it; the leader writes."""
    tensors, loss_nats = gather_state(run.state.model, run.state.optimizer), run.newest_loss_nats
    info = checkpoints.CheckpointInfo(
        run.step, run.tokens, run.seconds, run.manifest["run_id"], newest_loss_nats=loss_nats
    )
    given = {"config": run.state.model.config, "tensors": tensors, "keep": KEEP_CHECKPOINTS}
    on_leader(lambda: checkpoints.save_checkpoint(run.folder / "checkpoints", info, **given))


def finish(run: Run) -> None:
    """Mark a run as complete."""
    folder = run.folder / "checkpoints"
    checkpoints.delete_old_checkpoints(folder, keep=KEEP_CHECKPOINTS)  # a kill may have left more
    result = {
        "status": "complete",
        "steps": run.step,
        "ended_by": run.ended_by,
        "tokens": run.tokens,
        "validation_loss_nats": run.newest_loss_nats,
        "seconds": run.seconds,
        "checkpoint": checkpoints.check_checkpoint_of_run(folder / f"step{run.step}", run.manifest).record,
    }
    files.write_manifest(run.folder, {**run.manifest, **result})
