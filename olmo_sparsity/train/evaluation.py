"""Evaluation of a model on held-out documents while it trains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn.functional as F

from olmo_sparsity.train.batches import Batch
from olmo_sparsity.train.processes import all_reduce_sum
from olmo_sparsity.train.step import SummedLoss, TrainState

DIGITS = 6  # of the losses by position, of which there are many


@dataclass(frozen=True)
class EvaluationRows:
    """This process's share of the held-out rows that a run is evaluated on.

    Attributes:
        like_training: rows of ``train_len`` tokens, drawn as training rows are.
        consecutive: rows of ``full_len`` consecutive tokens at consecutive positions; None if no document is so long.
        num_bos: the number of tokens in front of every row, 1 or 0.
    """

    like_training: Batch
    consecutive: Optional[Batch]
    num_bos: int


@dataclass(frozen=True)
class Evaluation:
    """Mean losses on held-out documents, in nats per target. The last three are of consecutive rows, None without them.

    Attributes:
        validation_loss_nats: of rows drawn as training rows are.
        loss_within_train_len_nats: of the first ``train_len`` positions.
        loss_beyond_train_len_nats: of the later positions; None if there are none.
        loss_by_position_nats: of each position.
    """

    validation_loss_nats: float
    loss_within_train_len_nats: Optional[float] = None
    loss_beyond_train_len_nats: Optional[float] = None
    loss_by_position_nats: Optional[list[float]] = None


def _passes(batch: Batch, *, rows_per_pass: int, device: torch.device) -> Iterator[tuple[torch.Tensor, ...]]:
    for begin in range(0, len(batch.tokens_BT), rows_per_pass):
        yield tuple(field[begin : begin + rows_per_pass].to(device) for field in batch.fields)


@torch.no_grad()
def _summed_nats(loss: SummedLoss, batch: Batch, *, rows_per_pass: int, device: torch.device) -> torch.Tensor:
    """Return the cross-entropy of all trained targets of a batch, in nats, summed; fp64 scalar on the CPU."""
    parts = [loss(*fields)[1].double() for fields in _passes(batch, rows_per_pass=rows_per_pass, device=device)]
    return torch.stack(parts).sum().cpu()


@torch.no_grad()
def _nats_by_position(loss: SummedLoss, batch: Batch, *, rows_per_pass: int, device: torch.device) -> torch.Tensor:
    """Return the cross-entropy at each place of the rows, in nats, summed over the rows; fp64 [T] on the CPU."""
    parts_T = []
    for tokens_bT, positions_bT, targets_bT in _passes(batch, rows_per_pass=rows_per_pass, device=device):
        logits_bTV = loss.logits(tokens_bT, positions_bT)
        nats = F.cross_entropy(logits_bTV.flatten(0, 1), targets_bT.flatten(), reduction="none")
        parts_T.append(nats.view_as(targets_bT).double().sum(dim=0))
    return torch.stack(parts_T).sum(dim=0).cpu()


def _mean(values: torch.Tensor) -> Optional[float]:
    return float(values.mean()) if values.numel() else None


def evaluate(train_state: TrainState, rows: EvaluationRows) -> Evaluation:
    """Return the losses of the model on held-out rows. All processes must call it; all get the same result.

    The model must be in training mode, and is again when the function returns.
    """
    loss, process, device = train_state.loss, train_state.process, train_state.device
    rows_per_pass = train_state.rows_per_pass
    loss.eval()
    nats = all_reduce_sum(_summed_nats(loss, rows.like_training, rows_per_pass=rows_per_pass, device=device), process)
    validation_loss_nats = float(nats) / rows.like_training.num_targets
    if rows.consecutive is None:
        loss.train()
        return Evaluation(validation_loss_nats)
    # These rows are longer than training rows. Take fewer at a time: no more tokens than are known to fit on the device.
    rows_per_pass = max(1, rows_per_pass * rows.like_training.tokens_BT.shape[1] // rows.consecutive.tokens_BT.shape[1])
    nats_T = all_reduce_sum(
        _nats_by_position(loss, rows.consecutive, rows_per_pass=rows_per_pass, device=device), process
    )
    nats_T = nats_T[rows.num_bos :]
    losses_T = nats_T * nats_T.numel() / rows.consecutive.num_targets
    train_len = rows.like_training.tokens_BT.shape[1] - rows.num_bos
    loss.train()
    return Evaluation(
        validation_loss_nats,
        loss_within_train_len_nats=_mean(losses_T[:train_len]),
        loss_beyond_train_len_nats=_mean(losses_T[train_len:]),
        loss_by_position_nats=[round(nats, DIGITS) for nats in losses_T.tolist()],
    )
