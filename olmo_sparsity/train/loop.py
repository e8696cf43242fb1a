"""The training loop.

A run is a folder. ``train`` starts a run, resumes it, or returns at once if it is finished. A run that was interrupted at
any moment resumes from its newest intact checkpoint with the same batches, losses and weights, bit for bit. On another number
of processes the batches are the same, and the losses are the same up to the order of summation.
"""

from __future__ import annotations

import logging
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Optional

import torch

from olmo_sparsity.config import Config
from olmo_sparsity.errors import Interrupted, UserError
from olmo_sparsity.model.devices import pick_device
from olmo_sparsity.progress import progress_bar
from olmo_sparsity.torchrun import current_process
from olmo_sparsity.train.batches import TrainingData, drawn_ahead, open_training_text
from olmo_sparsity.train.evaluate import KEYS, evaluate
from olmo_sparsity.train.experiment import is_trained, stored_manifest
from olmo_sparsity.train.metrics import check_trackers, metrics_writer
from olmo_sparsity.train.parallel import (
    all_reduce_sum,
    device_of_process,
    num_processes,
    on_leader,
    process_group,
    share_of_rows,
)
from olmo_sparsity.train.run import Run, finish, open_run, run_lock, save
from olmo_sparsity.train.step import build_schedule, deterministic, train_step

logger = logging.getLogger(__name__)


def train(
    config: Config,
    folder: Path,
    *,
    overwrite: bool = False,
    open_data: Callable[[Config], TrainingData] = open_training_text,
) -> None:
    """Train the run in ``folder``, or resume its training. Returns at once if the run is finished.

    All processes that torchrun started train the run together. ``overwrite`` deletes an existing run and starts again.
    Interrupted: SIGINT or SIGTERM was received, and the run is saved.
    """
    training, process = config.training, current_process()
    if overwrite and process.restarts > 0:
        logger.info(f"{folder}: torchrun has restarted this training, so it resumes; --overwrite is not applied again")
        overwrite = False
    check_trackers(training.trackers)
    if training.threads is not None:
        torch.set_num_threads(training.threads)
    device = device_of_process(pick_device(training.device), process)
    is_synthetic = open_data is not open_training_text
    with process_group(process, device), run_lock(folder), deterministic():
        stored = on_leader(lambda: stored_manifest(folder, config, is_synthetic, overwrite=overwrite))
        if stored is not None and is_trained(folder, stored):
            logger.info(
                f"{folder}: already trained ({stored['steps']} steps); nothing to do (--overwrite trains it again)"
            )
            return
        for key in ("batch_rows", "eval_rows"):  # before long work
            share_of_rows(getattr(training, key), key=f"training.{key}")
        # In a function of its own, because process_group must not exit while a variable refers to the model.
        _train(config, folder, open_data(config), stored, device)


def _train(
    config: Config, folder: Path, data: TrainingData, stored: Optional[dict[str, Any]], device: torch.device
) -> None:
    run = open_run(config, folder, data=data, stored=stored, device=device)
    training, start = config.training, run.manifest["starts"][-1]
    processes = "" if num_processes() == 1 else f" on {num_processes()} processes ({training.parallel})"
    logger.info(
        f"{folder}: {run.manifest['num_parameters'] / 1e6:.2f}M parameters, {training.steps} steps of {run.batch_tokens} tokens; "
        f"{data.described}, positions below {config.num_positions}; {device.type}{processes}, {start['precision']}, "
        f"{'compiled' if start['compiled'] else 'not compiled'}"
    )
    _train_steps(run)
    on_leader(lambda: finish(run))
    logger.info(
        f"{folder}: trained {run.step} steps, {run.step * run.batch_tokens:,} tokens; validation loss "
        f"{run.newest_loss_nats:.3f} nats"
    )


def _train_steps(run: Run) -> None:
    """Take the remaining steps. UserError: a loss is not finite. Interrupted: a signal was received; the run is saved."""
    training, state = run.config.training, run.state
    steps = range(run.step, run.step if run.ended_by else training.steps)
    rows = share_of_rows(training.batch_rows, key="training.batch_rows")
    schedule, start = build_schedule(training), run.manifest["starts"][-1]
    state.model.train()
    with (
        collect_stop_signals() as signals,
        metrics_writer(run.folder, run.step, config=run.config, run_id=run.manifest["run_id"]) as write_metrics,
        progress_bar("train", " steps", total=training.steps, initial=run.step) as bar,
    ):
        if start["compiled"] and len(steps) > 0:
            logger.info(f"{run.folder}: compiling; the first step takes up to minutes, those after it do not")
        timed_step, timed_at = run.step, time.monotonic()
        for batch in drawn_ahead(lambda step: run.data.draw(step, rows), steps, pin=state.device.type == "cuda"):
            run.step += 1  # OLMo's schedules count steps from 1: the first one learns, the last one has the last rate
            learning_rate = schedule.get_lr(training.learning_rate, run.step, training.steps)
            nats, grad_norm = train_step(state, batch, learning_rate=learning_rate)
            bar.update()
            is_stopped = bool(all_reduce_sum(torch.tensor(len(signals))))  # in any process
            is_last = run.step == training.steps
            is_evaluated = is_last or run.step % training.eval_every == 0
            is_logged = is_evaluated or run.step % training.log_every == 0
            is_saved = is_last or is_stopped or run.step % training.checkpoint_every == 0
            if not (is_logged or is_saved):
                continue
            loss_nats, losses = float(all_reduce_sum(nats)) / batch.num_targets, dict.fromkeys(KEYS)
            steps_per_second = (run.step - timed_step) / (time.monotonic() - timed_at)
            if is_evaluated:
                losses = evaluate(state, *run.held_out, num_bos=run.data.num_bos)
                run.newest_loss_nats = losses["validation_loss_nats"]
            numbers = (loss_nats, float(grad_norm), losses["validation_loss_nats"] or 0.0)
            if not all(map(math.isfinite, numbers)):
                raise UserError(
                    f"{run.folder}: at step {run.step} the loss is {loss_nats}, the gradient norm {numbers[1]} and the "
                    f"validation loss {numbers[2]}; lower training.learning_rate and train again, with --overwrite"
                )
            tokens_per_second = steps_per_second * run.batch_tokens
            share = tokens_per_second * run.manifest["training_flops_per_token"] / start["peak_flops_per_second"]
            line = {
                "step": run.step,
                "loss_nats": loss_nats,
                **losses,
                "learning_rate": learning_rate,
                "grad_norm": float(grad_norm),
                "tokens": run.step * run.batch_tokens,
                "tokens_per_second": round(tokens_per_second),
                "share_of_peak": round(share, 4),
                "seconds": run.seconds,
            }
            validation = {} if run.newest_loss_nats is None else {"validation": f"{run.newest_loss_nats:.3f}"}
            shown = {"loss": f"{loss_nats:.3f}", "tokens/s": f"{tokens_per_second:,.0f}", **validation}
            bar.set_postfix(shown, refresh=False)
            if is_logged:
                write_metrics(line)
            if is_saved or run.ended_by:
                save(run)
            timed_step, timed_at = run.step, time.monotonic()  # evaluating and saving do not count
            if run.ended_by:
                break
            if is_stopped:
                raise Interrupted(
                    f"{run.folder}: stopped and saved at step {run.step}; the same command, without --overwrite, resumes "
                    "from there"
                )


@contextmanager
def collect_stop_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM in the list that it yields, instead of ending the process; a context manager."""
    caught: list[int] = []

    def handle(number: int, _frame: Any) -> None:
        caught.append(number)
        if num_processes() == 1:  # a second one ends it; torchrun may pass a signal on several times, and itself kills
            signal.signal(number, signal.SIG_DFL)

    handlers_before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in handlers_before.items():
            signal.signal(number, handler)
