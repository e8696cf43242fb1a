"""Selectors that estimate: first order, surrogates, attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from olmo_sparsity.selectors.registry import ATTENTION, rank, selector

if TYPE_CHECKING:
    from olmo_sparsity.measure.scores import Scores

LASSO_ALPHA = 0.01  # on standardised masks, as in ContextCite
LASSO_MASKS = 64
PASSES = 3  # of a pass forward and backward


@selector("gradient", sees_target=True, cost="3 (one forward, one backward)", num_evaluations=PASSES)
def gradient(s: Scores) -> np.ndarray:
    """First-order estimate of unmask-one: minus the derivative of the loss by a gate on the attention to j, at gate 0."""
    return s.gradient


@selector("attention", cost="1", num_evaluations=1, needs=[ATTENTION])
def attention(s: Scores) -> np.ndarray:
    """Attention of the last token under full context, mean over heads and layers."""
    return s.attention


def num_rounds(many: int, k: int) -> int:
    """The rounds of ``greedy_patching``: of 1, 1, 2, 4, 8, ... candidates."""
    return 1 + (min(k, many) - 1).bit_length()


@selector(
    "greedy-patching", cost="3 a round + 1", num_evaluations=lambda many, k: PASSES * num_rounds(many, k) + 1,
    needs_entries=True, is_extra=True,
)  # fmt: skip
def greedy_patching(s: Scores) -> np.ndarray:
    """Forward selection by attribution patching: rounds of 1, 1, 2, 4, ... that lower KL(p_all, p) most beside earlier ones."""
    scores, taken = np.zeros((s.num_windows, s.num_candidates)), 0
    while taken < min(s.max_k, s.num_candidates):
        estimates = s.patching_beside(scores > 0)
        estimates[scores > 0] = np.nan
        size = min(max(taken, 1), s.max_k - taken, s.num_candidates - taken)
        np.put_along_axis(
            scores, rank(-estimates)[:, :size], s.max_k - taken - np.arange(size, dtype=float)[None], axis=1
        )
        taken += size
    return scores


@selector("lasso", sees_target=True, cost=str(LASSO_MASKS), num_evaluations=LASSO_MASKS)
def lasso(s: Scores) -> np.ndarray:
    """Weight in a sparse linear model of the loss over random visible sets (`influence.lasso_masks`).

    ContextCite (Cohen-Wang et al. 2024, arXiv 2409.00729), which fits the logit of the probability instead of the loss.
    """
    from sklearn.linear_model import Lasso  # takes longer to import than some measurements do
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    scores = np.empty((s.num_windows, s.num_candidates))
    for w, (shown_NI, losses_N) in enumerate(zip(s.lasso_sets, s.lasso_losses, strict=True)):
        scaler, model = StandardScaler(), Lasso(alpha=LASSO_ALPHA)
        make_pipeline(scaler, model).fit(shown_NI.astype(np.float64), losses_N.astype(np.float64))
        scores[w] = -model.coef_ / scaler.scale_
    return scores
