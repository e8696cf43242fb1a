"""ContextCite (Cohen-Wang et al. 2024) on the visible sets of a window.

Its package partitions text and needs downloads; here is its surrogate: random visible sets, in which each group is visible with
probability 1/2, the logit of the target's probability under each, and a sparse linear model of these on standardised masks.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.linear_model import Lasso
from sklearn.preprocessing import StandardScaler

from benchmarks.long_problems import Problem
from olmo_sparsity.measure.visible.losses import mask_losses

ALPHA = 0.01  # of the lasso, as in its package
KEEP = 0.5  # probability that a group is visible


def random_masks(num_masks: int, num_groups: int) -> np.ndarray:
    """Return visible sets, bool [N, I]; set i depends on i alone."""
    return np.stack([np.random.default_rng([i]).random(num_groups) < KEEP for i in range(num_masks)])


def logits_of_losses(losses_N: np.ndarray) -> np.ndarray:
    """Return log p - log(1 - p) of probabilities p that are given as losses -log p in nats."""
    return np.asarray(-losses_N - np.log(-np.expm1(-losses_N)))


def fit(visible_NI: np.ndarray, logits_N: np.ndarray) -> np.ndarray:
    """Return the weights of the sparse linear model of the logits, for masks that are not standardised; [I]."""
    scaler, lasso = StandardScaler(), Lasso(alpha=ALPHA)
    lasso.fit(scaler.fit_transform(visible_NI.astype(np.float64)), logits_N)
    return np.asarray(lasso.coef_ / scaler.scale_)


def context_cite(problem: Problem, num_masks: int) -> np.ndarray:
    """Return the scores of the groups of a window, [I]."""
    visible_NI = random_masks(num_masks, problem.num_groups)
    visible_NM = visible_NI[:, problem.groups.groups_WM[0]]
    losses_1NA = mask_losses(
        problem.evaluator,
        problem.tokens_1T,
        labels_WA=problem.targets_1[:, None],
        visible_WNM=torch.from_numpy(visible_NM)[None],
    )
    return fit(visible_NI, logits_of_losses(losses_1NA[0, :, 0].double().cpu().numpy()))
