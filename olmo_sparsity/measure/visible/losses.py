"""The loss of the target under a visible set, in nats, and whatever else selectors need from the model.

``loss(S)`` is the cross-entropy of the target when the local tokens, and with them the target, may attend to the local tokens,
to S and to the anchor, and to nothing else; whether long-range tokens see one another depends on the definition of visible
(``olmo_sparsity.measure.visible.visibility``). Three paths compute it, and agree to 1e-5 nats in fp32:

- ``masked`` runs all tokens under an attention mask. It is the definition.
- ``plain`` runs only the visible tokens, at their position IDs. Under ``contextual`` visibility the visible long-range tokens are
  keys and values, which are computed once for the rows of a window (``olmo_sparsity.measure.visible.passes``).
- ``compact`` does the same without computing twice what rows have in common (of an OLMo: ``olmo_sparsity.model.compact``).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Optional

import torch

from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.passes import (
    Rows,
    VisibleSets,
    entries_of,
    log_probs_and_attention,
    log_probs_of_all_but_one,
    log_probs_of_sets,
    log_probs_of_singles,
    one_row_each,
    prefix_of_some,
)
from olmo_sparsity.measure.visible.visibility import gate_bias, prefix_positions, with_anchor
from olmo_sparsity.model.attribution import Attribution, derivatives, first_order
from olmo_sparsity.model.causal_model import KeysValues
from olmo_sparsity.model.devices import attention_elements
from olmo_sparsity.progress import tokens_ran
from olmo_sparsity.records.measured import DAMPING

LOG_GATE = (
    -23.0
)  # of the gate that stands for 0: small enough for the derivative at 0, large enough for fp32; exact in bf16
BACKWARD_MEMORY = 16  # a differentiated pass keeps at least this many times the activations of a forward pass
BACKWARD_PASSES = 2  # forward passes that a backward pass takes the time of, roughly
GRADIENT_MEMORY = 4  # forward passes whose memory the local tokens take, run forward and backward
FAR_TOKENS = 256  # long-range tokens that run at once, each alone, under a mask of this length
GRADIENT_TOKENS = 2048  # tokens of a differentiated pass for which every machine has the memory
LossFunction = Callable[[Rows, torch.Tensor], torch.Tensor]  # (windows, logits_wV, fp32) -> sums of losses, [] or [L]


@dataclass(frozen=True)
class SingleReadout:
    """What is read from the predictions under the visible sets {j}, for J candidates of each window; nats, fp32.

    Attributes:
        losses_WJA: the loss of each of the A labels.
        kl_WJ: KL(p, prediction under {j}), with p the reference; None where that is not given.
        kl_from_short_WJ: KL(p_{}, prediction under {j}), with p_{} the short-context prediction; None where that is not given.
    """

    losses_WJA: torch.Tensor
    kl_WJ: Optional[torch.Tensor] = None
    kl_from_short_WJ: Optional[torch.Tensor] = None


def surprisals(log_q: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return -log q(label) in nats of A labels: fp32 [..., V], and int64 that broadcasts to [..., A] -> fp32 [..., A]."""
    return -log_q.gather(-1, labels.expand(*log_q.shape[:-1], -1))


def surprisal(log_q: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return -log q(target) in nats: fp32 [..., V], and int64 that broadcasts to [...] -> fp32 [...]."""
    return surprisals(log_q, targets[..., None])[..., 0]


def divergence(log_p: torch.Tensor, log_q: torch.Tensor, p: Optional[torch.Tensor] = None) -> torch.Tensor:
    """Return KL(p, q) in nats over the last dimension: fp32 [..., V] each -> fp32 [...]; ``p`` saves computing exp(log_p)."""
    return ((log_p.exp() if p is None else p) * (log_p - log_q)).sum(dim=-1)


def divergences_of_all(log_p_wV: torch.Tensor, log_q_wjV: torch.Tensor) -> torch.Tensor:
    """Return KL(p, q) in nats of J predictions q of each window: fp32 [w, V] and [w, J, V] -> fp32 [w, J].

    It is the cross-entropy minus the entropy, which reads the predictions once; ``divergence`` reads them several times, and is
    more exact where p and q are nearly equal: here the error is some 1e-6 nats.
    """
    p_wV = log_p_wV.exp()
    entropy_w = -(p_wV * log_p_wV).sum(dim=-1)
    return -torch.bmm(log_q_wjV, p_wV[:, :, None])[:, :, 0] - entropy_w[:, None]


@torch.inference_mode()
def damped(
    log_p_long_WV: torch.Tensor, log_p_short_WV: torch.Tensor, targets_W: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss of the target and KL(p_all, p_w) in nats, fp32 [W, B], for each weight w of ``DAMPING``.

    p_w = p_short^(1-w) p_all^w / Z_w weakens the reaction to the long context without choosing any token. Both numbers are blends
    of those at w = 0 and 1, plus log Z_w: of all predictions but one scalar is needed for each w.
    """
    kl_W = divergence(log_p_long_WV, log_p_short_WV)
    loss_short_W, loss_long_W = surprisal(log_p_short_WV, targets_W), surprisal(log_p_long_WV, targets_W)
    losses, divergences = [], []
    for w in DAMPING:
        log_z_W = torch.lerp(log_p_short_WV, log_p_long_WV, w).logsumexp(dim=-1)
        losses.append(torch.lerp(loss_short_W, loss_long_W, w) + log_z_W)
        divergences.append((1 - w) * kl_W + log_z_W)
    return torch.stack(losses, dim=1), torch.stack(divergences, dim=1)


@torch.inference_mode()
def log_probs(evaluator: Evaluator, tokens_WT: torch.Tensor, *, visible_WS: torch.Tensor) -> torch.Tensor:
    """Return log-probabilities of the next token under one visible set per window, nats, fp32 [W, V]."""
    passes = [log_q_wV for _, _, log_q_wV in log_probs_of_sets(evaluator, tokens_WT, sets=[one_row_each(visible_WS)])]
    return torch.cat(passes)


@torch.inference_mode()
def long_log_probs_and_attention(evaluator: Evaluator, tokens_WT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities of the next token with everything visible, and the attention to the long-range tokens.

    The log-probabilities are in nats, fp32 [W, V]. The attention is that of the last token, the mean over heads and layers, fp32
    [W, M]. Rows are causal on every path.
    """
    log_p_WV, attention_WT = log_probs_and_attention(evaluator, tokens_WT)
    first, num_long_range = evaluator.num_anchors, tokens_WT.shape[1] - evaluator.local_len
    return log_p_WV, attention_WT[:, first : first + num_long_range]


def short_log_probs(evaluator: Evaluator, tokens_WT: torch.Tensor) -> torch.Tensor:
    """Return log-probabilities of the next token with only the local tokens visible, nats, fp32 [W, V]."""
    nothing_WS = torch.zeros(len(tokens_WT), 0, dtype=torch.int64, device=tokens_WT.device)
    return log_probs(evaluator, tokens_WT, visible_WS=nothing_WS)


def recent_losses(
    evaluator: Evaluator, tokens_WT: torch.Tensor, *, targets_W: torch.Tensor, num_visible: int
) -> torch.Tensor:
    """Return the loss of the target with only the last ``num_visible`` tokens visible, nats, fp32 [W].

    They begin directly behind the anchor, with position IDs 1 .. n, or 0 .. n-1 without an anchor, as rows of training do.

    Nothing but these tokens and the anchor is there, under both definitions of visible: what lies before them must not reach the
    target by way of the keys and values of the prefix.

    Args:
        evaluator: the model; ``num_visible`` replaces its ``local_len``.
        tokens_WT: int64, the windows, without their targets.
        targets_W: int64.
        num_visible: at least 1, at most T.
    """
    alone = dataclasses.replace(evaluator, local_len=num_visible)
    return surprisal(short_log_probs(alone, tokens_WT[:, -num_visible:]), targets_W)


@dataclass(frozen=True)
class RowReadout:
    """What is read from the predictions of R rows; nats, fp32."""

    losses_RA: torch.Tensor  # the loss of each of the A labels
    divergences: tuple[torch.Tensor, ...]  # for each reference p, KL(p, prediction), [R]


@torch.inference_mode()
def read_sets(
    evaluator: Evaluator,
    tokens_WT: torch.Tensor,
    *,
    labels_WA: torch.Tensor,
    sets: Sequence[VisibleSets],
    references: Sequence[torch.Tensor] = (),
) -> list[RowReadout]:
    """Run windows under visible sets, and read from the predictions all that is asked for.

    Args:
        evaluator: the model.
        tokens_WT: int64, the windows, without their targets.
        labels_WA: int64, tokens whose losses are returned.
        sets: by their size.
        references: log-probabilities p of each window, fp32 [W, V] each; KL(p, prediction of the row) is returned for each.
    """
    num_labels, device = labels_WA.shape[1], tokens_WT.device
    readouts = [
        RowReadout(
            torch.empty(len(of_size.visible_RS), num_labels, device=device),
            tuple(torch.empty(len(of_size.visible_RS), device=device) for _ in references),
        )
        for of_size in sets
    ]
    with_p = [(reference_WV, reference_WV.exp()) for reference_WV in references]  # a window has many rows
    for number, rows, log_q_rV in log_probs_of_sets(evaluator, tokens_WT, sets=sets):
        windows_r = sets[number].windows_R[rows]
        readouts[number].losses_RA[rows] = surprisals(log_q_rV, labels_WA[windows_r])
        for divergences_R, (log_p_WV, p_WV) in zip(readouts[number].divergences, with_p, strict=True):
            divergences_R[rows] = divergence(log_p_WV[windows_r], log_q_rV, p_WV[windows_r])
    return readouts


def target_losses(
    evaluator: Evaluator,
    tokens_WT: torch.Tensor,
    *,
    targets_W: torch.Tensor,
    visible_WNS: torch.Tensor,
    reference_WV: Optional[torch.Tensor] = None,
) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
    """Return the loss of the target under N visible sets of S positions per window.

    Args:
        evaluator: the model.
        tokens_WT: int64, the windows, without their targets.
        targets_W: int64.
        visible_WNS: int64, the visible sets.
        reference_WV: log-probabilities p of each window; where given, KL(p, prediction) is returned too.

    Returns:
        (losses in nats, fp32 [W, N]; divergences in nats, fp32 [W, N], or None without a reference).
    """
    num_windows, num_sets, set_size = visible_WNS.shape
    windows_R = torch.arange(num_windows, device=tokens_WT.device).repeat_interleave(num_sets)
    (readout,) = read_sets(
        evaluator,
        tokens_WT,
        labels_WA=targets_W[:, None],
        sets=[VisibleSets(windows_R, visible_WNS.reshape(num_windows * num_sets, set_size))],
        references=() if reference_WV is None else (reference_WV,),
    )
    shape, divergences = (num_windows, num_sets), readout.divergences
    return readout.losses_RA.view(shape), divergences[0].view(shape) if divergences else None


@torch.inference_mode()
def read_singles(
    evaluator: Evaluator,
    tokens_WT: torch.Tensor,
    *,
    labels_WA: torch.Tensor,
    candidates_WJ: torch.Tensor,
    reference_WV: Optional[torch.Tensor] = None,
    log_p_short_WV: Optional[torch.Tensor] = None,
) -> SingleReadout:
    """Run the visible sets {j} of single candidates once, and read from the predictions all that is asked for.

    Args:
        evaluator: the model.
        tokens_WT: int64, the windows, without their targets.
        labels_WA: int64, tokens whose losses are returned.
        candidates_WJ: int64, long-range positions.
        reference_WV: log-probabilities p; where given, KL(p, prediction) is returned, too.
        log_p_short_WV: log-probabilities under the visible set {}; where given, divergences from them are returned, too.
    """
    device = tokens_WT.device
    losses_WJA = torch.empty(*candidates_WJ.shape, labels_WA.shape[1], device=device)
    kl_WJ = None if reference_WV is None else torch.empty(candidates_WJ.shape, device=device)
    kl_from_short_WJ = None if log_p_short_WV is None else torch.empty(candidates_WJ.shape, device=device)
    for windows, candidates, log_q_wjV in log_probs_of_singles(evaluator, tokens_WT, candidates_WJ=candidates_WJ):
        losses_WJA[windows, candidates] = surprisals(log_q_wjV, labels_WA[windows, None])
        if kl_WJ is not None and reference_WV is not None:
            kl_WJ[windows, candidates] = divergence(reference_WV[windows, None], log_q_wjV)
        if kl_from_short_WJ is not None and log_p_short_WV is not None:
            kl_from_short_WJ[windows, candidates] = divergences_of_all(log_p_short_WV[windows], log_q_wjV)
    return SingleReadout(losses_WJA, kl_WJ, kl_from_short_WJ)


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
        reference_WV=reference_WV,
    )
    return singles.losses_WJA[:, :, 0], singles.kl_WJ


@torch.inference_mode()
def all_but_one_losses(evaluator: Evaluator, tokens_WT: torch.Tensor, *, labels_WA: torch.Tensor) -> torch.Tensor:
    """Return loss(all but j) of A labels for every long-range position j, nats, fp32 [W, M, A]."""
    num_windows, full_len = tokens_WT.shape
    losses_WMA = torch.empty(num_windows, full_len - evaluator.local_len, labels_WA.shape[1], device=tokens_WT.device)
    for windows, positions, log_q_wjV in log_probs_of_all_but_one(evaluator, tokens_WT):
        losses_WMA[windows, positions] = surprisals(log_q_wjV, labels_WA[windows, None])
    return losses_WMA


def mask_losses(
    evaluator: Evaluator, tokens_WT: torch.Tensor, *, labels_WA: torch.Tensor, visible_WNM: torch.Tensor
) -> torch.Tensor:
    """Return the losses of A labels under N visible sets per window, of any sizes, given as bool masks.

    The losses are in nats, fp32 [W, N, A].
    """
    num_windows, num_sets, num_long_range = visible_WNM.shape
    visible_RM = visible_WNM.reshape(-1, num_long_range)
    sizes_R = visible_RM.sum(dim=1)
    places, sets = [], []
    for size in sizes_R.unique().tolist():  # rows of one size make a batch without padding
        rows_r = (sizes_R == size).nonzero()[:, 0]
        places.append(rows_r)
        sets.append(VisibleSets(rows_r // num_sets, visible_RM[rows_r].nonzero()[:, 1].view(len(rows_r), size)))
    losses_RA = torch.empty(len(visible_RM), labels_WA.shape[1], device=tokens_WT.device)
    readouts = read_sets(evaluator, tokens_WT, labels_WA=labels_WA, sets=sets)
    for rows_r, readout in zip(places, readouts, strict=True):
        losses_RA[rows_r] = readout.losses_RA
    return losses_RA.view(num_windows, num_sets, -1)


def gate_gradients(evaluator: Evaluator, tokens_WT: torch.Tensor, *, loss_function: LossFunction) -> torch.Tensor:
    """Return what unmasking each long-range position alone would do to a loss, to first order.

    The result is fp32 [W, M], of L losses [L, W, M].

    The gate of a token multiplies the weight (before normalisation) with which those attend to it that it would be hidden
    from, in every layer and head; gate 0 hides it. At gate 0 the local tokens run forward and backward, and of a long-range
    token no more is needed than its keys and values (``olmo_sparsity.model.attribution``): those of its own, with the anchor, or
    under ``contextual`` visibility those of the window. On the masked path all tokens run under the gates, which is the
    definition; so do those of a model whose attention cannot be read.

    Args:
        evaluator: the model.
        tokens_WT: int64, the windows, without their targets.
        loss_function: sums the losses of some windows; L losses of one pass cost one forward pass, and L backward.
    """
    num_windows, full_len = tokens_WT.shape
    if evaluator.path != "masked":
        nothing = one_row_each(torch.empty(num_windows, 0, dtype=torch.int64, device=tokens_WT.device))
        gradients = _gradients_of_local_rows(
            evaluator, tokens_WT, nothing, loss_function=loss_function, attribution="gradient"
        )
        if gradients is not None:
            return gradients
    batch_tokens = max(evaluator.batch_tokens // BACKWARD_MEMORY, min(evaluator.batch_tokens, GRADIENT_TOKENS))
    small = dataclasses.replace(evaluator, batch_tokens=batch_tokens)
    return torch.cat(
        [
            _gradients_under_gates(evaluator, tokens_WT[windows], functools.partial(loss_function, windows))
            for windows in small.batches(num_windows, evaluator.window_len(full_len))
        ],
        dim=-2,
    )


def estimates_beside(
    evaluator: Evaluator, tokens_WT: torch.Tensor, sets: VisibleSets, *, loss_function: LossFunction
) -> torch.Tensor:
    """Return what unmasking each long-range position beside visible ones would do to a loss; fp32 [R, M].

    Estimates by attribution patching, under ``contextual`` visibility; those of visible positions mean nothing.

    Args:
        evaluator: the model.
        tokens_WT: int64, the windows, without their targets.
        sets: the long-range positions that are visible in R of the windows, which rise, each once.
        loss_function: sums the losses of some windows.

    Raises:
        UserError: the model's attention cannot be read.
    """
    assert evaluator.visibility == "contextual", (
        "under hidden visibility the visible tokens would read what is unmasked"
    )
    estimates_RM = _gradients_of_local_rows(
        evaluator, tokens_WT, sets, loss_function=loss_function, attribution="patching"
    )
    if estimates_RM is None:
        raise UserError(
            "estimates by attribution patching need the attention of every layer, which cannot be read of this model; leave "
            "out the selectors that are made of them"
        )
    return estimates_RM


def _gradients_of_local_rows(
    evaluator: Evaluator,
    tokens_WT: torch.Tensor,
    sets: VisibleSets,
    *,
    loss_function: LossFunction,
    attribution: Attribution,
) -> Optional[torch.Tensor]:
    """Return first-order estimates from the local tokens, of windows that rise, each once; None: the attention cannot be read.

    Only under ``contextual`` visibility may long-range positions be visible already.
    """
    found = []
    for rows in evaluator.batches(len(sets.windows_R), GRADIENT_MEMORY * evaluator.window_len(evaluator.local_len)):
        # A slice is no copy of what was kept of the windows.
        windows = rows if len(sets.windows_R) == len(tokens_WT) else sets.windows_R[rows]
        found.append(
            _gradients_of_pass(
                evaluator,
                tokens_WT,
                windows,
                visible_wS=sets.visible_RS[rows],
                loss_function=loss_function,
                attribution=attribution,
            )
        )
    readable = [gradients_wM for gradients_wM in found if gradients_wM is not None]
    return torch.cat(readable, dim=-2) if len(readable) == len(found) else None


def _gradients_of_pass(
    evaluator: Evaluator,
    tokens_WT: torch.Tensor,
    windows: Rows,
    *,
    visible_wS: torch.Tensor,
    loss_function: LossFunction,
    attribution: Attribution,
) -> Optional[torch.Tensor]:
    """Return what ``_gradients_of_local_rows`` returns, of some windows, in one pass forward and backward."""
    model, num_anchors = evaluator.model, evaluator.num_anchors
    tokens_wT, positions_wT = with_anchor(tokens_WT[windows], evaluator.anchor_id)
    cut = tokens_wT.shape[1] - evaluator.local_len
    with torch.no_grad():
        prefix = None
        if evaluator.visibility == "contextual":
            prefix = prefix_of_some(evaluator, tokens_WT, windows=windows)
        seen_wP, seen = prefix_positions(visible_wS, has_anchor=num_anchors > 0), None
        if seen_wP.shape[1] > 0:
            whole = prefix or model.keys_values(tokens_wT[:, :1], positions_wT[:, :1])
            seen = entries_of(whole, torch.arange(len(seen_wP), device=seen_wP.device), seen_RP=seen_wP)
        states = model.attention_states(
            tokens_wT[:, cut:], positions_wT[:, cut:], prefix=seen, loss=functools.partial(loss_function, windows)
        )
        if states is None:
            return None
        num_losses = states[0].gradient_BHNE.shape[:-4].numel()
        tokens_ran((1 + num_losses * BACKWARD_PASSES) * len(tokens_wT) * evaluator.local_len)
        far_tokens = FAR_TOKENS
        if prefix is not None:  # they need not run; what is held is the attention to them
            far_tokens = max(1, attention_elements(model.device) // states[0].gradient_BHNE[..., 0].numel())
        parts = []
        for begin in range(num_anchors, cut, far_tokens):
            block = slice(begin, min(begin + far_tokens, cut))
            if prefix is None:
                far = _keys_values_alone(evaluator, tokens_wT, positions_wT, block=block)
            else:
                far = [(k_wHPE[:, :, block], v_wHPE[:, :, block]) for k_wHPE, v_wHPE in prefix]
            parts.append(first_order(states, far, attribution=attribution))
    return torch.cat(parts, dim=-1)


def _keys_values_alone(
    evaluator: Evaluator, tokens_wT: torch.Tensor, positions_wT: torch.Tensor, *, block: slice
) -> KeysValues:
    """Return the keys and values of tokens each of which sees itself and the anchor only."""
    num_anchors = evaluator.num_anchors
    tokens_wP = torch.cat([tokens_wT[:, :num_anchors], tokens_wT[:, block]], dim=1)
    positions_wP = torch.cat([positions_wT[:, :num_anchors], positions_wT[:, block]], dim=1)
    tokens_ran(tokens_wP.numel())
    allowed_PP = torch.eye(tokens_wP.shape[1], dtype=torch.bool, device=tokens_wP.device)
    allowed_PP[:, :num_anchors] = True
    far = evaluator.model.keys_values(tokens_wP, positions_wP, allowed_BPP=allowed_PP.expand(len(tokens_wP), -1, -1))
    return [(k_wHPE[:, :, num_anchors:], v_wHPE[:, :, num_anchors:]) for k_wHPE, v_wHPE in far]


def _gradients_under_gates(
    evaluator: Evaluator, tokens_wT: torch.Tensor, loss: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Return the derivative of a loss with respect to the gates at 0 of all long-range tokens, fp32 [w, M], or [L, w, M]."""
    num_anchors, num_long_range = evaluator.num_anchors, tokens_wT.shape[1] - evaluator.local_len
    tokens_wT, positions_wT = with_anchor(tokens_wT, evaluator.anchor_id)
    long_range = slice(num_anchors, num_anchors + num_long_range)
    log_gate_wT = torch.zeros(tokens_wT.shape, device=tokens_wT.device)
    log_gate_wT[:, long_range] = LOG_GATE
    with torch.enable_grad():
        log_gate_wT.requires_grad_()
        bias_wTT = gate_bias(log_gate_wT, local_len=evaluator.local_len, visibility=evaluator.visibility)
        logits_wV = evaluator.model.last_logits(tokens_wT, positions_wT, bias_BTT=bias_wTT)
        (gradient_wT,) = derivatives(loss(logits_wV.float()), [log_gate_wT])
    tokens_ran((1 + gradient_wT.shape[:-2].numel() * BACKWARD_PASSES) * tokens_wT.numel())
    return gradient_wT[..., long_range] / math.exp(LOG_GATE)  # d/d gate = (d/d log gate) / gate
