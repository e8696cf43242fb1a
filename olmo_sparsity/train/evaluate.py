"""The losses of a model on held-out documents while it trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import torch
import torch.nn.functional as F

from olmo_sparsity.train.batches import Batch
from olmo_sparsity.train.parallel import all_reduce_sum
from olmo_sparsity.train.step import TrainState

DIGITS = 6  # of the losses by position, of which there are many
KEYS = (
    "validation_loss_nats",  # of rows drawn as training rows are
    "loss_within_train_len_nats",  # of consecutive tokens: the first train_len positions
    "loss_beyond_train_len_nats",  # the later positions
    "loss_by_position_nats",
)


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
