"""Windows and visible sets -> the loss of the target, in nats, fp32.

Legend: W windows, T tokens of a window (``full_len``), S size of a visible set, N sets of a window, V vocabulary.

``loss(S)`` is the cross-entropy of the target when every token may attend to the local tokens and to S, and to nothing
else. Two paths give it, and agree to 1e-5 nats in fp32: ``compact`` runs the visible tokens alone, at their position
IDs; ``masked`` runs all of them under an attention mask, and is the definition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import torch

from olmo_sparsity.model import CausalModel
from olmo_sparsity.visibility import compact_rows, visible_mask


@dataclass(frozen=True)
class Evaluator:
    """A model, and how it is run: ``path`` is ``compact`` or ``masked``; at most ``batch_tokens`` tokens at once."""

    model: CausalModel
    local_len: int
    path: str = "compact"
    batch_tokens: int = 32768


@torch.inference_mode()
def log_probs(evaluator: Evaluator, tokens_WT: torch.Tensor, visible_WS: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of the next token, nats, fp32 [W, V], in one forward pass."""
    if evaluator.path == "compact":
        logits = evaluator.model.last_logits(*compact_rows(tokens_WT, visible_WS, evaluator.local_len))
    else:
        full_len = tokens_WT.shape[1]
        positions = torch.arange(full_len, device=tokens_WT.device).expand_as(tokens_WT)
        mask = visible_mask(visible_WS, full_len, evaluator.local_len)
        logits = evaluator.model.last_logits_masked(tokens_WT, positions, mask)
    return logits.float().log_softmax(dim=-1)


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
    row_len = evaluator.local_len + set_size if evaluator.path == "compact" else tokens_WT.shape[1]
    rows_at_once = max(1, evaluator.batch_tokens // row_len)
    visible = visible_WNS.reshape(num_windows * num_sets, set_size)
    window_of_row = torch.arange(num_windows, device=tokens_WT.device).repeat_interleave(num_sets)
    losses, divergences = [], []
    for begin in range(0, len(visible), rows_at_once):
        windows = window_of_row[begin : begin + rows_at_once]
        log_q = log_probs(evaluator, tokens_WT[windows], visible[begin : begin + rows_at_once])
        losses.append(-log_q.gather(1, targets_W[windows, None])[:, 0])
        if reference_WV is not None:
            log_p = reference_WV[windows]
            divergences.append((log_p.exp() * (log_p - log_q)).sum(dim=1))
    shape = (num_windows, num_sets)
    return torch.cat(losses).view(shape), torch.cat(divergences).view(shape) if divergences else None
