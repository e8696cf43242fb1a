"""Losses of windows with one group of tokens unmasked, or all but one: see ``olmo_sparsity.measure.visible.window_batch``.

They are those of ``read_singles`` and ``all_but_one_losses``, with groups of tokens in place of positions.
"""

from __future__ import annotations

from typing import Optional

import numpy as np
import torch

from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import SingleReadout, divergence, read_sets, surprisals
from olmo_sparsity.measure.visible.passes import VisibleSets, log_probs_of_all_but_spans, log_probs_of_sets
from olmo_sparsity.measure.visible.window_batch import TokenGroups

POSITIONS_AT_ONCE = 1 << 24  # of the rows of several windows that are kept in memory together


@torch.inference_mode()
def read_single_groups(
    evaluator: Evaluator,
    tokens_WT: torch.Tensor,
    *,
    groups: TokenGroups,
    labels_WA: torch.Tensor,
    reference_WV: Optional[torch.Tensor] = None,
    log_p_short_WV: Optional[torch.Tensor] = None,
) -> SingleReadout:
    """Like ``read_singles``, for the visible sets that are one group each.

    Args:
        evaluator: the model.
        tokens_WT: int64, the windows, without their targets.
        groups: of the windows.
        labels_WA: int64, tokens whose losses are returned.
        reference_WV: log-probabilities p; where given, KL(p, prediction) is returned, too.
        log_p_short_WV: log-probabilities under the visible set {}; where given, divergences from them are returned, too.

    Returns:
        Losses and divergences of all groups; NaN where a window has no more.
    """
    device = tokens_WT.device
    windows_R, groups_R = np.nonzero(groups.exists_WI)
    by_size = groups.rows_by_size(windows_R, groups_R[:, None])
    rows = [
        VisibleSets(torch.from_numpy(windows_R[rows_r]).to(device), torch.from_numpy(visible_rS).to(device))
        for rows_r, visible_rS in by_size
    ]
    places = [torch.from_numpy(groups_R[rows_r]).to(device) for rows_r, _ in by_size]
    losses_WJA = torch.full((*groups.exists_WI.shape, labels_WA.shape[1]), torch.nan, device=device)
    kl_WJ, kl_from_short_WJ = (
        None if log_p_WV is None else torch.full(groups.exists_WI.shape, torch.nan, device=device)
        for log_p_WV in (reference_WV, log_p_short_WV)
    )
    for number, batch, log_q_rV in log_probs_of_sets(evaluator, tokens_WT, sets=rows):
        windows_r, places_r = rows[number].windows_R[batch], places[number][batch]
        losses_WJA[windows_r, places_r] = surprisals(log_q_rV, labels_WA[windows_r])
        for kl, log_p_WV in ((kl_WJ, reference_WV), (kl_from_short_WJ, log_p_short_WV)):
            if kl is not None and log_p_WV is not None:
                kl[windows_r, places_r] = divergence(log_p_WV[windows_r], log_q_rV)
    return SingleReadout(losses_WJA, kl_WJ, kl_from_short_WJ)


@torch.inference_mode()
def all_but_one_group_losses(
    evaluator: Evaluator, tokens_WT: torch.Tensor, *, groups: TokenGroups, labels_WA: torch.Tensor
) -> torch.Tensor:
    """Return loss(all but group i) of A labels for every group i, nats, fp32 [W, I, A]; NaN where there is no group."""
    (num_windows, num_long_range), width, device = groups.groups_WM.shape, groups.num_groups, tokens_WT.device
    losses_WIA = torch.full((num_windows, width, labels_WA.shape[1]), torch.nan, device=device)
    # Where a pass holds one row, rows of a size gain nothing from one another, and much from what precedes their group.
    holds_one_row = evaluator.rows_per_pass(evaluator.window_len(tokens_WT.shape[1])) == 1
    if holds_one_row and evaluator.path == "compact" and evaluator.visibility == "hidden":
        return _losses_after_prefixes(evaluator, tokens_WT, groups=groups, labels_WA=labels_WA)
    windows_at_once = max(1, POSITIONS_AT_ONCE // (width * num_long_range))
    for begin in range(0, num_windows, windows_at_once):
        exists_wI = groups.exists_WI[begin : begin + windows_at_once]
        windows_R, groups_R = np.nonzero(exists_wI)
        windows_R = windows_R + begin
        sizes_R, first_R = groups.sizes_WI[windows_R, groups_R], groups.first_WI[windows_R, groups_R]
        places, rows = [], []
        for size in np.unique(sizes_R).tolist():
            rows_r = np.flatnonzero(sizes_R == size)
            others_S = np.arange(num_long_range - size)
            others_rS = others_S + size * (others_S >= first_R[rows_r, None])
            windows_r = torch.from_numpy(windows_R[rows_r]).to(device)
            places.append((windows_r, torch.from_numpy(groups_R[rows_r]).to(device)))
            rows.append(VisibleSets(windows_r, torch.from_numpy(others_rS).to(device)))
        readouts = read_sets(evaluator, tokens_WT, labels_WA=labels_WA, sets=rows)
        for place, readout in zip(places, readouts, strict=True):
            losses_WIA[place] = readout.losses_RA
    return losses_WIA


def _losses_after_prefixes(
    evaluator: Evaluator, tokens_WT: torch.Tensor, *, groups: TokenGroups, labels_WA: torch.Tensor
) -> torch.Tensor:
    """Like ``all_but_one_group_losses``, a window and a group at a time: what precedes the group is computed once."""
    losses_WIA = torch.full((len(tokens_WT), groups.num_groups, labels_WA.shape[1]), torch.nan, device=tokens_WT.device)
    for w in range(len(tokens_WT)):
        first_I = groups.first_WI[w, : groups.num_groups_W[w]].tolist()
        spans = list(zip(first_I, [*first_I[1:], groups.groups_WM.shape[1]], strict=True))
        for i, log_q_1V in enumerate(log_probs_of_all_but_spans(evaluator, tokens_WT[w : w + 1], spans=spans)):
            losses_WIA[w, i] = surprisals(log_q_1V[0], labels_WA[w])
    return losses_WIA
