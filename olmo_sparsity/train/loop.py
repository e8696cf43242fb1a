"""The training loop.

A run is a folder. ``train`` starts a run, resumes it, or returns at once if it is finished. A run that was interrupted at
any moment resumes from its newest checkpoint with the same batches, losses and weights, bit for bit. On another number of
processes the batches are the same, and the losses are the same up to the order of summation.
"""

from __future__ import annotations

import logging
import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import torch

from olmo_sparsity.config import Config, TrainingConfig
from olmo_sparsity.errors import Interrupted, UserError
from olmo_sparsity.files import manifest_of_kind, read_manifest_of, remove_leftovers, write_json
from olmo_sparsity.model.checkpoint import (
    CheckpointInfo,
    delete_old_checkpoints,
    read_checkpoint_info,
    save_checkpoint,
)
from olmo_sparsity.model.devices import pick_device
from olmo_sparsity.progress import progress_bar
from olmo_sparsity.torchrun import SINGLE_PROCESS, ProcessInfo
from olmo_sparsity.train.data import TEXT, DataSource, TrainingData, training_batches
from olmo_sparsity.train.evaluation import Evaluation, evaluate
from olmo_sparsity.train.metrics import StepMetrics, check_trackers, metrics_writer
from olmo_sparsity.train.processes import (
    all_reduce_sum,
    any_process,
    broadcast_from_leader,
    device_of_process,
    gather_state,
    process_group,
    share_of_rows,
)
from olmo_sparsity.train.resources import check_memory
from olmo_sparsity.train.run import LoopState, TrainingRun, load_checkpoint, log_settings, prepare_run
from olmo_sparsity.train.run_folder import (
    check_same_experiment,
    check_same_source,
    check_same_text,
    is_trained,
    run_lock,
)
from olmo_sparsity.train.step import deterministic, rows_per_pass_of, train_step

MAX_GRAD_NORM = 1.0
KEPT_CHECKPOINTS = 2

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Due:
    """What is to be done after a step."""

    evaluate: bool
    log: bool
    save: bool
    stop: bool


def train(
    config: Config,
    run: Path,
    *,
    overwrite: bool = False,
    process: ProcessInfo = SINGLE_PROCESS,
    source: DataSource = TEXT,
) -> None:
    """Train the run in folder ``run``, or resume its training. Returns at once if the run is finished.

    Args:
        config: the experiment.
        run: the folder.
        overwrite: delete an existing run and start again. What torchrun has restarted resumes: the first start deleted it.
        process: this process. All processes that train the run together call ``train`` with the same other arguments.
        source: where the data of the run comes from.

    Raises:
        UserError: the folder belongs to another experiment, another process is training the run, or the text, tokenizer
            or checkpoint is not usable.
        Interrupted: SIGINT or SIGTERM was received; the run is saved.
    """
    training = config.training
    if overwrite and process.restarts > 0:
        logger.info(f"{run}: torchrun has restarted this training, so it resumes; --overwrite is not applied again")
        overwrite = False
    if _resumes(run, config, source=source, overwrite=overwrite) and is_trained(run):
        steps = read_manifest_of(run, "steps")["steps"]
        logger.info(f"{run}: already trained ({steps} steps); nothing to do (--overwrite trains it again)")
        return
    check_trackers(training.trackers)
    rows_per_pass_of(training, process)  # an error here comes before long work
    share_of_rows(training.eval_rows, process, key="training.eval_rows")
    if training.threads is not None:
        torch.set_num_threads(training.threads)
    device = device_of_process(pick_device(training.device), process)
    check_memory(config, process, source=source, device=device)
    data = source.open(config, process)
    with process_group(process, device), run_lock(run, process), deterministic():
        # Again: opening the text may take long, and another training may have begun or finished a run here meanwhile.
        if _resumes(run, config, source=source, overwrite=overwrite):
            check_same_text(run, data.manifest_entries["tokens_sha256"])
        # In a function of its own, because process_group must not exit while a variable refers to the model.
        _train(config, run, data=data, process=process, device=device, overwrite=overwrite)


def _resumes(run: Path, config: Config, *, source: DataSource, overwrite: bool) -> bool:
    """Return True if the folder holds a run, which is to go on.

    Raises:
        UserError: the run is of another source, or another experiment.
    """
    if not manifest_of_kind(run, "run"):
        return False
    check_same_source(run, is_synthetic=source.is_synthetic)  # to overwrite it may be a slip: `train` for `synth train`
    if overwrite:
        return False
    check_same_experiment(run, config)
    return True


def _train(
    config: Config, folder: Path, *, data: TrainingData, process: ProcessInfo, device: torch.device, overwrite: bool
) -> None:
    run = prepare_run(config, folder, data=data, process=process, device=device, overwrite=overwrite)
    state = load_checkpoint(run)
    log_settings(run)
    training = config.training
    if training.warmup_steps >= training.steps and "warmup" in training.scheduler:
        logger.warning(
            f"training.warmup_steps = {training.warmup_steps}: the learning rate rises in all of the {training.steps} steps, and "
            "does not reach training.learning_rate; choose fewer"
        )
    _train_steps(run, state)
    _finish(run, state)


def _train_steps(run: TrainingRun, state: LoopState) -> None:
    """Take the remaining steps.

    Raises:
        UserError: the loss is not finite.
        Interrupted: a signal was received; the run is saved.
    """
    training, train_state, process = run.config.training, run.train_state, run.train_state.process
    steps = range(state.step, state.step if state.end(training) else training.steps)
    train_state.model.train()
    with (
        collect_stop_signals(ignore_repeats=process.world_size > 1) as signals,
        metrics_writer(
            run.folder, state.step, config=run.config, run_id=run.manifest["run_id"], process=process
        ) as write_metrics,
        progress_bar("train", " steps", total=training.steps, initial=state.step) as bar,
    ):
        state.start_stretch()
        if run.manifest["compiled"] and len(steps) > 0:
            logger.info(f"{run.folder}: compiling; the first step takes up to minutes, those after it do not")
        for batch in training_batches(run.data, steps=steps, device=train_state.device):
            learning_rate = run.schedule.get_lr(training.learning_rate, state.step, training.steps)
            nats, grad_norm = train_step(train_state, batch, learning_rate=learning_rate, max_grad_norm=MAX_GRAD_NORM)
            state.step += 1
            bar.update()
            due = _due_after(state.step, training, interrupted=any_process(bool(signals), process))
            if not (due.log or due.save):
                continue
            loss_nats = float(all_reduce_sum(nats, process)) / batch.num_targets
            _check_finite(run, state.step, loss_nats=loss_nats, grad_norm=float(grad_norm))
            tokens_per_second = (
                state.steps_per_second() * run.batch_tokens
            )  # read before the evaluation, which does not count
            if due.evaluate:
                state.note(evaluate(train_state, run.data.evaluation_rows))
                assert state.evaluation is not None
                validation_nats = state.evaluation.validation_loss_nats
                _check_finite(run, state.step, loss_nats=validation_nats or 0.0, grad_norm=float(grad_norm))
            has_ended = state.end(training) is not None
            metrics = StepMetrics(
                step=state.step,
                loss_nats=loss_nats,
                evaluation=state.evaluation if due.evaluate else None,
                learning_rate=learning_rate,
                grad_norm=float(grad_norm),
                tokens=state.step * run.batch_tokens,
                tokens_per_second=round(tokens_per_second),
                share_of_peak=round(run.share_of_peak(tokens_per_second), 4),
                seconds=state.seconds(),
            )
            bar.set_postfix(_shown(metrics, state.evaluation), refresh=False)
            if due.log:
                write_metrics(metrics)
            if due.save or has_ended:
                _save(run, state)
            state.start_stretch()  # so that evaluating and saving do not count
            if has_ended:
                break
            if due.stop:
                raise Interrupted(
                    f"{run.folder}: stopped and saved at step {state.step}; the same command, without --overwrite, resumes "
                    "from there"
                )


@contextmanager
def collect_stop_signals(*, ignore_repeats: bool) -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM in the returned list, instead of ending the process.

    Args:
        ignore_repeats: False: a second signal of the same kind ends the process at once. True: it is collected, too. This
            is for torchrun, which may pass a signal on several times, and itself kills processes that take too long.
    """
    caught: list[int] = []

    def handle(number: int, _frame: Any) -> None:
        caught.append(number)
        if not ignore_repeats:
            signal.signal(number, signal.SIG_DFL)

    handlers_before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in handlers_before.items():
            signal.signal(number, handler)


def _due_after(step: int, training: TrainingConfig, *, interrupted: bool) -> _Due:
    last = step == training.steps
    evaluate = last or step % training.eval_every == 0
    return _Due(
        evaluate=evaluate,
        log=evaluate or step % training.log_every == 0,
        save=last or interrupted or step % training.checkpoint_every == 0,
        stop=interrupted,
    )


def _check_finite(run: TrainingRun, step: int, *, loss_nats: float, grad_norm: float) -> None:
    if not math.isfinite(loss_nats + grad_norm):
        raise UserError(
            f"{run.folder}: at step {step} the loss is {loss_nats} and the gradient norm {grad_norm}; lower "
            "training.learning_rate and train again, with --overwrite"
        )


def _shown(metrics: StepMetrics, newest_evaluation: Optional[Evaluation]) -> dict[str, str]:
    """Return the numbers beside the progress bar."""
    shown = {"loss": f"{metrics.loss_nats:.3f}", "tokens/s": f"{metrics.tokens_per_second:,}"}
    if newest_evaluation is not None:
        shown["validation"] = f"{newest_evaluation.validation_loss_nats:.3f}"
    return shown


def _save(run: TrainingRun, state: LoopState) -> None:
    """Write a checkpoint. All processes must call it; the leader writes."""
    train_state = run.train_state
    start = time.monotonic()
    checkpoint_state = gather_state(train_state.model, train_state.optimizer, process=train_state.process)

    def save() -> None:
        path = save_checkpoint(
            run.folder / "checkpoints",
            CheckpointInfo(
                step=state.step,
                tokens=state.step * run.batch_tokens,
                seconds=state.seconds(),
                run_id=run.manifest["run_id"],
                newest_loss_nats=state.newest_loss_nats,
            ),
            config=train_state.model.config,
            state=checkpoint_state,
            keep=KEPT_CHECKPOINTS,
        )
        logger.debug(f"saved {path} (step {state.step}) in {time.monotonic() - start:.2f} s")

    broadcast_from_leader(save, train_state.process)


def _finish(run: TrainingRun, state: LoopState) -> None:
    """Mark the run as complete."""
    if state.evaluation is None:  # resumed after the last step, from a process that was killed before it got here
        state.evaluation = evaluate(run.train_state, run.data.evaluation_rows)
    tokens, loss_nats = state.step * run.batch_tokens, state.evaluation.validation_loss_nats
    manifest = {
        **run.manifest,
        "status": "complete",
        "steps": state.step,
        "ended_by": state.end(run.config.training),
        "tokens": tokens,
        "validation_loss_nats": loss_nats,
        "seconds": state.seconds(),
    }

    def complete() -> None:
        manifest["checkpoint"] = read_checkpoint_info(run.folder / "checkpoints" / f"step{state.step}").record
        write_json(run.folder / "manifest.json", manifest)
        remove_leftovers(run.folder)
        # A process that was killed after the last step may have left too many.
        delete_old_checkpoints(run.folder / "checkpoints", keep=KEPT_CHECKPOINTS)

    broadcast_from_leader(complete, run.train_state.process)
    logger.info(f"{run.folder}: trained {state.step} steps, {tokens:,} tokens; validation loss {loss_nats:.3f} nats")
