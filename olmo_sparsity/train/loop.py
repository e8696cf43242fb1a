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
from olmo_sparsity.train.experiment import is_trained, stored_manifest
from olmo_sparsity.train.metrics import Write, check_trackers, metrics_writer
from olmo_sparsity.train.parallel import (
    all_reduce_sum,
    device_of_process,
    num_processes,
    on_leader,
    process_group,
    share_of_rows,
)
from olmo_sparsity.train.run import Run, finish, open_run, run_lock, save
from olmo_sparsity.train.step import KEYS, build_schedule, deterministic, evaluate, train_step

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
    ``open_data`` opens what it is trained on: text, or a synthetic task. Interrupted: SIGINT or SIGTERM; the run is saved.
    """
    training, process = config.training, current_process()
    if overwrite and process.restarts > 0:
        logger.info(f"{folder}: torchrun has restarted this training, so it resumes; --overwrite is not applied again")
        overwrite = False
    check_trackers(training.trackers)
    if training.threads is not None:
        torch.set_num_threads(training.threads)
    device = device_of_process(pick_device(training.device), process)
    with process_group(process, device), run_lock(folder), deterministic():
        is_synthetic = open_data is not open_training_text
        stored = on_leader(lambda: stored_manifest(folder, config, is_synthetic, overwrite=overwrite))
        if stored is not None and is_trained(folder, stored):
            steps = stored["steps"]
            logger.info(f"{folder}: already trained ({steps} steps); nothing to do (--overwrite trains it again)")
            return
        for key in ("batch_rows", "eval_rows"):  # before long work
            share_of_rows(getattr(training, key), key=f"training.{key}")
        # In a function of its own, because process_group must not exit while a variable refers to the model.
        _train(config, folder, open_data(config), stored, device)


def _train(
    config: Config, folder: Path, data: TrainingData, stored: Optional[dict[str, Any]], device: torch.device
) -> None:
    run = open_run(config, folder, data=data, stored=stored, device=device)
    processes = "" if num_processes() == 1 else f" on {num_processes()} processes ({config.training.parallel})"
    logger.info(
        f"{folder}: {run.manifest['num_parameters'] / 1e6:.2f}M parameters, {config.training.steps} steps of "
        f"{run.batch_tokens} tokens; {data.described}, positions below {config.num_positions}; {device.type}{processes}, "
        f"{run.state.precision}, {'' if run.state.is_compiled else 'not '}compiled"
    )
    with (
        stop_signals() as signals,
        metrics_writer(folder, run.step, config=config, run_id=run.manifest["run_id"]) as write_metrics,
        progress_bar("train", " steps", total=config.training.steps, initial=run.step) as bar,
    ):
        _take_steps(run, signals, write_metrics, bar)
    on_leader(lambda: finish(run))
    loss_nats = run.newest_loss_nats
    logger.info(f"{folder}: trained {run.step} steps, {run.tokens:,} tokens; validation loss {loss_nats:.3f} nats")


def _take_steps(run: Run, signals: list[int], write_metrics: Write, bar: Any) -> None:
    """Take the remaining steps. UserError: a loss is not finite. Interrupted: a signal was received; the run is saved."""
    training, state, schedule = run.config.training, run.state, build_schedule(run.config.training)
    steps = range(run.step, run.step if run.ended_by else training.steps)
    rows = share_of_rows(training.batch_rows, key="training.batch_rows")
    if state.is_compiled and len(steps) > 0:
        logger.info(f"{run.folder}: compiling; the first step takes up to minutes, those after it do not")
    state.model.train()
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
        line = {
            "step": run.step,
            "loss_nats": loss_nats,
            **losses,
            "learning_rate": learning_rate,
            "grad_norm": float(grad_norm),
            "tokens": run.tokens,
            "tokens_per_second": round(steps_per_second * run.batch_tokens),
            "seconds": run.seconds,
        }
        _check_finite(run, line)
        shown = {"loss": f"{loss_nats:.3f}", "tokens/s": f"{line['tokens_per_second']:,}"}
        if run.newest_loss_nats is not None:
            shown["validation"] = f"{run.newest_loss_nats:.3f}"
        bar.set_postfix(shown, refresh=False)
        if is_logged:
            write_metrics(line)
        if is_saved or run.ended_by:
            save(run)
        if run.ended_by:
            break
        if is_stopped:
            raise Interrupted(
                f"{run.folder}: stopped and saved at step {run.step}; the same command, without --overwrite, resumes from there"
            )
        timed_step, timed_at = run.step, time.monotonic()  # evaluating and saving do not count


def _check_finite(run: Run, line: dict[str, Any]) -> None:
    loss_nats, grad_norm, held_out_nats = line["loss_nats"], line["grad_norm"], line["validation_loss_nats"]
    if not all(map(math.isfinite, (loss_nats, grad_norm, held_out_nats or 0.0))):
        raise UserError(
            f"{run.folder}: at step {run.step} the loss is {loss_nats}, the gradient norm {grad_norm} and the validation loss "
            f"{held_out_nats}; lower training.learning_rate and train again, with --overwrite"
        )


@contextmanager
def stop_signals() -> Iterator[list[int]]:
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
