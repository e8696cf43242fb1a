"""The folder of a training run, and the run in training: how it begins, resumes, is saved and ends."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import torch

from olmo_sparsity.config import Config, to_dict, to_yaml
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import (
    clear_folder,
    environment,
    exclusive_lock,
    make_folder,
    manifest_of_kind,
    remove_leftovers,
    write_json,
    write_text,
)
from olmo_sparsity.model.checkpoint import (
    CheckpointInfo,
    check_checkpoint_of_run,
    delete_old_checkpoints,
    list_checkpoints,
    read_checkpoint_info,
    read_state,
    save_checkpoint,
    verify_checkpoint,
)
from olmo_sparsity.model.devices import device_name
from olmo_sparsity.model.olmo import build_model, olmo_model_config
from olmo_sparsity.train.batches import Batch, TrainingData
from olmo_sparsity.train.parallel import (
    all_reduce_sum,
    gather_state,
    load_state,
    num_processes,
    on_leader,
    share_of_rows,
)
from olmo_sparsity.train.resources import check_memory, measured_peak, training_flops_per_token
from olmo_sparsity.train.step import TrainState, build_train_state, resolve_compile, resolve_precision

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

    def __post_init__(self) -> None:
        self._started_at = time.monotonic()

    @property
    def batch_tokens(self) -> int:
        """Tokens of a batch, over all processes."""
        return self.config.training.batch_rows * self.data.row_len

    @property
    def seconds(self) -> float:
        """Training time, over all interruptions."""
        return round(self.seconds_before + time.monotonic() - self._started_at, 3)

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
    lock = exclusive_lock(path.with_name(f".{path.name}.lock"), busy)
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
    if stored is not None and stored["tokens_sha256"] != data.manifest_entries["tokens_sha256"]:
        raise UserError(f"{folder}: its text has changed since training began; choose another folder with --run DIR")
    check_memory(config, data, device)
    held_out = data.draw_held_out(share_of_rows(training.eval_rows, key="training.eval_rows"))
    checkpoint = None if stored is None else on_leader(lambda: _newest_intact(folder, stored))
    model = build_model(olmo_model_config(config, vocab_size=data.vocab_size, eos_id=data.eos_id), training.seed)
    manifest: dict[str, Any] = {
        "kind": "run",
        "status": "running",
        "run_id": uuid.uuid4().hex[:12] if stored is None else stored["run_id"],
        "config": to_dict(config),
        **data.manifest_entries,
        "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "training_flops_per_token": training_flops_per_token(model, data, held_out[0]),
    }
    precision, compiled = resolve_precision(training, device), resolve_compile(training, device)
    state = build_train_state(
        model, training, device, precision=precision, compiled=compiled, few_targets=data.few_targets
    )
    peak = measured_peak(device, torch.bfloat16 if precision == "bf16" else torch.float32)
    start = {
        "step": 0 if checkpoint is None else checkpoint[1].step,
        "device": device_name(device),
        "processes": num_processes(),
        "parallel": training.parallel if num_processes() > 1 else None,
        "threads": torch.get_num_threads(),
        "precision": precision,
        "compiled": compiled,
        "peak_flops_per_second": float(all_reduce_sum(torch.tensor(peak, dtype=torch.float64))),
        "environment": environment(),
    }
    before = [] if stored is None else stored.get("starts", [])
    manifest = on_leader(lambda: _begin(folder, config, {**manifest, "starts": [*before, start]}, data, stored))
    run = Run(folder, config, data, held_out, state, manifest)
    if checkpoint is not None:
        path, info = checkpoint
        load_state(model, state.optimizer, lambda: read_state(path))
        run.step, run.seconds_before, run.newest_loss_nats = info.step, info.seconds, info.newest_loss_nats
        logger.info(f"{folder}: resuming at step {info.step}")
    return run


def _newest_intact(folder: Path, stored: dict[str, Any]) -> Optional[tuple[Path, CheckpointInfo]]:
    """Return the newest intact checkpoint of a run, and what it tells; None: there is none yet."""
    checkpoints = list_checkpoints(folder / "checkpoints")
    for checkpoint in reversed(checkpoints):
        try:
            verify_checkpoint(checkpoint)
        except UserError:
            logger.warning(f"{checkpoint}: damaged, so training resumes from an earlier checkpoint")
            continue
        return checkpoint, check_checkpoint_of_run(checkpoint, stored)
    if checkpoints:
        raise UserError(f"{folder}: all of its checkpoints are damaged; restore one, or train again with --overwrite")
    return None


def _begin(
    folder: Path, config: Config, manifest: dict[str, Any], data: TrainingData, stored: Optional[dict[str, Any]]
) -> dict[str, Any]:
    """Create the folder of a run, or open it again; return its manifest."""
    if stored is None and manifest_of_kind(folder, "run") is not None:
        logger.info(f"{folder}: deleting the earlier run (--overwrite)")
        clear_folder(folder)
    make_folder(folder)
    *before, start = manifest["starts"]
    changed = [
        f"{key} {start[key]}, not {last[key]}" for last in before[-1:] for key in OF_A_START if start[key] != last[key]
    ]
    if changed:
        logger.warning(f"{folder}: resumed with {', '.join(changed)}: the last bits of its weights will differ")
    write_json(folder / "manifest.json", manifest)  # first, because the manifest marks the folder as ours
    for name, content in (("config.yaml", to_yaml(config)), ("tokenizer.json", data.tokenizer_text)):
        if not (folder / name).is_file():
            write_text(folder / name, content)
    remove_leftovers(folder, folder / "checkpoints", seconds=0)
    return manifest


def save(run: Run) -> None:
    """Write a checkpoint. All processes must call it; the leader writes."""
    tensors = gather_state(run.state.model, run.state.optimizer)
    tokens, run_id = run.step * run.batch_tokens, run.manifest["run_id"]
    info = CheckpointInfo(run.step, tokens, run.seconds, run_id, newest_loss_nats=run.newest_loss_nats)
    folder, config = run.folder / "checkpoints", run.state.model.config
    on_leader(lambda: save_checkpoint(folder, info, config=config, state=tensors, keep=KEEP_CHECKPOINTS))


def finish(run: Run) -> None:
    """Mark a run as complete."""
    checkpoints = run.folder / "checkpoints"
    manifest = {
        **run.manifest,
        "status": "complete",
        "steps": run.step,
        "ended_by": run.ended_by,
        "tokens": run.step * run.batch_tokens,
        "validation_loss_nats": run.newest_loss_nats,
        "seconds": run.seconds,
        "checkpoint": read_checkpoint_info(checkpoints / f"step{run.step}").record,
    }
    write_json(run.folder / "manifest.json", manifest)
    delete_old_checkpoints(checkpoints, keep=KEEP_CHECKPOINTS)  # a process that was killed here may have left too many
