"""Selectors: a score for each long-range position; the k highest are J_k, so J_1, J_2, ... are nested.

A scorer is a function from ``WindowScores`` to the scores. What several scorers need (such as the single-token unmaskings)
is computed once, when the first of them asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.linear_model import Lasso
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from olmo_sparsity.config import InfluenceConfig
from olmo_sparsity.measure.hierarchy import num_blocks
from olmo_sparsity.measure.losses import long_range_attention
from olmo_sparsity.measure.scores import WindowScores, rank

SCREENED = ("unmask-one", "kl")  # the selectors whose candidates are screened
LASSO_ALPHA = 0.01  # on standardised masks, as in ContextCite
BACKWARD_COST = 2  # forward passes that a backward pass costs, roughly
RANDOM_SCORES = 3  # purpose of a random generator; a change would change the tables


@dataclass(frozen=True)
class ScoringSize:
    """What the cost of a scorer depends on, in each window."""

    num_candidates: int
    max_k: int
    lasso_masks: int


@dataclass(frozen=True)
class Scorer:
    """A scoring function and its properties.

    Attributes:
        score: ``WindowScores`` -> scores, float [W, M], NaN where screening left a position out.
        sees_target: True if the scores depend on which token the target is.
        num_evaluations: the cost per window, in forward passes over one row, where nothing is screened.
    """

    score: Callable[[WindowScores], np.ndarray]
    sees_target: bool
    num_evaluations: Callable[[ScoringSize], int]


def _unmask_one(cache: WindowScores) -> np.ndarray:
    """Return loss({}) - loss({j}), the gain of unmasking j alone (our reading of the paper's Eq. 20)."""
    return cache.loss_short_W[:, None] - cache.loss_single_WM


def _mask_one(cache: WindowScores) -> np.ndarray:
    """Return loss(all but j) - loss(all), what hiding j alone costs."""
    return cache.loss_all_but_one_WM - cache.loss_long_W[:, None]


def _forward_selection(cache: WindowScores, evaluate: Callable[[torch.Tensor], np.ndarray]) -> np.ndarray:
    """Take max_k positions, one per step: the one that with those so far has the lowest value (ties: the nearer).

    The position of step i (from 0) scores max_k - i, and one that is never taken 0: the gains of the steps need not fall,
    but the scores must keep the order of the steps.

    Args:
        cache: the windows.
        evaluate: visible sets, int64 [W, N, S] -> their values, fp32 [W, N].
    """
    num_windows, device = len(cache.windows), cache.windows.device
    windows_W = torch.arange(num_windows, device=device)
    scores_WM = np.zeros((num_windows, cache.num_long_range))
    taken_WS = cache.all_positions_WM[:, :0]
    left_WJ = cache.all_positions_WM
    for step in range(cache.max_k):
        sets_WJS = torch.cat([taken_WS[:, None, :].expand(-1, left_WJ.shape[1], -1), left_WJ[:, :, None]], dim=2)
        best_W = torch.from_numpy(rank(-evaluate(sets_WJS))[:, 0].copy()).to(device)
        position_W = left_WJ[windows_W, best_W]
        scores_WM[np.arange(num_windows), position_W.cpu().numpy()] = cache.max_k - step
        taken_WS = torch.cat([taken_WS, position_W[:, None]], dim=1)
        left_WJ = left_WJ[left_WJ != position_W[:, None]].view(num_windows, -1)
    return scores_WM


def _greedy(cache: WindowScores) -> np.ndarray:
    """Forward selection on the loss: each step takes the position that lowers loss(J so far + j) most."""
    return _forward_selection(cache, cache.losses)


def _greedy_kl(cache: WindowScores) -> np.ndarray:
    """Forward selection on the divergence: each step takes the position that lowers KL(p_all, p_{J so far + j}) most."""
    return _forward_selection(cache, cache.divergences)


def _kl(cache: WindowScores) -> np.ndarray:
    """Return KL(p_all, p_{}) - KL(p_all, p_{j}): how far unmasking j moves the prediction to the full-context one."""
    return cache.kl_short_W[:, None] - cache.kl_single_WM


def _gradient(cache: WindowScores) -> np.ndarray:
    """Return minus the derivative of the loss with respect to a gate on j, at gate 0: unmask-one to first order."""
    return cache.gradient_WM


def _attention(cache: WindowScores) -> np.ndarray:
    """Return the attention of the last token to j under full context, the mean over heads and layers."""
    return long_range_attention(cache.evaluator, cache.windows.tokens_WT).cpu().numpy()


def _lasso(cache: WindowScores) -> np.ndarray:
    """Return minus the coefficients of a sparse linear model of the loss over random visible sets.

    Source: ContextCite (Cohen-Wang et al. 2024), which fits the logit of the probability instead of the loss.
    """
    visible_WNM, losses_WN = cache.predictions.lasso_masks_WNM, cache.lasso_loss_WN
    scores_WM = np.empty((len(cache.windows), cache.num_long_range))
    samples = zip(visible_WNM.astype(np.float64), losses_WN.astype(np.float64), strict=True)
    for w, (visible_NM, losses_N) in enumerate(samples):
        scaler, lasso = StandardScaler(), Lasso(alpha=LASSO_ALPHA)
        make_pipeline(scaler, lasso).fit(visible_NM, losses_N)
        scores_WM[w] = -lasso.coef_ / scaler.scale_
    return scores_WM


def _random(cache: WindowScores) -> np.ndarray:
    """Return uniform random numbers, a function of seed, window and context alone."""
    return np.stack([generator.random(cache.num_long_range) for generator in cache.windows.generators(RANDOM_SCORES)])


def _nearest(cache: WindowScores) -> np.ndarray:
    """Return the position itself: the nearer to the local context, the higher."""
    scores_M = np.arange(cache.num_long_range, dtype=np.float64)
    return np.broadcast_to(scores_M, (len(cache.windows), cache.num_long_range))


def _forward_selection_cost(size: ScoringSize) -> int:
    """Return the number of evaluations of ``_forward_selection``: one fewer in each step."""
    return size.max_k * size.num_candidates - size.max_k * (size.max_k - 1) // 2


SCORERS: dict[str, Scorer] = {
    "unmask-one": Scorer(_unmask_one, sees_target=True, num_evaluations=lambda size: size.num_candidates + 1),
    "kl": Scorer(_kl, sees_target=False, num_evaluations=lambda size: size.num_candidates + 2),
    "gradient": Scorer(_gradient, sees_target=True, num_evaluations=lambda size: 1 + BACKWARD_COST),
    "attention": Scorer(_attention, sees_target=False, num_evaluations=lambda size: 1),
    "random": Scorer(_random, sees_target=False, num_evaluations=lambda size: 0),
    "nearest": Scorer(_nearest, sees_target=False, num_evaluations=lambda size: 0),
    "mask-one": Scorer(_mask_one, sees_target=True, num_evaluations=lambda size: size.num_candidates + 1),
    "greedy": Scorer(_greedy, sees_target=True, num_evaluations=_forward_selection_cost),
    "greedy-kl": Scorer(_greedy_kl, sees_target=False, num_evaluations=lambda size: _forward_selection_cost(size) + 1),
    "lasso": Scorer(_lasso, sees_target=True, num_evaluations=lambda size: size.lasso_masks),
}


def num_evaluations(name: str, num_long_range: int, *, settings: InfluenceConfig) -> int:
    """Return what a selector's scores cost in each window, in forward passes over one row, screening included."""

    def cost(selector: str, num_candidates: int) -> int:
        return SCORERS[selector].num_evaluations(
            ScoringSize(num_candidates, max_k=max(settings.k), lasso_masks=settings.lasso_masks)
        )

    if settings.screen is None or name not in SCREENED:
        return cost(name, num_long_range)
    if settings.screen_by == "hierarchy":
        ranking = num_blocks(num_long_range, settings.screen)
    else:
        ranking = cost(name if settings.screen_by == "proxy" else "gradient", num_long_range)
    return cost(name, settings.screen) + ranking
