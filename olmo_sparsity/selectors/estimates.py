"""Selectors that estimate: first-order effects, attention, a linear surrogate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from olmo_sparsity.selectors.registry import ATTENTION, rank, selector

if TYPE_CHECKING:
    from olmo_sparsity.measure.scores import Scores

LASSO_ALPHA = 0.01  # on standardised masks, as in ContextCite
PASSES = 3  # cost of one pass forward and backward


@selector("gradient", sees_target=True, cost=PASSES)
def gradient(s: Scores) -> np.ndarray:
    """First-order estimate of unmask-one: minus the derivative of the loss by a gate on the attention to j, at gate 0."""
    return s.gradient


@selector("attention", cost=1, needs=[ATTENTION])
def attention(s: Scores) -> np.ndarray:
    """Attention of the last token under full context, mean over heads and layers.

    The score of TOVA (Oren et al. 2024, https://arxiv.org/abs/2401.06104).
    """
    return s.attention


@selector(
    "greedy-patching",
    cost=lambda many, settings: (
        PASSES * (1 + (min(max(settings.k), many) - 1).bit_length()) + 1
    ),  # 1 + ceil(log2 k) rounds
    needs_entries=True,
    is_extra=True,
)
def greedy_patching(s: Scores) -> np.ndarray:
    """Forward selection by attribution patching: rounds of 1, 1, 2, 4, ... that lower KL(p_all, p) most beside earlier ones.

    Nanda 2023, https://www.neelnanda.io/mechanistic-interpretability/attribution-patching, in rounds.
    """
    scores, taken = np.zeros((s.num_windows, s.num_candidates)), 0
    while taken < min(s.max_k, s.num_candidates):
        effects = s.patching_beside(scores > 0)
        effects[scores > 0] = np.nan
        size = min(max(taken, 1), s.max_k - taken, s.num_candidates - taken)
        best = rank(-effects)[:, :size]
        np.put_along_axis(scores, best, s.max_k - taken - np.arange(size, dtype=np.float64)[None], axis=1)
        taken += size
    return scores


@selector("lasso", sees_target=True, cost=lambda many, settings: settings.lasso_masks)
def lasso(s: Scores) -> np.ndarray:
    """Weight in a sparse linear model of the loss over random visible sets (`influence.lasso_masks`).

    ContextCite (Cohen-Wang et al. 2024, https://arxiv.org/abs/2409.00729) fits the logit of the probability instead of the loss.
    """
    from sklearn.linear_model import Lasso  # takes longer to import than some measurements do
    from sklearn.preprocessing import StandardScaler

    scores = np.empty((s.num_windows, s.num_candidates))
    for w, (shown_NI, losses_N) in enumerate(zip(s.lasso_sets, s.lasso_losses, strict=True)):
        scaler, model = StandardScaler(), Lasso(alpha=LASSO_ALPHA)
        model.fit(scaler.fit_transform(shown_NI.astype(np.float64)), losses_N.astype(np.float64))
        scores[w] = -model.coef_ / scaler.scale_
    return scores
