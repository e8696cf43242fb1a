"""The training step: loss, optimizer, learning rate schedule, precision and compilation."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn.functional as F
from olmo.config import OptimizerConfig, SchedulerConfig, SchedulerType, TrainConfig
from olmo.optim import Scheduler, build_scheduler, get_param_groups
from torch import nn

from olmo_sparsity.config import TrainingConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.model.devices import has_bf16_units
from olmo_sparsity.model.olmo import OLMoWithPositions
from olmo_sparsity.torchrun import ProcessInfo
from olmo_sparsity.train.batches import IGNORE_INDEX, Batch
from olmo_sparsity.train.processes import full_tensor, gradient_accumulation, replicate, shard_model, share_of_rows

BETAS = (0.9, 0.95)  # of AdamW
WEIGHT_DECAY = 0.1

# Deterministic matrix products on a GPU need it. cuBLAS reads it once, at the first product of the process, so it is set
# when this module is imported.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def resolve_precision(training: TrainingConfig, device: torch.device) -> str:
    """Return ``bf16`` or ``fp32``: as configured; ``auto`` is bf16 if the device supports it."""
    if training.precision != "auto":
        return training.precision
    return "bf16" if has_bf16_units(device) else "fp32"


def resolve_compile(training: TrainingConfig, device: torch.device) -> bool:
    """Return True if the step is to be compiled: as configured; ``auto`` compiles if there is a compiler for the device."""
    if training.compile != "auto":
        return training.compile == "always"
    if device.type == "cuda":
        return True
    return shutil.which(os.environ.get("CXX", "g++")) is not None  # the compiler that torch calls on a CPU


class SummedLoss(nn.Module):
    """The loss of a batch, summed over the trained targets.

    The objective is the cross-entropy plus ``z_loss`` times the square of log Z, where Z is the normalizer of the softmax.
    The second term keeps the logits from drifting (Chowdhery et al. 2022, arXiv 2204.02311, section 5; OLMo's
    ``softmax_auxiliary_loss``). Where a batch has the position IDs of its targets, the objective has their cross-entropy, too,
    times ``position_loss_weight``. With ``few_targets`` only the logits of trained targets are computed: the same loss, for less
    where the vocabulary is large and few tokens of a row have a target.
    """

    def __init__(
        self,
        model: OLMoWithPositions,
        precision: str,
        *,
        z_loss: float = 0.0,
        position_loss_weight: float = 1.0,
        few_targets: bool = False,
    ):
        super().__init__()
        self.model = model
        self._bf16 = precision == "bf16"
        self._z_loss = z_loss
        self._position_loss_weight = position_loss_weight
        self._few_targets = few_targets

    def forward(
        self,
        tokens_BT: torch.Tensor,
        positions_BT: torch.Tensor,
        targets_BT: torch.Tensor,
        target_positions_BT: Optional[torch.Tensor] = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (objective, cross-entropy of the tokens in nats), both summed over the trained targets; fp32 scalars."""
        if target_positions_BT is not None:
            return self._with_positions(tokens_BT, positions_BT, targets_BT, target_positions_BT)
        if self._few_targets:
            is_target_BT = targets_BT != IGNORE_INDEX
            with torch.autocast(tokens_BT.device.type, torch.bfloat16, enabled=self._bf16):
                logits_NV = self.model.logits_at(tokens_BT, positions_BT, is_target_BT)
            return self._of_tokens(logits_NV.float(), targets_BT[is_target_BT])
        return self._of_tokens(self.logits(tokens_BT, positions_BT).flatten(0, 1), targets_BT.flatten())

    def _with_positions(
        self,
        tokens_BT: torch.Tensor,
        positions_BT: torch.Tensor,
        targets_BT: torch.Tensor,
        target_positions_BT: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast(tokens_BT.device.type, torch.bfloat16, enabled=self._bf16):
            logits_BTV, logits_BTI = self.model.logits_and_position_logits(tokens_BT, positions_BT)
        objective, nats = self._of_tokens(logits_BTV.float().flatten(0, 1), targets_BT.flatten())
        of_positions = F.cross_entropy(
            logits_BTI.float().flatten(0, 1), target_positions_BT.flatten(), ignore_index=IGNORE_INDEX, reduction="sum"
        )
        return objective + self._position_loss_weight * of_positions, nats

    def _of_tokens(self, logits_NV: torch.Tensor, targets_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        nats = F.cross_entropy(logits_NV, targets_N, ignore_index=IGNORE_INDEX, reduction="sum")
        if self._z_loss == 0:
            return nats, nats
        squares_N = logits_NV.logsumexp(dim=-1).square()
        return nats + self._z_loss * (squares_N * (targets_N != IGNORE_INDEX)).sum(), nats

    def logits(self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor) -> torch.Tensor:
        """Return the logits, fp32 [B, T, V], computed in the precision of training."""
        with torch.autocast(tokens_BT.device.type, torch.bfloat16, enabled=self._bf16):
            return self.model(tokens_BT, positions_BT).float()


def build_optimizer(model: OLMoWithPositions, training: TrainingConfig) -> torch.optim.AdamW:
    """Return torch's fused AdamW with OLMo's parameter groups: no weight decay on the scales of norms."""
    groups = get_param_groups(TrainConfig(optimizer=OptimizerConfig(decay_embeddings=True)), model)
    plain = [{key: group[key] for key in ("params", "weight_decay") if key in group} for group in groups]
    return torch.optim.AdamW(
        plain,
        lr=training.learning_rate,
        betas=BETAS,
        weight_decay=WEIGHT_DECAY,
        fused=True,
    )


def build_schedule(training: TrainingConfig) -> Scheduler:
    """Return OLMo's learning rate scheduler."""
    settings = SchedulerConfig(
        name=SchedulerType(training.scheduler),
        t_warmup=training.warmup_steps,
        alpha_f=training.final_lr_fraction,
        warmup_min_lr=0.0,
    )
    return build_scheduler(TrainConfig(scheduler=settings))


@dataclass(frozen=True)
class TrainState:
    """A model in training, in this process.

    Attributes:
        model: the model; under FSDP2, this process's share of it.
        optimizer: of the model's weights.
        loss: the model and its loss, neither wrapped in DDP nor compiled; used for evaluation.
        replicated: the loss, wrapped in DDP if there are several processes that each hold the whole model.
        step_loss: ``replicated``, compiled if training is compiled.
        rows_per_pass: rows of a forward and backward pass; a step accumulates the gradients of several passes.
        process: this process.
        device: of the model.
    """

    model: OLMoWithPositions
    optimizer: torch.optim.AdamW
    loss: SummedLoss
    replicated: nn.Module
    step_loss: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    rows_per_pass: int
    process: ProcessInfo
    device: torch.device


def rows_per_pass_of(training: TrainingConfig, process: ProcessInfo) -> int:
    """Return how many rows of a batch a process computes in one pass.

    Raises:
        UserError: the rows cannot be divided equally among the processes, or among the passes.
    """
    share = share_of_rows(training.batch_rows, process, key="training.batch_rows")
    num_rows = share.stop - share.start
    rows_per_pass = min(training.micro_batch_rows or num_rows, num_rows)
    if num_rows % rows_per_pass:
        raise UserError(
            f"training.micro_batch_rows = {rows_per_pass}: must divide the {num_rows} rows of each of the "
            f"{process.world_size} processes"
        )
    return rows_per_pass


def build_train_state(
    model: OLMoWithPositions,
    training: TrainingConfig,
    *,
    precision: str,
    compiled: bool,
    process: ProcessInfo,
    device: torch.device,
    position_loss_weight: float = 1.0,
    few_targets: bool = False,
) -> TrainState:
    """Move a new model to its device, shard or replicate it, compile it, and build its optimizer.

    Args:
        model: on the CPU; changed in place.
        training: the configuration.
        precision: ``bf16`` or ``fp32``.
        compiled: whether to compile the step.
        process: this process.
        device: where to train.
        position_loss_weight: of ``SummedLoss``.
        few_targets: of ``SummedLoss``.

    Raises:
        UserError: the rows of a batch cannot be divided as the configuration says.
    """
    rows_per_pass = rows_per_pass_of(training, process)
    sharded = training.parallel == "fsdp" and process.world_size > 1
    if sharded:
        if compiled:  # block by block, because the weights are gathered between blocks
            for block in model.transformer.blocks:
                block.compile(dynamic=False)
        shard_model(model, device)
    else:
        model.to(device)
    loss = SummedLoss(
        model,
        precision,
        z_loss=training.z_loss,
        position_loss_weight=position_loss_weight,
        few_targets=few_targets,
    )
    replicated = replicate(loss, process, sharded=sharded)
    return TrainState(
        model=model,
        optimizer=build_optimizer(model, training),  # after sharding, which replaces the parameters
        loss=loss,
        replicated=replicated,
        step_loss=torch.compile(replicated, dynamic=False) if compiled and not sharded else replicated,
        rows_per_pass=rows_per_pass,
        process=process,
        device=device,
    )


def train_step(
    train_state: TrainState, batch: Batch, *, learning_rate: float, max_grad_norm: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Take one optimizer step on this process's share of a batch.

    Returns:
        (cross-entropy of the share in nats, summed; gradient norm of the whole batch before clipping), fp32 scalars.
    """
    for group in train_state.optimizer.param_groups:
        group["lr"] = learning_rate
    # DDP and FSDP2 average the gradients of the processes; the factor world_size makes a sum of it.
    divisor = batch.num_targets / train_state.process.world_size
    num_rows, losses = len(batch.tokens_BT), []
    for first in range(0, num_rows, train_state.rows_per_pass):
        rows = slice(first, first + train_state.rows_per_pass)
        fields_bT = [field_BT[rows].to(train_state.device, non_blocking=True) for field_BT in batch.fields]
        last = rows.stop == num_rows
        with gradient_accumulation(train_state.replicated, train_state.model, last=last):
            objective, nats = train_state.step_loss(*fields_bT)
            (objective / divisor).backward()
        losses.append(nats.detach())
    grad_norm = full_tensor(torch.nn.utils.clip_grad_norm_(train_state.model.parameters(), max_grad_norm))
    train_state.optimizer.step()
    train_state.optimizer.zero_grad(set_to_none=True)
    return torch.stack(losses).sum(), grad_norm


@contextmanager
def deterministic() -> Iterator[None]:
    """Allow only deterministic kernels within the context.

    The compiled backward pass of the embedding, for example, has a kernel that adds in the order in which threads arrive.
    An operation without a deterministic kernel raises an error; with ``warn_only``, attention on a GPU would fall back to
    a kernel that is not deterministic.
    """
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
