"""A run in training: what it consists of, and how it is prepared or resumed."""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Optional

import torch
from olmo.optim import Scheduler

from olmo_sparsity.config import Config, TrainingConfig, to_dict
from olmo_sparsity.files import environment
from olmo_sparsity.model.checkpoint import (
    CheckpointState,
    check_checkpoint_of_run,
    checkpoint_to_resume,
    read_state,
)
from olmo_sparsity.model.devices import device_name
from olmo_sparsity.model.olmo import build_model, olmo_model_config
from olmo_sparsity.torchrun import ProcessInfo
from olmo_sparsity.train.data import TrainingData
from olmo_sparsity.train.evaluation import Evaluation
from olmo_sparsity.train.processes import all_reduce_sum, broadcast_from_leader, load_state
from olmo_sparsity.train.resources import measured_peak, training_flops_per_token
from olmo_sparsity.train.run_folder import begin_run
from olmo_sparsity.train.step import (
    TrainState,
    build_schedule,
    build_train_state,
    resolve_compile,
    resolve_precision,
)

logger = logging.getLogger(__name__)

End = Literal["steps", "stop_loss"]  # the key that ended training


@dataclass(frozen=True)
class TrainingRun:
    """A run in training: what does not change from step to step.

    Attributes:
        folder: of the run.
        config: the experiment.
        data: what it is trained on.
        train_state: model and optimizer.
        schedule: the learning rate schedule.
        manifest: what is written to ``manifest.json``.
        checkpoint: the checkpoint to resume from; None: start at step 0.
    """

    folder: Path
    config: Config
    data: TrainingData
    train_state: TrainState
    schedule: Scheduler
    manifest: dict[str, Any]
    checkpoint: Optional[Path]

    @property
    def batch_tokens(self) -> int:
        """Tokens of a batch, over all processes."""
        return self.config.training.batch_rows * self.data.row_len

    def share_of_peak(self, tokens_per_second: float) -> float:
        """Return the operations per second at this speed, as a fraction of the measured peak of the devices."""
        flops_per_second = tokens_per_second * self.manifest["training_flops_per_token"]
        return flops_per_second / self.manifest["peak_flops_per_second"]


@dataclass
class LoopState:
    """How far a run is: what changes from step to step.

    Attributes:
        step: optimizer steps done.
        seconds_before: training time before this process started.
        started_at: when this process started, on the monotonic clock.
        timed_step, timed_at: where the stretch begins whose speed is measured.
        evaluation: the newest one.
        newest_loss_nats: as in ``CheckpointInfo``.
    """

    step: int = 0
    seconds_before: float = 0.0
    started_at: float = field(default_factory=time.monotonic)
    timed_step: int = 0
    timed_at: float = 0.0
    evaluation: Optional[Evaluation] = None
    newest_loss_nats: Optional[float] = None

    def note(self, evaluation: Evaluation) -> None:
        """Take in a new evaluation."""
        self.evaluation = evaluation
        self.newest_loss_nats = evaluation.validation_loss_nats

    def end(self, training: TrainingConfig) -> Optional[End]:
        """Return why training ends here; None: it goes on."""
        if self.step == training.steps:
            return "steps"
        if training.stop_loss and self.newest_loss_nats is not None and self.newest_loss_nats <= training.stop_loss:
            return "stop_loss"
        return None

    def seconds(self) -> float:
        """Return the training time since the start of the run, over all interruptions."""
        return round(self.seconds_before + time.monotonic() - self.started_at, 3)

    def start_stretch(self) -> None:
        """Start to measure the speed of the steps that follow."""
        self.timed_step, self.timed_at = self.step, time.monotonic()

    def steps_per_second(self) -> float:
        """Return the speed since ``start_stretch``."""
        return (self.step - self.timed_step) / (time.monotonic() - self.timed_at)


def prepare_run(
    config: Config, folder: Path, *, data: TrainingData, process: ProcessInfo, device: torch.device, overwrite: bool
) -> TrainingRun:
    """Build model, optimizer and manifest, and create or open the folder of the run."""
    training = config.training
    checkpoint = (
        None if overwrite else broadcast_from_leader(lambda: checkpoint_to_resume(folder / "checkpoints"), process)
    )
    precision, compiled = resolve_precision(training, device), resolve_compile(training, device)
    model = build_model(olmo_model_config(config, vocab_size=data.vocab_size, eos_id=data.eos_id), training.seed)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    flops_per_token = training_flops_per_token(
        model,
        data.row_len,
        num_bos=data.num_bos,
        share_with_logits=data.share_with_logits(config),
        predicts_positions=data.evaluation_rows.like_training.target_positions_BT is not None,
    )
    train_state = build_train_state(
        model,
        training,
        precision=precision,
        compiled=compiled,
        process=process,
        device=device,
        few_targets=data.few_targets,
    )
    process_peak = measured_peak(device, torch.bfloat16 if precision == "bf16" else torch.float32)
    peak = float(all_reduce_sum(torch.tensor(process_peak, dtype=torch.float64), process))
    manifest: dict[str, Any] = {
        "kind": "run",
        "status": "running",
        "run_id": uuid.uuid4().hex[:12],
        "config": to_dict(config),
        **data.manifest_entries,
        "num_parameters": num_parameters,
        "training_flops_per_token": flops_per_token,
        "device": device_name(device),
        "processes": process.world_size,
        "parallel": training.parallel if process.world_size > 1 else None,
        "threads": torch.get_num_threads(),
        "precision": precision,
        "compiled": compiled,
        "peak_flops_per_second": peak,
        "environment": environment(),
    }
    manifest = broadcast_from_leader(
        lambda: begin_run(
            config,
            folder,
            tokenizer_text=data.tokenizer_text,
            manifest=manifest,
            resumes=checkpoint is not None,
            overwrite=overwrite,
        ),
        process,
    )
    return TrainingRun(
        folder=folder,
        config=config,
        data=data,
        train_state=train_state,
        schedule=build_schedule(training),
        manifest=manifest,
        checkpoint=checkpoint,
    )


def load_checkpoint(run: TrainingRun) -> LoopState:
    """Load the checkpoint to resume from, if there is one, and return where training starts."""
    if run.checkpoint is None:
        return LoopState()
    train_state, process, checkpoint = run.train_state, run.train_state.process, run.checkpoint
    info = check_checkpoint_of_run(checkpoint, run.manifest)
    checkpoint_state = CheckpointState({}, {})  # of the leader alone it is that of the file

    def read() -> None:
        nonlocal checkpoint_state
        checkpoint_state = read_state(checkpoint)

    broadcast_from_leader(read, process)
    load_state(train_state.model, train_state.optimizer, state=checkpoint_state, process=process)
    logger.info(f"{run.folder}: resuming at step {info.step}")
    logger.debug(f"loaded {checkpoint}: {info.tokens:,} tokens and {info.seconds:.1f} s of training so far")
    return LoopState(
        step=info.step,
        seconds_before=info.seconds,
        newest_loss_nats=info.newest_loss_nats,
    )


def log_settings(run: TrainingRun) -> None:
    """Log what is trained, and how."""
    config, training, manifest = run.config, run.config.training, run.manifest
    process, device, rows_per_pass = run.train_state.process, run.train_state.device, run.train_state.rows_per_pass
    processes = "" if process.world_size == 1 else f" on {process.world_size} processes ({training.parallel})"
    logger.info(
        f"{run.folder}: {manifest['num_parameters'] / 1e6:.2f}M parameters, {training.steps} steps of {run.batch_tokens} "
        f"tokens; {run.data.described}, positions below {config.num_positions}; "
        f"{device.type}{processes}, {manifest['precision']}, {'compiled' if manifest['compiled'] else 'not compiled'}"
    )
    logger.debug(
        f"device {manifest['device']} (training.device: {training.device}), {manifest['threads']} CPU threads, precision "
        f"{manifest['precision']} (training.precision: {training.precision}), compiled {manifest['compiled']} "
        f"(training.compile: {training.compile}), measured peak {manifest['peak_flops_per_second']:.3g} FLOP/s"
    )
    passes = training.batch_rows // process.world_size // rows_per_pass
    logger.debug(
        f"batches of {training.batch_rows} rows: {rows_per_pass} rows per pass, passes per step in each process: {passes}"
    )
