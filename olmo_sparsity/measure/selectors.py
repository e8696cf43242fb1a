"""Selectors: a score for each group of long-range tokens; the k highest are J_k, so J_1, J_2, ... are nested.

A group is one token, unless ``influence.unit`` says otherwise (``olmo_sparsity.measure.token_groups``).

A scorer is a function from ``WindowScores`` to the scores. What several scorers need (such as the unmaskings of single groups)
is computed once, when the first of them asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from olmo_sparsity.config import InfluenceConfig
from olmo_sparsity.config.measuring import SCREENED
from olmo_sparsity.measure.hierarchy import num_blocks
from olmo_sparsity.measure.scores import WindowScores, rank
from olmo_sparsity.measure.token_groups import NO_GROUP

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
        score: ``WindowScores`` -> scores, float [W, I], NaN where screening left a group out, and where a window has no more.
        sees_target: True if the scores depend on which token the target is.
        num_evaluations: the cost per window, in forward passes over one row, where nothing is screened.
    """

    score: Callable[[WindowScores], np.ndarray]
    sees_target: bool
    num_evaluations: Callable[[ScoringSize], int]


def _unmask_one(cache: WindowScores) -> np.ndarray:
    """Return loss({}) - loss({j}), the gain of unmasking j alone (our reading of the paper's Eq. 20)."""
    return cache.loss_short_W[:, None] - cache.loss_single_WI


def _mask_one(cache: WindowScores) -> np.ndarray:
    """Return loss(all but j) - loss(all), what hiding j alone costs."""
    return cache.loss_all_but_one_WI - cache.loss_long_W[:, None]


def _forward_selection(cache: WindowScores, *, by_divergence: bool) -> np.ndarray:
    """Take max_k groups, one per step: the one that with those so far has the lowest value (ties: the nearer).

    The group of step i (from 0) scores max_k - i, and one that is never taken 0: the gains of the steps need not fall,
    but the scores must keep the order of the steps.

    Args:
        cache: the windows.
        by_divergence: the value is KL(p_all, p_{J so far + j}); otherwise loss(J so far + j).
    """
    groups, num_windows = cache.groups, len(cache.windows)
    scores_WI = groups.with_missing(np.zeros((num_windows, groups.num_groups)))
    is_left_WI = groups.exists_WI.copy()
    taken_WS = np.empty((num_windows, 0), dtype=np.int64)
    for step in range(min(cache.max_k, groups.num_groups)):
        windows_R, groups_R = np.nonzero(is_left_WI)
        sets_RS = np.column_stack([taken_WS[windows_R], groups_R])
        ((losses_R, divergences_R),) = cache.evaluate_groups([(windows_R, sets_RS)], with_kl=by_divergence)
        values_WI = np.full(is_left_WI.shape, np.nan, dtype=np.float32)
        values_WI[windows_R, groups_R] = divergences_R if by_divergence else losses_R
        has_left_w = np.flatnonzero(is_left_WI.any(axis=1))
        taken_W = np.full(num_windows, NO_GROUP)
        taken_W[has_left_w] = rank(-values_WI)[has_left_w, 0]
        scores_WI[has_left_w, taken_W[has_left_w]] = cache.max_k - step
        is_left_WI[has_left_w, taken_W[has_left_w]] = False
        taken_WS = np.column_stack([taken_WS, taken_W])
    return scores_WI


def _greedy(cache: WindowScores) -> np.ndarray:
    """Forward selection on the loss: each step takes the group that lowers loss(J so far + j) most."""
    return _forward_selection(cache, by_divergence=False)


def _greedy_kl(cache: WindowScores) -> np.ndarray:
    """Forward selection on the divergence: each step takes the group that lowers KL(p_all, p_{J so far + j}) most."""
    return _forward_selection(cache, by_divergence=True)


def _kl(cache: WindowScores) -> np.ndarray:
    """Return KL(p_all, p_{}) - KL(p_all, p_{j}): how far unmasking j moves the prediction to the full-context one."""
    return cache.kl_short_W[:, None] - cache.kl_single_WI


def _gradient(cache: WindowScores) -> np.ndarray:
    """Return minus the derivative of the loss with respect to gates on j's tokens, at gate 0: unmask-one to first order."""
    return cache.gradient_WI


def _attention(cache: WindowScores) -> np.ndarray:
    """Return the attention of the last token to j's tokens under full context: the mean over heads and layers, and their sum."""
    return cache.groups.sums(cache.predictions.attention_WM.cpu().numpy())


def _lasso(cache: WindowScores) -> np.ndarray:
    """Return minus the coefficients of a sparse linear model of the loss over random visible sets.

    Source: ContextCite (Cohen-Wang et al. 2024), which fits the logit of the probability instead of the loss.
    """
    from sklearn.linear_model import Lasso  # takes longer to import than some measurements do
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    visible_WNI, losses_WN = cache.predictions.lasso_masks_WNI, cache.lasso_loss_WN
    num_groups_W = cache.groups.num_groups_W.tolist()
    scores_WI = np.full((len(cache.windows), cache.groups.num_groups), np.nan)
    samples = zip(num_groups_W, visible_WNI.astype(np.float64), losses_WN.astype(np.float64), strict=True)
    for w, (num_groups, visible_NI, losses_N) in enumerate(samples):
        scaler, lasso = StandardScaler(), Lasso(alpha=LASSO_ALPHA)
        make_pipeline(scaler, lasso).fit(visible_NI[:, :num_groups], losses_N)
        scores_WI[w, :num_groups] = -lasso.coef_ / scaler.scale_
    return scores_WI


def _random(cache: WindowScores) -> np.ndarray:
    """Return uniform random numbers, a function of seed, window and context alone."""
    scores_WI = np.full((len(cache.windows), cache.groups.num_groups), np.nan)
    generators = cache.windows.generators(RANDOM_SCORES)
    for w, (generator, num_groups) in enumerate(zip(generators, cache.groups.num_groups_W.tolist(), strict=True)):
        scores_WI[w, :num_groups] = generator.random(num_groups)
    return scores_WI


def _nearest(cache: WindowScores) -> np.ndarray:
    """Return the number of the group itself: the nearer to the local context, the higher."""
    scores_I = np.arange(cache.groups.num_groups, dtype=np.float64)
    return cache.groups.with_missing(np.broadcast_to(scores_I, (len(cache.windows), len(scores_I))))


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


def num_evaluations(name: str, num_groups: int, *, settings: InfluenceConfig) -> int:
    """Return what a selector's scores cost in a window, in forward passes over one row, screening included."""
    screened = num_groups if settings.screen is None else min(settings.screen, num_groups)
    max_k = min(max(settings.k), num_groups)

    def cost(selector: str, num_candidates: int) -> int:
        size = ScoringSize(num_candidates, max_k=max_k, lasso_masks=settings.lasso_masks)
        return SCORERS[selector].num_evaluations(size)

    if settings.screen is None or name not in SCREENED:
        return cost(name, num_groups)
    if settings.screen_by == "hierarchy":
        ranking = num_blocks(num_groups, screened)
    else:
        ranking = cost(name if settings.screen_by == "proxy" else "gradient", num_groups)
    return cost(name, screened) + ranking
