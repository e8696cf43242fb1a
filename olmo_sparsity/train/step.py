"""One step of training and one evaluation: loss, optimizer, learning rates, precision and compilation."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Optional

import torch
import torch.nn.functional as F
from olmo.config import OptimizerConfig, SchedulerConfig, SchedulerType, TrainConfig
from olmo.optim import Scheduler, build_scheduler, get_param_groups
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from olmo_sparsity.config import TrainingConfig
from olmo_sparsity.model.devices import has_bf16_units
from olmo_sparsity.model.olmo import OLMoWithPositions
from olmo_sparsity.train.batches import IGNORE_INDEX, Batch
from olmo_sparsity.train.parallel import all_reduce_sum, gradient_accumulation, num_processes, shard_model

DIGITS = 6  # of the losses by position, of which there are many
KEYS = (
    "validation_loss_nats",  # of rows drawn as training rows are
    "loss_within_train_len_nats",  # of consecutive tokens: the first train_len positions
    "loss_beyond_train_len_nats",  # the later positions
    "loss_by_position_nats",
)
BETAS, WEIGHT_DECAY, MAX_GRAD_NORM = (0.9, 0.95), 0.1, 1.0  # of AdamW; norms are not decayed

# Deterministic matrix products on a GPU need it; cuBLAS reads it at the first product of the process.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def resolve_precision(training: TrainingConfig, device: torch.device) -> str:
    """``bf16`` or ``fp32``: as configured; ``auto`` is bf16 if the device has units for it."""
    if training.precision == "auto":
        return "bf16" if has_bf16_units(device) else "fp32"
    return training.precision


def resolve_compile(training: TrainingConfig, device: torch.device) -> bool:
    """Whether the step is compiled: as configured; ``auto`` compiles if there is a compiler for the device."""
    if training.compile == "auto":
        return device.type == "cuda" or shutil.which(os.environ.get("CXX", "g++")) is not None  # torch's, on a CPU
    return training.compile == "always"


class SummedLoss(nn.Module):
    """The loss of a batch, summed over the trained targets.

    The objective is the cross-entropy plus ``z_loss`` times the square of log Z, where Z is the normalizer of the softmax.
    The second term keeps the logits from drifting (PaLM: Chowdhery et al. 2022, arXiv 2204.02311, section 5). Where a batch has
    the position IDs of its targets, their cross-entropy is added. ``few_targets``: compute only the logits of trained targets.
    """

    def __init__(self, model: OLMoWithPositions, precision: str, *, z_loss: float = 0.0, few_targets: bool = False):
        super().__init__()
        self.model = model
        self._bf16, self._z_loss, self._few_targets = precision == "bf16", z_loss, few_targets

    def forward(
        self,
        tokens_BT: torch.Tensor,
        positions_BT: torch.Tensor,
        targets_BT: torch.Tensor,
        target_positions_BT: Optional[torch.Tensor] = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Objective, and cross-entropy of the tokens in nats; both summed over the trained targets, fp32 scalars."""
        targets_N = targets_BT.flatten()
        if target_positions_BT is not None:
            with self._autocast(tokens_BT):
                logits, logits_BTI = self.model.logits_and_position_logits(tokens_BT, positions_BT)
        elif self._few_targets:
            is_target_BT = targets_BT != IGNORE_INDEX
            targets_N = targets_BT[is_target_BT]
            with self._autocast(tokens_BT):
                logits = self.model.logits_at(tokens_BT, positions_BT, is_target_BT)
        else:
            logits = self.logits(tokens_BT, positions_BT)
        logits_NV = logits.float().flatten(0, -2)
        objective = nats = F.cross_entropy(logits_NV, targets_N, ignore_index=IGNORE_INDEX, reduction="sum")
        if self._z_loss:
            squares_N = logits_NV.logsumexp(dim=-1).square()
            objective = nats + self._z_loss * (squares_N * (targets_N != IGNORE_INDEX)).sum()
        if target_positions_BT is not None:
            logits_NI, ids_N = logits_BTI.float().flatten(0, 1), target_positions_BT.flatten()
            objective = objective + F.cross_entropy(logits_NI, ids_N, ignore_index=IGNORE_INDEX, reduction="sum")
        return objective, nats

    def logits(self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor) -> torch.Tensor:
        """Logits, fp32 [B, T, V], computed in the precision of training."""
        with self._autocast(tokens_BT):
            return self.model(tokens_BT, positions_BT).float()

    def _autocast(self, tokens_BT: torch.Tensor) -> torch.autocast:
        return torch.autocast(tokens_BT.device.type, torch.bfloat16, enabled=self._bf16)


def build_optimizer(model: OLMoWithPositions, training: TrainingConfig) -> torch.optim.AdamW:
    """Torch's fused AdamW with OLMo's parameter groups: no weight decay on the scales of norms."""
    groups = get_param_groups(TrainConfig(optimizer=OptimizerConfig(decay_embeddings=True)), model)
    plain = [{key: group[key] for key in ("params", "weight_decay") if key in group} for group in groups]
    return torch.optim.AdamW(plain, lr=training.learning_rate, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True)


def build_schedule(training: TrainingConfig) -> Scheduler:
    """OLMo's learning rate scheduler."""
    name, warmup, final = SchedulerType(training.scheduler), training.warmup_steps, training.final_lr_fraction
    settings = SchedulerConfig(name=name, t_warmup=warmup, alpha_f=final, warmup_min_lr=0.0)
    return build_scheduler(TrainConfig(scheduler=settings))


@dataclass(frozen=True)
class TrainState:
    """A model in training, in this process."""

    model: OLMoWithPositions  # under FSDP2, this process's share of it
    optimizer: torch.optim.AdamW
    loss: SummedLoss  # neither wrapped in DDP nor compiled: for evaluation
    replicated: nn.Module  # the loss, wrapped in DDP if several processes each hold the whole model
    step_loss: Callable[..., tuple[torch.Tensor, torch.Tensor]]  # ``replicated``, compiled if training is compiled
    rows_per_pass: int  # of a forward and backward pass; a step accumulates the gradients of several
    device: torch.device
    precision: str  # bf16 or fp32
    is_compiled: bool


def build_train_state(
    model: OLMoWithPositions, training: TrainingConfig, device: torch.device, *, few_targets: bool = False
) -> TrainState:
    """Move a new model (changed in place) to its device, shard or replicate it, compile it, and build its optimizer."""
    precision, is_compiled = resolve_precision(training, device), resolve_compile(training, device)
    is_sharded = training.parallel == "fsdp" and num_processes() > 1
    if is_sharded:
        for block in model.transformer.blocks if is_compiled else ():  # weights are gathered between blocks
            block.compile(dynamic=False)
        shard_model(model, device)
    else:
        model.to(device)
    loss = SummedLoss(model, precision, z_loss=training.z_loss, few_targets=few_targets)
    replicated: nn.Module = loss
    if num_processes() > 1 and not is_sharded:
        replicated = DistributedDataParallel(loss, forward_sync_buffers=False, gradient_as_bucket_view=True)
    step_loss = torch.compile(replicated, dynamic=False) if is_compiled and not is_sharded else replicated
    optimizer = build_optimizer(model, training)  # after sharding, which replaces the parameters
    rows_per_pass = training.micro_batch_rows or training.batch_rows
    return TrainState(model, optimizer, loss, replicated, step_loss, rows_per_pass, device, precision, is_compiled)


def train_step(state: TrainState, batch: Batch, *, learning_rate: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Take one optimizer step on this process's share of a batch.

    Returns the cross-entropy of the share, summed, in nats, and the gradient norm of the batch before clipping: fp32 scalars.
    """
    for group in state.optimizer.param_groups:
        group["lr"] = learning_rate
    # DDP and FSDP2 average the gradients of the processes; this factor makes a sum of it.
    divisor = batch.num_targets / num_processes()
    num_rows, losses = len(batch.tokens_BT), []
    for first in range(0, num_rows, state.rows_per_pass):
        rows = slice(first, first + state.rows_per_pass)
        fields_bT = [field_BT[rows].to(state.device, non_blocking=True) for field_BT in batch.fields]
        with gradient_accumulation(state.replicated, state.model, last=rows.stop >= num_rows):
            objective, nats = state.step_loss(*fields_bT)
            (objective / divisor).backward()
        losses.append(nats.detach())
    grad_norm = torch.nn.utils.clip_grad_norm_(state.model.parameters(), MAX_GRAD_NORM)
    state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    return torch.stack(losses).sum(), grad_norm.full_tensor() if isinstance(grad_norm, DTensor) else grad_norm


@torch.no_grad()
def evaluate(state: TrainState, like_training: Batch, consecutive: Optional[Batch], *, num_bos: int) -> dict[str, Any]:
    """Return mean losses in nats per target, by ``KEYS``; None without rows. All processes must call it; all get the same.

    The batches are this process's share; a row begins with ``num_bos`` tokens. The model is in training mode before and after.
    """

    def nats_by_position(tokens_BT: torch.Tensor, positions_BT: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
        logits_BTV = state.loss.logits(tokens_BT, positions_BT)
        nats = F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), reduction="none")
        return nats.view_as(targets_BT).double().sum(dim=0)

    state.loss.eval()
    width, losses = like_training.tokens_BT.shape[1], dict.fromkeys(KEYS)
    nats = _sum(state, like_training, state.rows_per_pass, lambda *fields: state.loss(*fields)[1].double())
    losses[KEYS[0]] = float(nats) / like_training.num_targets
    if consecutive is not None:
        # These rows are longer than training rows. Take fewer at a time: no more tokens than are known to fit on the device.
        rows_per_pass = max(1, state.rows_per_pass * width // consecutive.tokens_BT.shape[1])
        nats_T = _sum(state, consecutive, rows_per_pass, nats_by_position)[num_bos:]
        losses_T = nats_T * nats_T.numel() / consecutive.num_targets
        within_T, beyond_T = losses_T[: width - num_bos], losses_T[width - num_bos :]
        means = [float(part_T.mean()) if part_T.numel() else None for part_T in (within_T, beyond_T)]
        losses |= zip(KEYS[1:], [*means, [round(nats, DIGITS) for nats in losses_T.tolist()]], strict=True)
    state.loss.train()
    return losses


def _sum(state: TrainState, batch: Batch, rows_per_pass: int, nats: Callable[..., torch.Tensor]) -> torch.Tensor:
    """Return the sum of what ``nats`` returns for the rows of a batch, over all processes, on the CPU."""
    rows = [slice(begin, begin + rows_per_pass) for begin in range(0, len(batch.tokens_BT), rows_per_pass)]
    parts = [nats(*(field[some].to(state.device) for field in batch.fields)) for some in rows]
    return all_reduce_sum(torch.stack(parts).sum(dim=0).cpu())


@contextmanager
def deterministic() -> Iterator[None]:
    """Allow only deterministic kernels within the context; with ``warn_only``, attention on a GPU would take another one."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # it only takes time
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
