"""Windows and visible sets -> the loss of the target, in nats, fp32; and what else selectors ask of a model.

Legend: W windows, T tokens of a window (``full_len``), M long-range tokens, S size of a visible set, N sets of a
window, V vocabulary.

``loss(S)`` is the cross-entropy of the target when every token may attend to the local tokens and to S, and to nothing
else. Two paths give it, and agree to 1e-5 nats in fp32: ``compact`` runs the visible tokens alone, at their position
IDs; ``masked`` runs all of them under an attention mask, and is the definition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional

import torch

from olmo_sparsity.model import CausalModel
from olmo_sparsity.visibility import compact_rows, visible_mask

GATE = 1e-10  # stands for 0: small enough that a derivative at it is that at 0, large enough for fp32

KEPT_ACTIVATIONS = 16  # a pass that is differentiated keeps so many times what a forward pass holds, or more


@dataclass(frozen=True)
class Evaluator:
    """A model, and how it is run: ``path`` is ``compact`` or ``masked``; at most ``batch_tokens`` tokens at once."""

    model: CausalModel
    local_len: int
    path: str = "compact"
    batch_tokens: int = 32768

    def batches(self, num_rows: int, row_len: int) -> Iterator[slice]:
        """Slices of ``num_rows`` rows of ``row_len`` tokens, each slice a forward pass."""
        rows_at_once = max(1, self.batch_tokens // row_len)
        for begin in range(0, num_rows, rows_at_once):
            yield slice(begin, begin + rows_at_once)

    def row_len(self, full_len: int, set_size: int) -> int:
        """Tokens that are run for one visible set."""
        return self.local_len + set_size if self.path == "compact" else full_len


def _positions(tokens_WT: torch.Tensor) -> torch.Tensor:
    return torch.arange(tokens_WT.shape[1], device=tokens_WT.device).expand_as(tokens_WT)


def _one_pass(evaluator: Evaluator, tokens_WT: torch.Tensor, visible_WS: torch.Tensor) -> torch.Tensor:
    if evaluator.path == "compact":
        logits = evaluator.model.last_logits(*compact_rows(tokens_WT, visible_WS, evaluator.local_len))
    else:
        mask = visible_mask(visible_WS, tokens_WT.shape[1], evaluator.local_len)
        logits = evaluator.model.last_logits_masked(tokens_WT, _positions(tokens_WT), mask)
    return logits.float().log_softmax(dim=-1)


@torch.inference_mode()
def log_probs(evaluator: Evaluator, tokens_WT: torch.Tensor, visible_WS: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of the next token under one visible set a window, nats, fp32 [W, V]."""
    num_windows, full_len = tokens_WT.shape
    row_len = evaluator.row_len(full_len, visible_WS.shape[1])
    passes = [_one_pass(evaluator, tokens_WT[at], visible_WS[at]) for at in evaluator.batches(num_windows, row_len)]
    return torch.cat(passes)


@torch.inference_mode()
def target_losses(
    evaluator: Evaluator,
    tokens_WT: torch.Tensor,
    targets_W: torch.Tensor,
    visible_WNS: torch.Tensor,
    reference_WV: Optional[torch.Tensor] = None,
) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
    """The loss of each window's target under each of its N visible sets.

    Args:
        evaluator: the model.
        tokens_WT: int64, the windows, without their targets.
        targets_W: int64.
        visible_WNS: int64, N sets of S long-range positions for each window; S may be 0.
        reference_WV: log-probabilities p of each window; adds KL(p, prediction under the set).

    Returns:
        (losses in nats, fp32 [W, N]; divergences in nats, fp32 [W, N], or None without a reference).
    """
    num_windows, num_sets, set_size = visible_WNS.shape
    visible = visible_WNS.reshape(num_windows * num_sets, set_size)
    window_of_row = torch.arange(num_windows, device=tokens_WT.device).repeat_interleave(num_sets)
    losses, divergences = [], []
    for at in evaluator.batches(len(visible), evaluator.row_len(tokens_WT.shape[1], set_size)):
        windows = window_of_row[at]
        log_q = _one_pass(evaluator, tokens_WT[windows], visible[at])
        losses.append(-log_q.gather(1, targets_W[windows, None])[:, 0])
        if reference_WV is not None:
            log_p = reference_WV[windows]
            divergences.append((log_p.exp() * (log_p - log_q)).sum(dim=1))
    shape = (num_windows, num_sets)
    return torch.cat(losses).view(shape), torch.cat(divergences).view(shape) if divergences else None


def losses_of_masks(
    evaluator: Evaluator, tokens_WT: torch.Tensor, targets_W: torch.Tensor, keep_WNM: torch.Tensor
) -> torch.Tensor:
    """As ``target_losses``, for sets of any sizes, given as bool masks over the long-range positions; fp32 [W, N]."""
    num_windows, num_sets, num_long_range = keep_WNM.shape
    keep = keep_WNM.reshape(-1, num_long_range)
    sizes = keep.sum(dim=1)
    losses = torch.empty(len(keep), device=tokens_WT.device)
    for size in sizes.unique().tolist():  # rows of one size make a batch without padding
        rows = (sizes == size).nonzero()[:, 0]
        windows = rows // num_sets
        visible = keep[rows].nonzero()[:, 1].view(len(rows), 1, size)
        losses[rows] = target_losses(evaluator, tokens_WT[windows], targets_W[windows], visible)[0][:, 0]
    return losses.view(num_windows, num_sets)


def gate_gradients(evaluator: Evaluator, tokens_WT: torch.Tensor, targets_W: torch.Tensor) -> torch.Tensor:
    """Derivative of the loss with respect to a gate on each long-range position, at gate 0; fp32 [W, M].

    The gate of a token multiplies the weight (before normalisation) with which other tokens attend to it, in every
    layer and head; gate 0 hides it. Always by the masked path: one forward and one backward pass over all tokens.
    """
    num_windows, full_len = tokens_WT.shape
    num_long_range = full_len - evaluator.local_len
    gradients = []
    for at in evaluator.batches(num_windows, full_len * KEPT_ACTIVATIONS):
        tokens, targets = tokens_WT[at], targets_W[at]
        log_gate = torch.zeros(tokens.shape, device=tokens.device)
        log_gate[:, :num_long_range] = torch.log(torch.tensor(GATE))
        with torch.enable_grad():
            log_gate.requires_grad_()
            logits = evaluator.model.last_logits_gated(tokens, _positions(tokens), log_gate)
            loss = torch.nn.functional.cross_entropy(logits.float(), targets, reduction="sum")
            (gradient,) = torch.autograd.grad(loss, log_gate)
        gradients.append(gradient[:, :num_long_range] / GATE)  # d/d gate = (d/d log gate) / gate
    return torch.cat(gradients)


@torch.inference_mode()
def long_range_attention(evaluator: Evaluator, tokens_WT: torch.Tensor) -> torch.Tensor:
    """Attention that the last token pays to each long-range one under full context, mean over heads and layers; fp32
    [W, M]."""
    num_windows, full_len = tokens_WT.shape
    parts = [
        evaluator.model.last_attention(tokens_WT[at], _positions(tokens_WT[at]))
        for at in evaluator.batches(num_windows, full_len)
    ]
    return torch.cat(parts)[:, : full_len - evaluator.local_len]
