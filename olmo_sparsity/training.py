"""The training loop.

A run is a folder; ``train`` starts it, continues it or finds it finished. Interrupted at any moment, it continues from
the newest checkpoint with the same batches, losses and weights, to the last bit.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Optional

import torch
import torch.nn.functional as F
from olmo.config import OptimizerConfig, TrainConfig
from olmo.optim import CosWithWarmup, get_param_groups
from tqdm import tqdm

from olmo_sparsity import checkpoint as checkpoints
from olmo_sparsity.batches import Batch, batch_at, row_source
from olmo_sparsity.config import Config, Interrupted, TrainingConfig, UserError, to_dict
from olmo_sparsity.config_files import to_yaml
from olmo_sparsity.manifest import (
    empty_folder,
    environment,
    holds,
    make_folder,
    read_json,
    remove_leftovers,
    write_json,
    write_text,
)
from olmo_sparsity.model import OLMoWithPositions, build_model, olmo_model_config, pick_device, supports_bf16
from olmo_sparsity.tokens import open_store, prepare

TRAINED_SECTIONS = ("data", "context", "pose", "model", "training")
# Keys that may differ from those of the run in the folder: to go on training, and to measure what was trained.
FREE_TO_TRAIN = frozenset({("data", "cache_dir"), ("data", "processes"), ("data", "token_dtype")})
FREE_TO_MEASURE = FREE_TO_TRAIN | {
    ("data", "on_error"),
    ("data", "text_field"),
    ("training", "device"),
    ("training", "threads"),
}
VALIDATION_SEED = 1_000_003  # validation rows are those of one batch that no training step draws


def resolve_precision(training: TrainingConfig, device: torch.device) -> str:
    """``bf16`` or ``fp32``."""
    if training.precision != "auto":
        return training.precision
    return "bf16" if supports_bf16(device) else "fp32"


def resolve_compile(training: TrainingConfig, device: torch.device) -> bool:
    """Is the step compiled: as asked, or where a compiler for the device is at hand."""
    if training.compile != "auto":
        return training.compile == "always"
    if device.type == "cuda":
        return True
    return shutil.which(os.environ.get("CXX", "g++")) is not None  # the one that torch's CPU back end calls


def make_loss(model: OLMoWithPositions, device: torch.device, precision: str) -> Callable[..., torch.Tensor]:
    """(tokens_BT, positions_BT, targets_BT) -> summed cross-entropy of the targets, nats, fp32."""

    def summed_loss(tokens: torch.Tensor, positions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            logits = model(tokens, positions)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum")

    return summed_loss


def build_optimizer(model: OLMoWithPositions, training: TrainingConfig) -> torch.optim.AdamW:
    """torch's fused AdamW over OLMo's parameter groups (no weight decay on norms)."""
    groups = get_param_groups(TrainConfig(optimizer=OptimizerConfig(decay_embeddings=True)), model)
    plain = [{key: group[key] for key in ("params", "weight_decay") if key in group} for group in groups]
    return torch.optim.AdamW(
        plain,
        lr=training.learning_rate,
        betas=(training.beta1, training.beta2),
        weight_decay=training.weight_decay,
        fused=True,
    )


def check_same_experiment(run: Path, config: Config, free: frozenset[tuple[str, str]] = FREE_TO_TRAIN) -> None:
    """Is the run in this folder that of ``config``, in every key that training depends on but the ``free`` ones.

    Raises:
        UserError: it is another's.
    """
    stored = read_json(run / "manifest.json")["config"]
    asked = to_dict(config)
    for section in TRAINED_SECTIONS:
        for key in sorted(stored.get(section, {}).keys() | asked[section].keys()):
            there, here = stored.get(section, {}).get(key), asked[section].get(key)
            if there != here and (section, key) not in free:
                raise UserError(
                    f"{run}: this run was made with {section}.{key} = {there!r}, not {here!r}; choose another folder "
                    "with --run DIR, or replace it with `olmo-sparsity train --overwrite`"
                )


def is_trained(run: Path) -> bool:
    """Has this folder a finished training run."""
    return holds(run, "run") and read_json(run / "manifest.json").get("status") == "complete"


@contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM instead of dying of them; a second one kills."""
    caught: list[int] = []

    def handle(number: int, _frame: Any) -> None:
        caught.append(number)
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _deterministic(device: torch.device) -> Iterator[None]:
    """Only kernels that give the same bits every time; the compiled backward of the embedding has others, which add in
    the order in which threads arrive. On a GPU an operation without such a kernel warns instead of failing."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True, warn_only=device.type == "cuda")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.utils.deterministic.fill_uninitialized_memory = before[1]  # type: ignore[attr-defined]


def _truncate_metrics(path: Path, step: int) -> None:
    """Drops the lines of steps behind ``step``, and one that was cut short."""
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except json.JSONDecodeError:
            break
    write_text(path, "".join(f"{line}\n" for line in kept))


def _validation_loss(
    loss_of: Callable[..., torch.Tensor], batch: Batch, rows_at_once: int, device: torch.device
) -> float:
    total = 0.0
    with torch.no_grad():
        for begin in range(0, len(batch.tokens_BT), rows_at_once):
            part = slice(begin, begin + rows_at_once)
            fields = (batch.tokens_BT[part], batch.positions_BT[part], batch.targets_BT[part])
            total += float(loss_of(*(field.to(device) for field in fields)))
    return total / batch.targets_BT.numel()


def train(config: Config, run: Path, overwrite: bool = False, say: Callable[[str], None] = lambda line: None) -> None:
    """Trains, or goes on training, the run in folder ``run``; returns at once where it is finished.

    Args:
        config: the experiment.
        run: its folder.
        overwrite: delete what is there and start anew.
        say: where one-line remarks go.

    Raises:
        UserError: the folder belongs to another experiment, or the text, tokenizer or checkpoint is not usable.
        Interrupted: SIGINT or SIGTERM came; all is saved.
    """
    there = holds(run, "run")
    begun = there and not overwrite
    if begun:
        check_same_experiment(run, config)
        if is_trained(run):
            say(f"{run}: already trained ({config.training.steps} steps); nothing to do (--overwrite trains it again)")
            return

    training = config.training
    if training.threads is not None:
        torch.set_num_threads(training.threads)
    device = pick_device(training.device)
    precision, compiled = resolve_precision(training, device), resolve_compile(training, device)
    store_folder = prepare(config.data)
    prepared = read_json(store_folder / "manifest.json")
    store = open_store(store_folder, "train")
    lengths = (config.context.row_len, config.max_position)
    rows = row_source(store, *lengths)
    held_out = row_source(open_store(store_folder, "validation"), *lengths)
    validation = batch_at(held_out, config.pose, training.eval_rows, VALIDATION_SEED, 0)

    if begun and read_json(run / "manifest.json")["tokens_sha256"] != store.tokens_sha256:
        raise UserError(f"{run}: its text has changed since it was begun; choose another folder with --run DIR")

    model = build_model(olmo_model_config(config, prepared["vocab_size"], prepared["eos_id"]), training.seed).to(device)
    optimizer = build_optimizer(model, training)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())

    manifest: dict[str, Any] = {
        "kind": "run",
        "status": "running",
        "config": to_dict(config),
        "token_store": str(store_folder.resolve()),
        "tokens_sha256": store.tokens_sha256,
        "tokenizer_sha256": prepared["tokenizer_sha256"],
        "num_parameters": num_parameters,
        "device": str(device) if device.type == "cpu" else torch.cuda.get_device_name(device),
        "threads": torch.get_num_threads(),
        "precision": precision,
        "compiled": compiled,
        "environment": environment(),
    }
    if there and overwrite:  # only now that the new run is known to be possible
        say(f"deleting {run}, as --overwrite asks")
        empty_folder(run)
    latest = checkpoints.latest_checkpoint(run / "checkpoints")
    step, seconds_before = 0, 0.0
    if latest is not None:
        facts = checkpoints.restore(latest, model, optimizer)
        step, seconds_before = facts["step"], facts["seconds"]
        say(f"{run}: continuing at step {step}")
    make_folder(run)
    if not begun:
        write_json(run / "manifest.json", manifest)  # first: it makes the folder ours
    for name, content in (
        ("config.yaml", to_yaml(config)),
        ("tokenizer.json", (store_folder / "tokenizer.json").read_text(encoding="utf-8")),
    ):
        if not (run / name).is_file():
            write_text(run / name, content)
    _truncate_metrics(run / "metrics.jsonl", step)

    summed_loss = make_loss(model, device, precision)
    step_loss = torch.compile(summed_loss, dynamic=False) if compiled else summed_loss
    micro = training.micro_batch_rows or training.batch_rows
    schedule = CosWithWarmup(
        grad_clip_warmup_steps=None,
        grad_clip_warmup_factor=None,
        warmup_min_lr=0.0,
        warmup_steps=training.warmup_steps,
        alpha_f=training.final_lr_fraction,
    )
    batch_tokens = training.batch_rows * config.context.row_len
    say(
        f"{run}: {num_parameters / 1e6:.2f}M parameters, {training.steps} steps of {batch_tokens} tokens, rows of "
        f"{config.context.row_len} (which {len(rows.documents):,} of {store.num_documents:,} documents hold) with "
        f"positions below {config.max_position}, {device.type}, {precision}, "
        f"{'compiled' if compiled else 'not compiled'}"
    )

    began = time.monotonic()
    begun_at = step

    def save() -> None:
        seconds = seconds_before + time.monotonic() - began
        facts = {"tokens": step * batch_tokens, "seconds": round(seconds, 3)}
        checkpoints.save_checkpoint(run / "checkpoints", step, model, optimizer, facts, training.keep_checkpoints)

    validation_nats: Optional[float] = None
    model.train()
    with (
        _deterministic(device),
        _stop_signals() as caught,
        open(run / "metrics.jsonl", "a", encoding="utf-8", buffering=1) as metrics,
        tqdm(total=training.steps, initial=step, desc="train", unit=" steps", disable=None) as bar,
    ):
        while step < training.steps:
            learning_rate = schedule.get_lr(training.learning_rate, step, training.steps)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
            batch = batch_at(rows, config.pose, training.batch_rows, training.seed, step)
            losses = []
            for first in range(0, training.batch_rows, micro):
                part = slice(first, first + micro)
                fields = (batch.tokens_BT[part], batch.positions_BT[part], batch.targets_BT[part])
                loss = step_loss(*(field.to(device, non_blocking=True) for field in fields)) / batch_tokens
                loss.backward()
                losses.append(loss.detach())
            grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), training.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            last = step == training.steps

            evaluated = step % training.eval_every == 0 or last
            if evaluated:
                model.eval()
                validation_nats = _validation_loss(summed_loss, validation, micro, device)
                model.train()
            if evaluated or step % training.log_every == 0:
                seconds = time.monotonic() - began
                loss_nats = float(torch.stack(losses).sum())
                if not math.isfinite(loss_nats):
                    raise UserError(
                        f"{run}: the loss is {loss_nats} at step {step}; lower training.learning_rate and train again"
                    )
                rate = (step - begun_at) * batch_tokens / seconds
                record: dict[str, Any] = {
                    "step": step,
                    "loss_nats": loss_nats,
                    "validation_loss_nats": validation_nats if evaluated else None,
                    "learning_rate": learning_rate,
                    "grad_norm": float(grad_norm),
                    "tokens": step * batch_tokens,
                    "tokens_per_second": round(rate),
                    "seconds": round(seconds_before + seconds, 3),
                }
                metrics.write(json.dumps(record) + "\n")
                shown = {"loss": f"{loss_nats:.3f}", "tokens/s": f"{rate:,.0f}"}
                bar.set_postfix(shown if validation_nats is None else {**shown, "validation": f"{validation_nats:.3f}"})
            bar.update()
            if step % training.checkpoint_every == 0 or last or caught:
                save()
            if caught and not last:
                raise Interrupted(
                    f"{run}: stopped and saved at step {step}; the same command, without --overwrite, goes on from there"
                )

    if validation_nats is None:  # killed between the last checkpoint and the manifest
        model.eval()
        validation_nats = _validation_loss(summed_loss, validation, micro, device)
    manifest.update(
        status="complete",
        steps=step,
        tokens=step * batch_tokens,
        validation_loss_nats=validation_nats,
        seconds=round(seconds_before + time.monotonic() - began, 3),
    )
    write_json(run / "manifest.json", manifest)
    remove_leftovers(run)
    say(f"{run}: trained {step} steps, {step * batch_tokens:,} tokens; validation loss {validation_nats:.3f} nats")
