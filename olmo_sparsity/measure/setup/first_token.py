"""Compares both choices of the first token, a BOS in front of every window and none: with which one are the losses lower?

A wrong choice that raises the loss with the local tokens alone passes for a long gain, so the losses are compared with the local
tokens alone and with all tokens.
"""

from __future__ import annotations

import math
from typing import Optional

import numpy as np
import torch

from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import short_log_probs, surprisal
from olmo_sparsity.model.causal_model import CausalModel
from olmo_sparsity.records.measured import Anchor, AnchorCheck, AnchorChoice, ComparedLength

CLEAR = 3.0  # standard errors of a difference that tells which loss is lower


@torch.no_grad()
def compare_first_tokens(
    model: CausalModel,
    tokens_WT: torch.Tensor,
    document_W: np.ndarray,
    *,
    bos: Anchor,
    chosen: Optional[int],
    local_len: int,
    batch_tokens: int = 4096,
) -> AnchorCheck:
    """Return the mean losses of windows with and without a BOS, and which are clearly lower.

    Args:
        model: the model.
        tokens_WT: windows with their targets, on the model's device.
        document_W: the document of each window, any integers; windows of one document are not independent.
        bos: the token to compare with none.
        chosen: the token with which the model is measured, or None.
        local_len: L, local tokens of a window.
        batch_tokens: largest number of tokens in one forward pass.
    """
    lengths: dict[ComparedLength, int] = {"short": local_len, "long": tokens_WT.shape[1] - 1}
    anchor_ids: dict[AnchorChoice, Optional[int]] = {"bos": bos.id, "none": None}
    losses: dict[ComparedLength, dict[AnchorChoice, np.ndarray]] = {length: {} for length in lengths}
    for length, local in lengths.items():
        for choice, anchor_id in anchor_ids.items():
            evaluator = Evaluator(model, local, path="plain", batch_tokens=batch_tokens, anchor_id=anchor_id)
            log_q_WV = short_log_probs(evaluator, tokens_WT[:, :-1])
            losses[length][choice] = surprisal(log_q_WV, tokens_WT[:, -1]).double().cpu().numpy()
    difference = {length: losses_of["bos"] - losses_of["none"] for length, losses_of in losses.items()}
    error = {length: standard_error(values_W, document_W) for length, values_W in difference.items()}
    return AnchorCheck(
        chosen="none" if chosen is None else "bos",
        text=bos.text,
        num_windows=len(tokens_WT),
        loss_short_nats={choice: float(losses_W.mean()) for choice, losses_W in losses["short"].items()},
        loss_long_nats={choice: float(losses_W.mean()) for choice, losses_W in losses["long"].items()},
        standard_error_short_nats=error["short"],
        standard_error_nats=error["long"],
        lower_with={
            length: lower_choice(float(values_W.mean()), error[length]) for length, values_W in difference.items()
        },
    )


def standard_error(values_W: np.ndarray, document_W: np.ndarray) -> Optional[float]:
    """Return the standard error of a mean over windows, from the spread between documents; None: there is one document."""
    _, which_W = np.unique(document_W, return_inverse=True)
    sums_G = np.bincount(which_W, weights=values_W - values_W.mean())
    if len(sums_G) < 2:
        return None
    return math.sqrt(len(sums_G) / (len(sums_G) - 1) * float((sums_G**2).sum())) / len(values_W)


def lower_choice(difference: float, error: Optional[float]) -> Optional[AnchorChoice]:
    """Return the choice whose loss is lower; None: the difference is not clear.

    Args:
        difference: mean loss with a BOS minus that without.
        error: its standard error.
    """
    if error is None or abs(difference) <= CLEAR * error:
        return None
    return "bos" if difference < 0 else "none"
