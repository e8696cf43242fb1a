"""The training loop.

A run is a folder; ``train`` starts it, continues it or finds it finished. Interrupted at any moment, it continues from
the newest checkpoint with the same batches, losses and weights, to the last bit; on another number of processes, with the
same batches, and the same losses up to the order of their sums.
"""

from __future__ import annotations

import logging
import math
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import torch

from olmo_sparsity.config import Config, PoseConfig, to_dict
from olmo_sparsity.errors import Interrupted, UserError
from olmo_sparsity.model.checkpoint import read_state, save_checkpoint
from olmo_sparsity.model.devices import device_name, pick_device
from olmo_sparsity.model.olmo import build_model, olmo_model_config
from olmo_sparsity.progress import progress_bar
from olmo_sparsity.storage.environment import environment
from olmo_sparsity.storage.files import read_json, remove_leftovers, write_json
from olmo_sparsity.storage.folders import exclusive_lock, is_folder_of_kind
from olmo_sparsity.text.preparation import prepare
from olmo_sparsity.text.store import open_store
from olmo_sparsity.torchrun import SINGLE_PROCESS, ProcessInfo
from olmo_sparsity.training.batches import Batch, RowSource, batch_at, row_source
from olmo_sparsity.training.evaluation import EVALUATED, Record, evaluate
from olmo_sparsity.training.metrics import check_trackers, metrics_writer
from olmo_sparsity.training.processes import (
    all_reduce_sum,
    any_process,
    broadcast_from_leader,
    device_of_process,
    gather_state,
    load_state,
    process_group,
    share_of_rows,
)
from olmo_sparsity.training.run_folder import begin_run, check_same_experiment, is_trained
from olmo_sparsity.training.step import (
    build_schedule,
    build_train_state,
    deterministic,
    resolve_compile,
    resolve_precision,
    train_step,
)
from olmo_sparsity.training.throughput import measured_peak, training_flops_per_token

logger = logging.getLogger(__name__)

VALIDATION_SEED = 1_000_003  # validation rows are those of batches that no training step draws


@contextmanager
def _stop_signals(patient: bool) -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM instead of dying of them; a second one kills, unless ``patient``: torchrun may pass
    on several, and kills those that take too long itself."""
    caught: list[int] = []

    def handle(number: int, _frame: Any) -> None:
        caught.append(number)
        if not patient:
            signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ahead(make: Callable[[int], Batch], steps: range) -> Iterator[Batch]:
    """``make`` of each step, made in a thread while the step before it is computed."""
    if not steps:
        return
    with ThreadPoolExecutor(1, "batches") as thread:
        coming = thread.submit(make, steps[0])
        for step in steps:
            batch = coming.result()
            if step + 1 < steps.stop:
                coming = thread.submit(make, step + 1)
            yield batch


@dataclass(frozen=True)
class _Text:
    """What a run trains on and is watched on. ``validation``: rows such as those of training, of held-out documents;
    ``by_position``: ``full_len`` consecutive tokens of them at positions 0, 1, ..., None where no document is so long.
    Each process has its share of the rows of both."""

    folder: Path
    prepared: dict[str, Any]
    tokens_sha256: str
    num_documents: int
    rows: RowSource
    validation: Batch
    by_position: Optional[Batch]


def _open_text(config: Config, place: ProcessInfo) -> _Text:
    folder = prepare(config.data)
    store, held_out = open_store(folder, "train"), open_store(folder, "validation")
    lengths = (config.context.row_len, config.max_position)
    full_len, eval_rows = config.context.full_len, config.training.eval_rows
    share = share_of_rows(eval_rows, place, "training.eval_rows")
    by_position = None
    if int(held_out.lengths_G.max()) > full_len:
        windows, no_skip = row_source(held_out, full_len, full_len), PoseConfig(num_chunks=1)
        by_position = batch_at(windows, no_skip, eval_rows, VALIDATION_SEED, 1, share)
    return _Text(
        folder=folder,
        prepared=read_json(folder / "manifest.json"),
        tokens_sha256=store.tokens_sha256,
        num_documents=store.num_documents,
        rows=row_source(store, *lengths),
        validation=batch_at(row_source(held_out, *lengths), config.pose, eval_rows, VALIDATION_SEED, 0, share),
        by_position=by_position,
    )


def train(
    config: Config,
    run: Path,
    overwrite: bool = False,
    place: ProcessInfo = SINGLE_PROCESS,
) -> None:
    """Trains, or goes on training, the run in folder ``run``; returns at once where it is finished.

    Args:
        config: the experiment.
        run: its folder.
        overwrite: delete what is there and start anew.
        place: of this process among those that train the run together; all of them call this with the same arguments.

    Raises:
        UserError: the folder belongs to another experiment, another process trains in it, or the text, tokenizer or
            checkpoint is not usable.
        Interrupted: SIGINT or SIGTERM came; all is saved.
    """
    training = config.training
    begun = is_folder_of_kind(run, "run") and not overwrite
    if begun:
        check_same_experiment(run, config)
        if is_trained(run, verified=True):
            logger.info(f"{run}: already trained ({training.steps} steps); nothing to do (--overwrite trains it again)")
            return
    check_trackers(training.trackers)
    share_of_rows(training.batch_rows, place, "training.batch_rows")
    if training.threads is not None:
        torch.set_num_threads(training.threads)
    device = device_of_process(pick_device(training.device), place)
    text = _open_text(config, place)
    if begun and read_json(run / "manifest.json")["tokens_sha256"] != text.tokens_sha256:
        raise UserError(f"{run}: its text has changed since it was begun; choose another folder with --run DIR")
    lock = run.resolve().with_name(f".{run.resolve().name}.lock")
    busy = f"{run}: another process is training this run; wait for it, or choose another folder with --run DIR"
    alone = exclusive_lock(lock, busy) if place.is_leader else nullcontext()
    with alone, process_group(place, device), deterministic():
        _train(config, run, overwrite, place, device, text)


def _train(
    config: Config,
    run: Path,
    overwrite: bool,
    place: ProcessInfo,
    device: torch.device,
    text: _Text,
) -> None:
    training, row_len = config.training, config.context.row_len
    precision, compiled = resolve_precision(training, device), resolve_compile(training, device)
    model = build_model(olmo_model_config(config, text.prepared["vocab_size"], text.prepared["eos_id"]), training.seed)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    flops_per_token = training_flops_per_token(model, row_len)
    learner = build_train_state(model, training, precision, compiled, place, device)
    schedule = build_schedule(training)
    own_peak = measured_peak(device, torch.bfloat16 if precision == "bf16" else torch.float32)
    peak = float(all_reduce_sum(torch.tensor(own_peak, dtype=torch.float64), place))
    manifest: dict[str, Any] = {
        "kind": "run",
        "status": "running",
        "run_id": uuid.uuid4().hex[:12],
        "config": to_dict(config),
        "token_store": str(text.folder.resolve()),
        "tokens_sha256": text.tokens_sha256,
        "tokenizer_sha256": text.prepared["tokenizer_sha256"],
        "num_parameters": num_parameters,
        "training_flops_per_token": flops_per_token,
        "device": device_name(device),
        "processes": place.count,
        "parallel": training.parallel if place.count > 1 else None,
        "threads": torch.get_num_threads(),
        "precision": precision,
        "compiled": compiled,
        "peak_flops_per_second": peak,
        "environment": environment(),
    }
    manifest, latest = broadcast_from_leader(
        lambda: begin_run(config, run, text.folder / "tokenizer.json", manifest, overwrite), place
    )
    step, seconds_before = 0, 0.0
    if latest is not None:
        facts = read_json(latest / "train.json")
        step, seconds_before = facts["step"], facts["seconds"]
        load_state(model, learner.optimizer, *(read_state(latest) if place.is_leader else ({}, {})), place)
        logger.info(f"{run}: continuing at step {step}")
    batch_tokens = training.batch_rows * row_len
    processes = "" if place.count == 1 else f" on {place.count} processes ({training.parallel})"
    logger.info(
        f"{run}: {num_parameters / 1e6:.2f}M parameters, {training.steps} steps of {batch_tokens} tokens, rows of "
        f"{row_len} (which {len(text.rows.documents):,} of {text.num_documents:,} documents hold) with "
        f"positions below {config.max_position}, {device.type}{processes}, {precision}, "
        f"{'compiled' if compiled else 'not compiled'}"
    )

    began = time.monotonic()
    share = share_of_rows(training.batch_rows, place, "training.batch_rows")

    def batch_of(step: int) -> Batch:
        batch = batch_at(text.rows, config.pose, training.batch_rows, training.seed, step, share)
        return batch.pinned() if device.type == "cuda" else batch

    def seconds_so_far() -> float:
        return round(seconds_before + time.monotonic() - began, 3)

    def evaluation() -> Record:
        watched = (text.validation, text.by_position)
        return evaluate(learner.loss, *watched, row_len, learner.rows_at_once, device, place)

    def save() -> None:
        state = gather_state(model, learner.optimizer, place)
        if place.is_leader:
            facts = {"tokens": step * batch_tokens, "seconds": seconds_so_far()}
            kept = (training.keep_checkpoints, training.keep_every)
            save_checkpoint(run / "checkpoints", step, model.config, *state, facts, *kept)

    evaluated: Optional[Record] = None
    model.train()
    with (
        _stop_signals(patient=place.count > 1) as caught,
        metrics_writer(run, step, config, manifest["run_id"], writes=place.is_leader) as write,
        progress_bar("train", " steps", total=training.steps, initial=step) as bar,
    ):
        timed_step, timed_at = step, time.monotonic()  # where the stretch begins whose speed the next line tells
        for batch in _ahead(batch_of, range(step, training.steps)):
            learning_rate = schedule.get_lr(training.learning_rate, step, training.steps)
            nats, grad_norm = train_step(learner, batch, learning_rate, training.max_grad_norm)
            step += 1
            bar.update()
            last, stopped = step == training.steps, any_process(bool(caught), place)
            saves = step % training.checkpoint_every == 0 or last or stopped
            evaluates = step % training.eval_every == 0 or last
            logs = step % training.log_every == 0 or evaluates
            if not (logs or saves):
                continue
            loss_nats = float(all_reduce_sum(nats, place)) / batch.num_targets
            if not math.isfinite(loss_nats + float(grad_norm)):
                raise UserError(
                    f"{run}: the loss is {loss_nats} and the norm of its gradient {float(grad_norm)} at step {step}; lower "
                    "training.learning_rate and train again"
                )
            rate = (step - timed_step) * batch_tokens / (time.monotonic() - timed_at)
            shown = {"loss": f"{loss_nats:.3f}", "tokens/s": f"{rate:,.0f}"}
            if evaluates:
                evaluated = evaluation()
            if evaluated is not None:
                shown["validation"] = f"{evaluated['validation_loss_nats']:.3f}"
            bar.set_postfix(shown)
            if logs:
                write(
                    {
                        "step": step,
                        "loss_nats": loss_nats,
                        **(evaluated if evaluates and evaluated is not None else dict.fromkeys(EVALUATED)),
                        "learning_rate": learning_rate,
                        "grad_norm": float(grad_norm),
                        "tokens": step * batch_tokens,
                        "tokens_per_second": round(rate),
                        "share_of_peak": round(rate * flops_per_token / peak, 4),
                        "seconds": seconds_so_far(),
                    }
                )
            if saves:
                save()
            timed_step, timed_at = step, time.monotonic()  # evaluating and saving are not the step's speed
            if stopped and not last:
                raise Interrupted(
                    f"{run}: stopped and saved at step {step}; the same command, without --overwrite, goes on from there"
                )

    if evaluated is None:  # killed between the last checkpoint and the manifest
        evaluated = evaluation()
    manifest.update(
        status="complete",
        steps=step,
        tokens=step * batch_tokens,
        validation_loss_nats=evaluated["validation_loss_nats"],
        seconds=seconds_so_far(),
    )
    if place.is_leader:
        write_json(run / "manifest.json", manifest)
        remove_leftovers(run)
    logger.info(
        f"{run}: trained {step} steps, {step * batch_tokens:,} tokens; validation loss "
        f"{manifest['validation_loss_nats']:.3f} nats"
    )
