"""The loss of the target under a visible set, in nats, and whatever else selectors need from the model.

``loss(S)`` is the cross-entropy of the target when every token may attend to the local tokens and to S, and to nothing
else. Three paths compute it, and agree to 1e-5 nats in fp32:

- ``masked`` runs all tokens under an attention mask. It is the definition.
- ``plain`` runs only the visible tokens, at their position IDs.
- ``compact`` does the same without computing twice what rows have in common (``olmo_sparsity.model.compact``).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Optional

import torch

from olmo_sparsity.measure.evaluator import Evaluator
from olmo_sparsity.measure.visibility import compact_rows, visible_mask
from olmo_sparsity.model import compact

GATE = 1e-10  # stands for 0: small enough for the derivative at 0, large enough for fp32
BACKWARD_MEMORY = 16  # a differentiated pass keeps at least this many times the activations of a forward pass
GRADIENT_TOKENS = 2048  # tokens of a differentiated pass for which every machine has the memory
LossFunction = Callable[[slice, torch.Tensor], torch.Tensor]  # (windows, their logits_wV, fp32) -> sum of their losses


def _positions(tokens_RT: torch.Tensor) -> torch.Tensor:
    return torch.arange(tokens_RT.shape[1], device=tokens_RT.device).expand_as(tokens_RT)


def _log_probs_of_pass(evaluator: Evaluator, tokens_RT: torch.Tensor, *, visible_RS: torch.Tensor) -> torch.Tensor:
    """Return log-probabilities of the next token, nats, fp32 [R, V], in one forward pass."""
    if evaluator.path == "masked":
        mask_RT = visible_mask(visible_RS, tokens_RT.shape[1], local_len=evaluator.local_len)
        logits_RV = evaluator.model.last_logits_masked(tokens_RT, _positions(tokens_RT), visible_BT=mask_RT)
    else:
        tokens_RY, positions_RY = compact_rows(tokens_RT, visible_RS, local_len=evaluator.local_len)
        if evaluator.path == "plain":
            logits_RV = evaluator.model.last_logits(tokens_RY, positions_RY)
        else:
            logits_RV = compact.last_logits(evaluator.olmo, tokens_RY, positions_RY=positions_RY)
    return logits_RV.float().log_softmax(dim=-1)


def surprisal(log_q: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return -log q(target) in nats: fp32 [..., V], and int64 that broadcasts to [...] -> fp32 [...]."""
    return -log_q.gather(-1, targets.expand(log_q.shape[:-1])[..., None])[..., 0]


def _divergence(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    """Return KL(p, q) in nats over the last dimension: fp32 [..., V] each -> fp32 [...]."""
    return (log_p.exp() * (log_p - log_q)).sum(dim=-1)


@torch.inference_mode()
def log_probs(evaluator: Evaluator, tokens_WT: torch.Tensor, *, visible_WS: torch.Tensor) -> torch.Tensor:
    """Return log-probabilities of the next token under one visible set per window, nats, fp32 [W, V]."""
    num_windows, full_len = tokens_WT.shape
    row_len = evaluator.row_len(full_len, visible_WS.shape[1])
    passes = [
        _log_probs_of_pass(evaluator, tokens_WT[rows], visible_RS=visible_WS[rows])
        for rows in evaluator.batches(num_windows, row_len)
    ]
    return torch.cat(passes)


def short_log_probs(evaluator: Evaluator, tokens_WT: torch.Tensor) -> torch.Tensor:
    """Return log-probabilities of the next token with only the local tokens visible, nats, fp32 [W, V]."""
    nothing_WS = torch.zeros(len(tokens_WT), 0, dtype=torch.int64, device=tokens_WT.device)
    return log_probs(evaluator, tokens_WT, visible_WS=nothing_WS)


@torch.inference_mode()
def row_losses(
    evaluator: Evaluator,
    tokens_WT: torch.Tensor,
    *,
    targets_W: torch.Tensor,
    windows_R: torch.Tensor,
    visible_RS: torch.Tensor,
    reference_WV: Optional[torch.Tensor] = None,
) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
    """Return the loss of the target in each row, a window under one visible set.

    Args:
        evaluator: the model.
        tokens_WT: int64, the windows, without their targets.
        targets_W: int64.
        windows_R: int64, the window of each row.
        visible_RS: int64, the visible long-range positions of each row; S may be 0.
        reference_WV: log-probabilities p of each window; where given, KL(p, prediction of the row) is returned too.

    Returns:
        (losses in nats, fp32 [R]; divergences in nats, fp32 [R], or None without a reference).
    """
    losses, divergences = [tokens_WT.new_zeros(0, dtype=torch.float)], []
    for rows in evaluator.batches(len(visible_RS), evaluator.row_len(tokens_WT.shape[1], visible_RS.shape[1])):
        windows_r = windows_R[rows]
        log_q_rV = _log_probs_of_pass(evaluator, tokens_WT[windows_r], visible_RS=visible_RS[rows])
        losses.append(surprisal(log_q_rV, targets_W[windows_r]))
        if reference_WV is not None:
            divergences.append(_divergence(reference_WV[windows_r], log_q_rV))
    return torch.cat(losses), torch.cat(divergences) if divergences else None


def target_losses(
    evaluator: Evaluator,
    tokens_WT: torch.Tensor,
    *,
    targets_W: torch.Tensor,
    visible_WNS: torch.Tensor,
    reference_WV: Optional[torch.Tensor] = None,
) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
    """Like ``row_losses``, for N visible sets of S positions per window: int64 [W, N, S] -> fp32 [W, N]."""
    num_windows, num_sets, set_size = visible_WNS.shape
    losses_R, divergences_R = row_losses(
        evaluator,
        tokens_WT,
        targets_W=targets_W,
        windows_R=torch.arange(num_windows, device=tokens_WT.device).repeat_interleave(num_sets),
        visible_RS=visible_WNS.reshape(num_windows * num_sets, set_size),
        reference_WV=reference_WV,
    )
    shape = (num_windows, num_sets)
    return losses_R.view(shape), None if divergences_R is None else divergences_R.view(shape)


@torch.inference_mode()
def single_losses(
    evaluator: Evaluator,
    tokens_WT: torch.Tensor,
    *,
    targets_W: torch.Tensor,
    candidates_WJ: torch.Tensor,
    reference_WV: Optional[torch.Tensor] = None,
) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
    """Like ``target_losses``, for the visible sets {j} of single candidates: int64 [W, J] -> fp32 [W, J]."""
    if evaluator.path != "compact":
        return target_losses(
            evaluator,
            tokens_WT,
            targets_W=targets_W,
            visible_WNS=candidates_WJ[:, :, None],
            reference_WV=reference_WV,
        )
    losses_WJ = torch.empty(candidates_WJ.shape, device=tokens_WT.device)
    divergences_WJ = None if reference_WV is None else torch.empty_like(losses_WJ)
    for windows, candidates, logits_wjV in compact.single_logits(
        evaluator.olmo,
        tokens_WT,
        candidates_WJ=candidates_WJ,
        local_len=evaluator.local_len,
        rows_per_pass=evaluator.rows_per_pass(evaluator.local_len),
    ):
        log_q_wjV = logits_wjV.log_softmax(dim=-1)
        losses_WJ[windows, candidates] = surprisal(log_q_wjV, targets_W[windows, None])
        if divergences_WJ is not None and reference_WV is not None:
            divergences_WJ[windows, candidates] = _divergence(reference_WV[windows, None], log_q_wjV)
    return losses_WJ, divergences_WJ


@torch.inference_mode()
def all_but_one_losses(evaluator: Evaluator, tokens_WT: torch.Tensor, *, targets_W: torch.Tensor) -> torch.Tensor:
    """Return loss(all but j) for every long-range position j, nats, fp32 [W, M]."""
    num_windows, full_len = tokens_WT.shape
    num_long_range = full_len - evaluator.local_len
    if evaluator.path != "compact":
        all_M = torch.arange(num_long_range, device=tokens_WT.device)
        others_NS = torch.stack([all_M[all_M != j] for j in range(num_long_range)])
        others_WNS = others_NS.expand(num_windows, -1, -1)
        return target_losses(evaluator, tokens_WT, targets_W=targets_W, visible_WNS=others_WNS)[0]
    losses = []
    for windows in evaluator.batches(num_windows, full_len):
        logits_wMV = compact.all_but_one_logits(evaluator.olmo, tokens_WT[windows], num_long_range=num_long_range)
        losses.append(surprisal(logits_wMV.log_softmax(dim=-1), targets_W[windows, None]))
    return torch.cat(losses)


def mask_losses(
    evaluator: Evaluator, tokens_WT: torch.Tensor, *, targets_W: torch.Tensor, visible_WNM: torch.Tensor
) -> torch.Tensor:
    """Return the losses of N visible sets per window, of any sizes, given as bool masks; nats, fp32 [W, N]."""
    num_windows, num_sets, num_long_range = visible_WNM.shape
    visible_RM = visible_WNM.reshape(-1, num_long_range)
    sizes_R = visible_RM.sum(dim=1)
    losses_R = torch.empty(len(visible_RM), device=tokens_WT.device)
    for size in sizes_R.unique().tolist():  # rows of one size make a batch without padding
        rows_r = (sizes_R == size).nonzero()[:, 0]
        visible_rS = visible_RM[rows_r].nonzero()[:, 1].view(len(rows_r), size)
        windows_r = rows_r // num_sets
        losses_R[rows_r] = row_losses(
            evaluator, tokens_WT, targets_W=targets_W, windows_R=windows_r, visible_RS=visible_rS
        )[0]
    return losses_R.view(num_windows, num_sets)


def gate_gradients(evaluator: Evaluator, tokens_WT: torch.Tensor, *, loss_function: LossFunction) -> torch.Tensor:
    """Return the derivative of a loss with respect to a gate on each long-range position, at gate 0; fp32 [W, M].

    The gate of a token multiplies the weight (before normalisation) with which other tokens attend to it, in every layer
    and head; gate 0 hides it. ``compact`` runs the local tokens forward and backward, and each long-range token alone; the
    other paths run all tokens under the gates.
    """
    num_windows, full_len = tokens_WT.shape
    num_long_range = full_len - evaluator.local_len
    gradients = []
    batch_tokens = max(evaluator.batch_tokens // BACKWARD_MEMORY, min(evaluator.batch_tokens, GRADIENT_TOKENS))
    for windows in dataclasses.replace(evaluator, batch_tokens=batch_tokens).batches(num_windows, full_len):
        tokens_wT = tokens_WT[windows]
        if evaluator.path == "compact":
            gradients.append(
                compact.gate_gradients(
                    evaluator.olmo,
                    tokens_wT,
                    local_len=evaluator.local_len,
                    loss_function=functools.partial(loss_function, windows),
                )
            )
            continue
        log_gate_wT = torch.zeros(tokens_wT.shape, device=tokens_wT.device)
        log_gate_wT[:, :num_long_range] = torch.log(torch.tensor(GATE))
        with torch.enable_grad():
            log_gate_wT.requires_grad_()
            logits_wV = evaluator.model.last_logits_gated(tokens_wT, _positions(tokens_wT), log_gate_BT=log_gate_wT)
            (gradient_wT,) = torch.autograd.grad(loss_function(windows, logits_wV.float()), log_gate_wT)
        gradients.append(gradient_wT[:, :num_long_range] / GATE)  # d/d gate = (d/d log gate) / gate
    return torch.cat(gradients)


@torch.inference_mode()
def long_range_attention(evaluator: Evaluator, tokens_WT: torch.Tensor) -> torch.Tensor:
    """Return the attention that the last token pays to each long-range one under full context, fp32 [W, M].

    It is the mean over heads and layers.
    """
    num_windows, full_len = tokens_WT.shape
    attention = [
        evaluator.model.last_attention(tokens_WT[windows], _positions(tokens_WT[windows]))
        for windows in evaluator.batches(num_windows, full_len)
    ]
    return torch.cat(attention)[:, : full_len - evaluator.local_len]
