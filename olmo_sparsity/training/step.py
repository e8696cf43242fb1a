"""What a training step is made of: the loss, the optimizer, the learning rate, and how they are computed.

Legend: B rows, T tokens of a row, V vocabulary.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from olmo.config import OptimizerConfig, SchedulerConfig, SchedulerType, TrainConfig
from olmo.optim import Scheduler, build_scheduler, get_param_groups
from torch import nn

from olmo_sparsity.config import TrainingConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.model.devices import supports_bf16
from olmo_sparsity.model.olmo import OLMoWithPositions
from olmo_sparsity.torchrun import ProcessInfo
from olmo_sparsity.training.batches import IGNORE_INDEX, Batch
from olmo_sparsity.training.processes import full_tensor, gradient_accumulation, replicate, shard_model, share_of_rows

# What deterministic products on a GPU need. Read once, at the first product, which may be long before training begins.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


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


class SummedLoss(nn.Module):
    """(tokens_BT, positions_BT, targets_BT) -> (what is minimised, cross-entropy in nats), each summed over the targets
    that are trained, fp32 scalars.

    The first is the second plus ``z_loss`` times the square of log Z, the logarithm of the softmax's normaliser, which
    keeps logits from drifting (Chowdhery et al. 2022, arXiv 2204.02311, section 5; OLMo's ``softmax_auxiliary_loss``).
    """

    def __init__(self, model: OLMoWithPositions, precision: str, z_loss: float = 0.0):
        super().__init__()
        self.model = model
        self._bf16 = precision == "bf16"
        self._z_loss = z_loss

    def forward(
        self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor, targets_BT: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits_BTV = self.logits(tokens_BT, positions_BT)
        targets = targets_BT.flatten()
        nats = F.cross_entropy(logits_BTV.flatten(0, 1), targets, ignore_index=IGNORE_INDEX, reduction="sum")
        if self._z_loss == 0:
            return nats, nats
        squares = logits_BTV.logsumexp(dim=-1).flatten().square()
        return nats + self._z_loss * (squares * (targets != IGNORE_INDEX)).sum(), nats

    def logits(self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor) -> torch.Tensor:
        """Logits, fp32 [B, T, V], computed in the precision of training."""
        with torch.autocast(tokens_BT.device.type, torch.bfloat16, enabled=self._bf16):
            return self.model(tokens_BT, positions_BT).float()


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


def build_schedule(training: TrainingConfig) -> Scheduler:
    """OLMo's scheduler of the learning rate."""
    settings = SchedulerConfig(
        name=SchedulerType(training.scheduler),
        t_warmup=training.warmup_steps,
        alpha_f=training.final_lr_fraction,
        warmup_min_lr=0.0,
    )
    return build_scheduler(TrainConfig(scheduler=settings))


@dataclass(frozen=True)
class TrainState:
    """A model that is being trained in this process.

    ``loss`` is the model and its loss, ``replicated`` the same as several processes share it, ``step_loss`` that,
    compiled where it is to be; ``rows_at_once`` a pass takes.
    """

    model: OLMoWithPositions
    optimizer: torch.optim.AdamW
    loss: SummedLoss
    replicated: nn.Module
    step_loss: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    rows_at_once: int
    place: ProcessInfo
    device: torch.device


def build_train_state(
    model: OLMoWithPositions,
    training: TrainingConfig,
    precision: str,
    compiled: bool,
    place: ProcessInfo,
    device: torch.device,
) -> TrainState:
    """Puts a fresh model, on the CPU, into place for training.

    Raises:
        UserError: the rows of a batch cannot be shared as the configuration says.
    """
    share = share_of_rows(training.batch_rows, place, "training.batch_rows")
    num_rows = share.stop - share.start
    rows_at_once = min(training.micro_batch_rows or num_rows, num_rows)
    if num_rows % rows_at_once:
        raise UserError(
            f"training.micro_batch_rows = {rows_at_once}: must divide the {num_rows} rows that each of {place.count} "
            "processes has"
        )
    sharded = training.parallel == "fsdp" and place.count > 1
    if sharded:
        if compiled:  # layer by layer: weights are gathered between them
            for block in model.transformer.blocks:
                block.compile(dynamic=False)
        shard_model(model, device)
    else:
        model.to(device)
    loss = SummedLoss(model, precision, training.z_loss)
    replicated = replicate(loss, place, sharded)
    step_loss = torch.compile(replicated, dynamic=False) if compiled and not sharded else replicated
    optimizer = build_optimizer(model, training)  # of the weights as they lie now
    return TrainState(model, optimizer, loss, replicated, step_loss, rows_at_once, place, device)


def train_step(
    learner: TrainState, batch: Batch, learning_rate: float, max_grad_norm: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """One optimizer step on this process's share of a batch.

    Returns:
        (cross-entropy of the share, nats, summed; norm of the gradient of the whole batch before clipping), scalars.
    """
    for group in learner.optimizer.param_groups:
        group["lr"] = learning_rate
    # DDP and FSDP2 take the mean over processes, where the sum is wanted: hence the count.
    divisor = batch.num_targets / learner.place.count
    num_rows, nats = len(batch.tokens_BT), []
    for first in range(0, num_rows, learner.rows_at_once):
        part = slice(first, first + learner.rows_at_once)
        fields = (batch.tokens_BT[part], batch.positions_BT[part], batch.targets_BT[part])
        with gradient_accumulation(learner.replicated, learner.model, last=part.stop == num_rows):
            minimised, loss = learner.step_loss(*(field.to(learner.device, non_blocking=True) for field in fields))
            (minimised / divisor).backward()
        nats.append(loss.detach())
    grad_norm = full_tensor(torch.nn.utils.clip_grad_norm_(learner.model.parameters(), max_grad_norm))
    learner.optimizer.step()
    learner.optimizer.zero_grad(set_to_none=True)
    return torch.stack(nats).sum(), grad_norm


@contextmanager
def deterministic() -> Iterator[None]:
    """Only kernels that give the same bits every time; the compiled backward of the embedding has others, which add in
    the order in which threads arrive. An operation that has none raises: with ``warn_only`` attention on a GPU would use
    the other kernels, too."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
