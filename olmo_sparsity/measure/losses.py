"""Windows and visible sets -> the loss of the target, in nats, fp32; and what else selectors ask of a model.

Legend: W windows, T tokens of a window (``full_len``), M long-range tokens, S size of a visible set, N sets of a
window, J candidates of a window, R rows (a window under one visible set), V vocabulary.

``loss(S)`` is the cross-entropy of the target when every token may attend to the local tokens and to S, and to nothing
else. Three paths give it, and agree to 1e-5 nats in fp32: ``masked`` runs all tokens under an attention mask, and is the
definition; ``plain`` runs the visible ones alone, at their position IDs; ``compact`` does that without doing twice what rows
have in common (``olmo_sparsity.compact``).
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

GATE = 1e-10  # stands for 0: small enough that a derivative at it is that at 0, large enough for fp32
KEPT_ACTIVATIONS = 16  # a pass that is differentiated keeps so many times what a forward pass holds, or more
GRADIENT_TOKENS = 2048  # of such a pass, that any machine has the memory for
LossOf = Callable[[slice, torch.Tensor], torch.Tensor]  # windows, their logits fp32 [w, V] -> sum of their losses


def _positions(tokens_WT: torch.Tensor) -> torch.Tensor:
    return torch.arange(tokens_WT.shape[1], device=tokens_WT.device).expand_as(tokens_WT)


def _one_pass(evaluator: Evaluator, tokens_WT: torch.Tensor, visible_WS: torch.Tensor) -> torch.Tensor:
    if evaluator.path == "masked":
        mask = visible_mask(visible_WS, tokens_WT.shape[1], evaluator.local_len)
        logits = evaluator.model.last_logits_masked(tokens_WT, _positions(tokens_WT), mask)
    else:
        rows = compact_rows(tokens_WT, visible_WS, evaluator.local_len)
        plain = evaluator.path == "plain"
        logits = evaluator.model.last_logits(*rows) if plain else compact.last_logits(evaluator.olmo, *rows)
    return logits.float().log_softmax(dim=-1)


def surprisal(log_q: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """-log q(target), nats: fp32 [..., V], and int64 that broadcasts to [...] -> fp32 [...]."""
    return -log_q.gather(-1, targets.expand(log_q.shape[:-1])[..., None])[..., 0]


def _divergence(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    """KL(p, q), nats, over the last dimension."""
    return (log_p.exp() * (log_p - log_q)).sum(dim=-1)


@torch.inference_mode()
def log_probs(evaluator: Evaluator, tokens_WT: torch.Tensor, visible_WS: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of the next token under one visible set a window, nats, fp32 [W, V]."""
    num_windows, full_len = tokens_WT.shape
    row_len = evaluator.row_len(full_len, visible_WS.shape[1])
    passes = [_one_pass(evaluator, tokens_WT[at], visible_WS[at]) for at in evaluator.batches(num_windows, row_len)]
    return torch.cat(passes)


@torch.inference_mode()
def row_losses(
    evaluator: Evaluator,
    tokens_WT: torch.Tensor,
    targets_W: torch.Tensor,
    windows_R: torch.Tensor,
    visible_RS: torch.Tensor,
    reference_WV: Optional[torch.Tensor] = None,
) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
    """The loss of the target in each row: a window, under one visible set.

    Args:
        evaluator: the model.
        tokens_WT: int64, the windows, without their targets.
        targets_W: int64.
        windows_R: int64, the window of each row.
        visible_RS: int64, the visible long-range positions of each row; S may be 0.
        reference_WV: log-probabilities p of each window; adds KL(p, prediction under the set).

    Returns:
        (losses in nats, fp32 [R]; divergences in nats, fp32 [R], or None without a reference).
    """
    losses, divergences = [tokens_WT.new_zeros(0, dtype=torch.float)], []
    for at in evaluator.batches(len(visible_RS), evaluator.row_len(tokens_WT.shape[1], visible_RS.shape[1])):
        windows = windows_R[at]
        log_q = _one_pass(evaluator, tokens_WT[windows], visible_RS[at])
        losses.append(surprisal(log_q, targets_W[windows]))
        if reference_WV is not None:
            divergences.append(_divergence(reference_WV[windows], log_q))
    return torch.cat(losses), torch.cat(divergences) if divergences else None


def target_losses(
    evaluator: Evaluator,
    tokens_WT: torch.Tensor,
    targets_W: torch.Tensor,
    visible_WNS: torch.Tensor,
    reference_WV: Optional[torch.Tensor] = None,
) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
    """As ``row_losses``, of N sets of S positions for each window: int64 [W, N, S] -> fp32 [W, N]."""
    num_windows, num_sets, set_size = visible_WNS.shape
    windows_R = torch.arange(num_windows, device=tokens_WT.device).repeat_interleave(num_sets)
    visible_RS = visible_WNS.reshape(num_windows * num_sets, set_size)
    losses, divergences = row_losses(evaluator, tokens_WT, targets_W, windows_R, visible_RS, reference_WV)
    shape = (num_windows, num_sets)
    return losses.view(shape), None if divergences is None else divergences.view(shape)


@torch.inference_mode()
def single_losses(
    evaluator: Evaluator,
    tokens_WT: torch.Tensor,
    targets_W: torch.Tensor,
    candidates_WJ: torch.Tensor,
    reference_WV: Optional[torch.Tensor] = None,
) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
    """As ``target_losses``, of the sets {j}: int64 [W, J] -> fp32 [W, J]."""
    if evaluator.path != "compact":
        return target_losses(evaluator, tokens_WT, targets_W, candidates_WJ[:, :, None], reference_WV)
    losses = torch.empty(candidates_WJ.shape, device=tokens_WT.device)
    divergences = None if reference_WV is None else torch.empty_like(losses)
    rows_at_once = evaluator.rows_at_once(evaluator.local_len)
    for windows, some, logits_wjV in compact.single_logits(
        evaluator.olmo, tokens_WT, candidates_WJ, evaluator.local_len, rows_at_once
    ):
        log_q = logits_wjV.log_softmax(dim=-1)
        losses[windows, some] = surprisal(log_q, targets_W[windows, None])
        if divergences is not None and reference_WV is not None:
            divergences[windows, some] = _divergence(reference_WV[windows, None], log_q)
    return losses, divergences


@torch.inference_mode()
def all_but_one_losses(evaluator: Evaluator, tokens_WT: torch.Tensor, targets_W: torch.Tensor) -> torch.Tensor:
    """loss(all but j) for every long-range position j, fp32 [W, M]."""
    num_windows, full_len = tokens_WT.shape
    num_long_range = full_len - evaluator.local_len
    if evaluator.path != "compact":
        everything = torch.arange(num_long_range, device=tokens_WT.device)
        others = torch.stack([everything[everything != j] for j in range(num_long_range)])
        return target_losses(evaluator, tokens_WT, targets_W, others.expand(num_windows, -1, -1))[0]
    losses = []
    for at in evaluator.batches(num_windows, full_len):
        log_q = compact.all_but_one_logits(evaluator.olmo, tokens_WT[at], num_long_range).log_softmax(dim=-1)
        losses.append(surprisal(log_q, targets_W[at, None]))
    return torch.cat(losses)


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
        visible = keep[rows].nonzero()[:, 1].view(len(rows), size)
        losses[rows] = row_losses(evaluator, tokens_WT, targets_W, rows // num_sets, visible)[0]
    return losses.view(num_windows, num_sets)


def gate_gradients(evaluator: Evaluator, tokens_WT: torch.Tensor, loss_of: LossOf) -> torch.Tensor:
    """Derivative of a loss with respect to a gate on each long-range position, at gate 0; fp32 [W, M].

    The gate of a token multiplies the weight (before normalisation) with which other tokens attend to it, in every
    layer and head; gate 0 hides it. ``compact`` runs the local tokens forward and backward and each long-range one alone;
    the other paths run all tokens under the gates.
    """
    num_windows, full_len = tokens_WT.shape
    num_long_range = full_len - evaluator.local_len
    gradients = []
    at_once = max(evaluator.batch_tokens // KEPT_ACTIVATIONS, min(evaluator.batch_tokens, GRADIENT_TOKENS))
    for at in dataclasses.replace(evaluator, batch_tokens=at_once).batches(num_windows, full_len):
        tokens = tokens_WT[at]
        if evaluator.path == "compact":
            loss_of_pass = functools.partial(loss_of, at)
            gradients.append(compact.gate_gradients(evaluator.olmo, tokens, evaluator.local_len, loss_of_pass))
            continue
        log_gate = torch.zeros(tokens.shape, device=tokens.device)
        log_gate[:, :num_long_range] = torch.log(torch.tensor(GATE))
        with torch.enable_grad():
            log_gate.requires_grad_()
            logits = evaluator.model.last_logits_gated(tokens, _positions(tokens), log_gate)
            (gradient,) = torch.autograd.grad(loss_of(at, logits.float()), log_gate)
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
