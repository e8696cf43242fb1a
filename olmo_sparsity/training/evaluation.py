"""Losses of a model on held-out documents while it trains.

Legend: B rows, T tokens of a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Optional

import torch
import torch.nn.functional as F

from olmo_sparsity.torchrun import ProcessInfo
from olmo_sparsity.training.batches import Batch
from olmo_sparsity.training.processes import all_reduce_sum
from olmo_sparsity.training.step import SummedLoss

Record = dict[str, Any]
# What is seen of a model at intervals. The first is of rows such as those of training; the others are of ``full_len``
# consecutive tokens: their mean over the positions that one training row spans, over those beyond, and each.
EVALUATED = (
    "validation_loss_nats",
    "loss_within_train_len_nats",
    "loss_beyond_train_len_nats",
    "loss_by_position_nats",
)
DIGITS = 6  # of the losses by position, of which there are many


def _passes(batch: Batch, rows_at_once: int, device: torch.device) -> Iterator[tuple[torch.Tensor, ...]]:
    fields = (batch.tokens_BT, batch.positions_BT, batch.targets_BT)
    for begin in range(0, len(batch.tokens_BT), rows_at_once):
        yield tuple(field[begin : begin + rows_at_once].to(device) for field in fields)


@torch.no_grad()
def _summed_nats(loss: SummedLoss, batch: Batch, rows_at_once: int, device: torch.device) -> torch.Tensor:
    """Cross-entropy of all trained targets of a batch, nats, summed; fp64 scalar on the CPU."""
    parts = [loss(*fields)[1].double() for fields in _passes(batch, rows_at_once, device)]
    return torch.stack(parts).sum().cpu()


@torch.no_grad()
def _nats_by_position(loss: SummedLoss, batch: Batch, rows_at_once: int, device: torch.device) -> torch.Tensor:
    """Cross-entropy of each place's targets, nats, summed over the rows of a batch; fp64 [T] on the CPU."""
    parts = []
    for tokens_BT, positions_BT, targets_BT in _passes(batch, rows_at_once, device):
        logits = loss.logits(tokens_BT, positions_BT)
        nats = F.cross_entropy(logits.flatten(0, 1), targets_BT.flatten(), reduction="none")
        parts.append(nats.view_as(targets_BT).double().sum(dim=0))
    return torch.stack(parts).sum(dim=0).cpu()


def _mean(values: torch.Tensor) -> Optional[float]:
    return float(values.mean()) if values.numel() else None


def evaluate(
    loss: SummedLoss,
    validation: Batch,
    by_position: Optional[Batch],
    train_len: int,
    rows_at_once: int,
    device: torch.device,
    place: ProcessInfo,
) -> Record:
    """Losses on held-out documents, nats a target.

    Args:
        loss: the model, and how it is computed; left in training mode.
        validation: this process's share of rows such as those of training.
        by_position: its share of rows of consecutive tokens at positions 0, 1, ...; None where there are none.
        train_len: tokens of a training row.
        rows_at_once: training rows of a forward pass; of longer ones, as many as hold no more tokens.
        device: of the model.
        place: of this process.
    """
    loss.eval()
    record: Record = dict.fromkeys(EVALUATED)
    nats = all_reduce_sum(_summed_nats(loss, validation, rows_at_once, device), place)
    record["validation_loss_nats"] = float(nats) / validation.num_targets
    if by_position is not None:
        # These rows are longer than those of training, for which the device was found large enough.
        fewer = max(1, rows_at_once * train_len // by_position.tokens_BT.shape[1])
        summed = all_reduce_sum(_nats_by_position(loss, by_position, fewer, device), place)
        losses_T = summed * summed.numel() / by_position.num_targets
        record["loss_within_train_len_nats"] = _mean(losses_T[:train_len])
        record["loss_beyond_train_len_nats"] = _mean(losses_T[train_len:])
        record["loss_by_position_nats"] = [round(nats, DIGITS) for nats in losses_T.tolist()]
    loss.train()
    return record
