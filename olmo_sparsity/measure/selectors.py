"""Selectors: a score for each long-range position; the k highest are J_k, nested by construction.

A selector is a function from scored windows to scores. What several of them need (the single-token unmaskings, say) is
measured once, when the first of them asks, and shared. Legend: W windows, M long-range positions, V vocabulary, N
visible sets of a window.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.linear_model import Lasso
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from olmo_sparsity.measure.losses import (
    all_but_one_losses,
    long_range_attention,
    losses_of_masks,
)
from olmo_sparsity.measure.scores import WindowScores, rank

SCREENED = ("unmask-one", "kl")  # which selectors ``screen`` spares evaluations
LASSO_ALPHA = 0.01  # on standardised masks, as in ContextCite
NUM_BACKWARD = 2  # a backward pass costs about two forward passes


@dataclass(frozen=True)
class Selector:
    """A scoring function, Scored -> [W, M]; whether the scores depend on the target's identity; and what they cost, in
    forward passes over one row, as a function of (M, max k, lasso masks), nothing being screened."""

    score: Callable[[WindowScores], np.ndarray]
    sees_target: bool
    num_evaluations: Callable[[int, int, int], int]


def _unmask_one(scored: WindowScores) -> np.ndarray:
    """loss({}) - loss({j}): the gain of unmasking j alone (our reading of the paper's Eq. 20)."""
    return scored.loss_short[:, None] - scored.loss_single


def _mask_one(scored: WindowScores) -> np.ndarray:
    """loss(all but j) - loss(all): what hiding j alone costs."""
    losses = all_but_one_losses(scored.evaluator, scored.tokens_WT, scored.targets_W)
    return losses.cpu().numpy() - scored.loss_long[:, None]


def _greedy(scored: WindowScores) -> np.ndarray:
    """Forward selection: each step takes the position that lowers loss(J so far + j) most (ties: the nearer).

    The position of step i (from 0) scores max_k - i, one that is never taken 0: the gains of the steps need not fall,
    and the scores must keep their order.
    """
    num_windows, num_long_range = len(scored.tokens_WT), scored.num_long_range
    rows = torch.arange(num_windows, device=scored.tokens_WT.device)
    scores = np.zeros((num_windows, num_long_range))
    taken = scored.everything[:, :0]
    left = scored.everything
    for step in range(scored.max_k):
        sets = torch.cat([taken[:, None, :].expand(-1, left.shape[1], -1), left[:, :, None]], dim=2)
        best = torch.from_numpy(rank(-scored.losses(sets))[:, 0].copy()).to(left.device)
        pick = left[rows, best]
        scores[np.arange(num_windows), pick.cpu().numpy()] = scored.max_k - step
        taken = torch.cat([taken, pick[:, None]], dim=1)
        left = left[left != pick[:, None]].view(num_windows, -1)
    return scores


def _kl(scored: WindowScores) -> np.ndarray:
    """KL(p_all, p_{}) - KL(p_all, p_{j}): how far unmasking j moves the prediction to the full-context one."""
    return scored.kl_short[:, None] - scored.kl_single


def _gradient(scored: WindowScores) -> np.ndarray:
    """Minus the derivative of the loss with respect to a gate on j, at gate 0: unmask-one to first order."""
    return scored.gradient


def _attention(scored: WindowScores) -> np.ndarray:
    """Attention of the last token to j under full context, mean over heads and layers."""
    return long_range_attention(scored.evaluator, scored.tokens_WT).cpu().numpy()


def lasso_masks(scored: WindowScores) -> np.ndarray:
    """bool [W, N, M]: the random visible sets of ``lasso``; every position is visible in half of them."""
    shape = (scored.lasso_masks, scored.num_long_range)
    return np.stack([draw.random(shape) < 0.5 for draw in scored.generators(4)])


def _lasso(scored: WindowScores) -> np.ndarray:
    """Minus the coefficients of a sparse linear model of the loss over random visible sets (ContextCite, Cohen-Wang et
    al. 2024; they fit the logit of the probability, here it is the loss)."""
    keep = lasso_masks(scored)
    masks = torch.from_numpy(keep).to(scored.tokens_WT.device)
    losses = losses_of_masks(scored.evaluator, scored.tokens_WT, scored.targets_W, masks).cpu().numpy()
    scores = np.empty((len(keep), scored.num_long_range))
    for w, (sets, values) in enumerate(zip(keep.astype(np.float64), losses.astype(np.float64), strict=True)):
        scaler, lasso = StandardScaler(), Lasso(alpha=LASSO_ALPHA)
        make_pipeline(scaler, lasso).fit(sets, values)
        scores[w] = -lasso.coef_ / scaler.scale_
    return scores


def _random(scored: WindowScores) -> np.ndarray:
    """Uniform numbers, a function of seed, window and context alone."""
    return np.stack([draw.random(scored.num_long_range) for draw in scored.generators(3)])


def _nearest(scored: WindowScores) -> np.ndarray:
    """The position itself: the nearer to the local context, the higher."""
    num_long_range = scored.num_long_range
    return np.broadcast_to(np.arange(num_long_range, dtype=np.float64), (len(scored.tokens_WT), num_long_range))


SELECTORS: dict[str, Selector] = {
    "unmask-one": Selector(_unmask_one, sees_target=True, num_evaluations=lambda m, k, n: m + 1),
    "kl": Selector(_kl, sees_target=False, num_evaluations=lambda m, k, n: m + 2),
    "gradient": Selector(_gradient, sees_target=True, num_evaluations=lambda m, k, n: 1 + NUM_BACKWARD),
    "attention": Selector(_attention, sees_target=False, num_evaluations=lambda m, k, n: 1),
    "random": Selector(_random, sees_target=False, num_evaluations=lambda m, k, n: 0),
    "nearest": Selector(_nearest, sees_target=False, num_evaluations=lambda m, k, n: 0),
    "mask-one": Selector(_mask_one, sees_target=True, num_evaluations=lambda m, k, n: m + 1),
    "greedy": Selector(_greedy, sees_target=True, num_evaluations=lambda m, k, n: k * m - k * (k - 1) // 2),
    "lasso": Selector(_lasso, sees_target=True, num_evaluations=lambda m, k, n: n),
}
