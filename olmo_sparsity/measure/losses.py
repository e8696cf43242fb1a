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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Optional

import torch

from olmo_sparsity.measure.evaluator import Evaluator
from olmo_sparsity.measure.visibility import attention_mask, compact_rows, gate_bias, visible_mask
from olmo_sparsity.model import compact

GATE = 1e-10  # stands for 0: small enough for the derivative at 0, large enough for fp32
BACKWARD_MEMORY = 16  # a differentiated pass keeps at least this many times the activations of a forward pass
GRADIENT_TOKENS = 2048  # tokens of a differentiated pass for which every machine has the memory
LossFunction = Callable[[slice, torch.Tensor], torch.Tensor]  # (windows, their logits_wV, fp32) -> sum of their losses


@dataclass(frozen=True)
class SingleReadout:
    """What is read from the predictions under the visible sets {j}, for J candidates of each window; nats, fp32.

    Attributes:
        losses_WJA: the loss of each of the A labels.
        divergences: for each reference p, KL(p, prediction under {j}), [W, J].
        luck_W: the mean of max_j (log q_j(y) - log p_{}(y)) over labels y drawn from p_{}, the short-context prediction; None
            where p_{} is not given. It is what the best single unmasking gains by selection alone.
    """

    losses_WJA: torch.Tensor
    divergences: tuple[torch.Tensor, ...]
    luck_W: Optional[torch.Tensor]


def _positions(tokens_RT: torch.Tensor) -> torch.Tensor:
    return torch.arange(tokens_RT.shape[1], device=tokens_RT.device).expand_as(tokens_RT)


def _log_probs_of_pass(evaluator: Evaluator, tokens_RT: torch.Tensor, *, visible_RS: torch.Tensor) -> torch.Tensor:
    """Return log-probabilities of the next token, nats, fp32 [R, V], in one forward pass."""
    if evaluator.path == "masked":
        mask_RT = visible_mask(visible_RS, tokens_RT.shape[1], local_len=evaluator.local_len)
        allowed_RTT = attention_mask(mask_RT, local_len=evaluator.local_len, visibility="hidden")
        logits_RV = evaluator.model.last_logits(tokens_RT, _positions(tokens_RT), bias_BTT=allowed_RTT)
    else:
        tokens_RY, positions_RY = compact_rows(tokens_RT, visible_RS, local_len=evaluator.local_len)
        if evaluator.path == "plain":
            logits_RV = evaluator.model.last_logits(tokens_RY, positions_RY)
        else:
            logits_RV = compact.last_logits(evaluator.olmo, tokens_RY, positions_RY=positions_RY)
    return logits_RV.float().log_softmax(dim=-1)


def surprisals(log_q: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return -log q(label) in nats of A labels: fp32 [..., V], and int64 that broadcasts to [..., A] -> fp32 [..., A]."""
    return -log_q.gather(-1, labels.expand(*log_q.shape[:-1], -1))


def surprisal(log_q: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return -log q(target) in nats: fp32 [..., V], and int64 that broadcasts to [...] -> fp32 [...]."""
    return surprisals(log_q, targets[..., None])[..., 0]


def divergence(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
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
def _losses_of_rows(
    evaluator: Evaluator,
    tokens_WT: torch.Tensor,
    *,
    labels_WA: torch.Tensor,
    windows_R: torch.Tensor,
    visible_RS: torch.Tensor,
    reference_WV: Optional[torch.Tensor] = None,
) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
    """Like ``row_losses``, for A labels of each window: losses fp32 [R, A]."""
    losses = [torch.zeros(0, labels_WA.shape[1], device=tokens_WT.device)]
    divergences = []
    for rows in evaluator.batches(len(visible_RS), evaluator.row_len(tokens_WT.shape[1], visible_RS.shape[1])):
        windows_r = windows_R[rows]
        log_q_rV = _log_probs_of_pass(evaluator, tokens_WT[windows_r], visible_RS=visible_RS[rows])
        losses.append(surprisals(log_q_rV, labels_WA[windows_r]))
        if reference_WV is not None:
            divergences.append(divergence(reference_WV[windows_r], log_q_rV))
    return torch.cat(losses), torch.cat(divergences) if divergences else None


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
        (losses in nats, fp32 [R]; divergences in nats, fp32 [R], or None without a reference or without rows).
    """
    losses_RA, divergences_R = _losses_of_rows(
        evaluator,
        tokens_WT,
        labels_WA=targets_W[:, None],
        windows_R=windows_R,
        visible_RS=visible_RS,
        reference_WV=reference_WV,
    )
    return losses_RA[:, 0], divergences_R


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


def _log_probs_of_singles(
    evaluator: Evaluator, tokens_WT: torch.Tensor, *, candidates_WJ: torch.Tensor
) -> Iterator[tuple[slice, slice, torch.Tensor]]:
    """Yield (windows, candidates, log-probabilities under their visible sets {j}, fp32 [w, j, V]) of each forward pass.

    The candidates of the same windows come one after the other.
    """
    (num_windows, full_len), num_candidates = tokens_WT.shape, candidates_WJ.shape[1]
    if evaluator.path == "compact":
        for windows, candidates, logits_wjV in compact.single_logits(
            evaluator.olmo,
            tokens_WT,
            candidates_WJ=candidates_WJ,
            local_len=evaluator.local_len,
            rows_per_pass=evaluator.rows_per_pass(evaluator.local_len),
        ):
            yield windows, candidates, logits_wjV.log_softmax(dim=-1)
        return
    rows_per_pass = evaluator.rows_per_pass(evaluator.row_len(full_len, 1))
    windows_per_pass = max(1, rows_per_pass // num_candidates)
    for begin in range(0, num_windows, windows_per_pass):
        windows = slice(begin, begin + windows_per_pass)
        for first in range(0, num_candidates, rows_per_pass):
            candidates = slice(first, first + rows_per_pass)
            candidates_wj = candidates_WJ[windows, candidates]
            tokens_RT = tokens_WT[windows].repeat_interleave(candidates_wj.shape[1], dim=0)
            log_q_RV = _log_probs_of_pass(evaluator, tokens_RT, visible_RS=candidates_wj.reshape(-1, 1))
            yield windows, candidates, log_q_RV.view(*candidates_wj.shape, -1)


@torch.inference_mode()
def read_singles(
    evaluator: Evaluator,
    tokens_WT: torch.Tensor,
    *,
    labels_WA: torch.Tensor,
    candidates_WJ: torch.Tensor,
    references: Sequence[torch.Tensor] = (),
    log_p_short_WV: Optional[torch.Tensor] = None,
) -> SingleReadout:
    """Run the visible sets {j} of single candidates once, and read from the predictions all that is asked for.

    Args:
        evaluator: the model.
        tokens_WT: int64, the windows, without their targets.
        labels_WA: int64, tokens whose losses are returned.
        candidates_WJ: int64, long-range positions.
        references: log-probabilities p, fp32 [W, V] each; KL(p, prediction) is returned for each.
        log_p_short_WV: log-probabilities under the visible set {}; where given, the luck of the best candidate is returned.
    """
    device = tokens_WT.device
    losses_WJA = torch.empty(*candidates_WJ.shape, labels_WA.shape[1], device=device)
    divergences = tuple(torch.empty(candidates_WJ.shape, device=device) for _ in references)
    luck_W = None if log_p_short_WV is None else torch.empty(len(tokens_WT), device=device)
    best_wV = torch.empty(0)
    for windows, candidates, log_q_wjV in _log_probs_of_singles(evaluator, tokens_WT, candidates_WJ=candidates_WJ):
        losses_WJA[windows, candidates] = surprisals(log_q_wjV, labels_WA[windows, None])
        for divergences_WJ, reference_WV in zip(divergences, references, strict=True):
            divergences_WJ[windows, candidates] = divergence(reference_WV[windows, None], log_q_wjV)
        if luck_W is not None and log_p_short_WV is not None:
            highest_wV = log_q_wjV.amax(dim=1)
            best_wV = highest_wV if candidates.start == 0 else torch.maximum(best_wV, highest_wV)
            if candidates.stop >= candidates_WJ.shape[1]:
                log_p_wV = log_p_short_WV[windows]
                luck_W[windows] = (log_p_wV.exp() * (best_wV - log_p_wV)).sum(dim=-1)
    return SingleReadout(losses_WJA, divergences, luck_W)


def single_losses(
    evaluator: Evaluator,
    tokens_WT: torch.Tensor,
    *,
    targets_W: torch.Tensor,
    candidates_WJ: torch.Tensor,
    reference_WV: Optional[torch.Tensor] = None,
) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
    """Like ``target_losses``, for the visible sets {j} of single candidates: int64 [W, J] -> fp32 [W, J]."""
    singles = read_singles(
        evaluator,
        tokens_WT,
        labels_WA=targets_W[:, None],
        candidates_WJ=candidates_WJ,
        references=() if reference_WV is None else (reference_WV,),
    )
    return singles.losses_WJA[:, :, 0], singles.divergences[0] if singles.divergences else None


@torch.inference_mode()
def all_but_one_losses(evaluator: Evaluator, tokens_WT: torch.Tensor, *, labels_WA: torch.Tensor) -> torch.Tensor:
    """Return loss(all but j) of A labels for every long-range position j, nats, fp32 [W, M, A]."""
    num_windows, full_len = tokens_WT.shape
    num_long_range = full_len - evaluator.local_len
    if evaluator.path != "compact":
        all_M = torch.arange(num_long_range, device=tokens_WT.device)
        others_NS = torch.stack([all_M[all_M != j] for j in range(num_long_range)])
        losses_RA, _ = _losses_of_rows(
            evaluator,
            tokens_WT,
            labels_WA=labels_WA,
            windows_R=torch.arange(num_windows, device=tokens_WT.device).repeat_interleave(num_long_range),
            visible_RS=others_NS.repeat(num_windows, 1),
        )
        return losses_RA.view(num_windows, num_long_range, -1)
    losses = []
    for windows in evaluator.batches(num_windows, full_len):
        logits_wMV = compact.all_but_one_logits(evaluator.olmo, tokens_WT[windows], num_long_range=num_long_range)
        losses.append(surprisals(logits_wMV.log_softmax(dim=-1), labels_WA[windows, None]))
    return torch.cat(losses)


def mask_losses(
    evaluator: Evaluator, tokens_WT: torch.Tensor, *, labels_WA: torch.Tensor, visible_WNM: torch.Tensor
) -> torch.Tensor:
    """Return the losses of A labels under N visible sets per window, of any sizes, given as bool masks.

    The losses are in nats, fp32 [W, N, A].
    """
    num_windows, num_sets, num_long_range = visible_WNM.shape
    visible_RM = visible_WNM.reshape(-1, num_long_range)
    sizes_R = visible_RM.sum(dim=1)
    losses_RA = torch.empty(len(visible_RM), labels_WA.shape[1], device=tokens_WT.device)
    for size in sizes_R.unique().tolist():  # rows of one size make a batch without padding
        rows_r = (sizes_R == size).nonzero()[:, 0]
        visible_rS = visible_RM[rows_r].nonzero()[:, 1].view(len(rows_r), size)
        losses_RA[rows_r], _ = _losses_of_rows(
            evaluator, tokens_WT, labels_WA=labels_WA, windows_R=rows_r // num_sets, visible_RS=visible_rS
        )
    return losses_RA.view(num_windows, num_sets, -1)


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
            bias_wTT = gate_bias(log_gate_wT, local_len=evaluator.local_len, visibility="hidden")
            logits_wV = evaluator.model.last_logits(tokens_wT, _positions(tokens_wT), bias_BTT=bias_wTT)
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
