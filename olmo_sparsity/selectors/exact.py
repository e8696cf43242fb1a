"""Selectors that run the model on visible sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from olmo_sparsity.selectors.registry import rank, selector

if TYPE_CHECKING:
    from olmo_sparsity.measure.scores import Scores


@selector("unmask-one", sees_target=True, cost=lambda many, settings: many + 1)
def unmask_one(s: Scores) -> np.ndarray:
    """How far the loss of the target falls when this candidate alone is unmasked: loss({}) - loss({j}).

    Our reading of Eq. 20 of Golowich et al. (ICML 2025, https://arxiv.org/abs/2502.16792).
    """
    return s.loss_short[:, None] - s.loss_single


@selector("kl", cost=lambda many, settings: many + 2)
def kl(s: Scores) -> np.ndarray:
    """How far this candidate alone moves the prediction towards the full-context one: KL(p_all, p_{}) - KL(p_all, p_{j})."""
    return s.kl_short[:, None] - s.kl_single


@selector("mask-one", sees_target=True, cost=lambda many, settings: many + 1)
def mask_one(s: Scores) -> np.ndarray:
    """How far the loss of the target rises when this candidate alone is masked: loss(all but j) - loss(all)."""
    return s.loss_without - s.loss_long[:, None]


def num_steps(many: int, settings: Any) -> int:
    """Evaluations of a forward selection: one fewer in each of its k steps."""
    k = min(max(settings.k), many)
    return k * many - k * (k - 1) // 2


@selector("greedy", sees_target=True, cost=num_steps)
def greedy(s: Scores) -> np.ndarray:
    """Forward selection: each step takes the candidate that lowers loss(J so far + j) most."""
    return _forward_selection(s, by_divergence=False)


@selector("greedy-kl", cost=lambda many, settings: num_steps(many, settings) + 1)
def greedy_kl(s: Scores) -> np.ndarray:
    """Forward selection: each step takes the candidate that lowers KL(p_all, p_{J so far + j}) most."""
    return _forward_selection(s, by_divergence=True)


def _forward_selection(s: Scores, *, by_divergence: bool) -> np.ndarray:
    """Score max_k - i for the candidate of step i, 0 for others: gains need not fall, but scores keep the order of the steps."""
    windows, scores = np.arange(s.num_windows), np.zeros((s.num_windows, s.num_candidates))
    for step in range(min(s.max_k, s.num_candidates)):
        taken = scores > 0
        left = np.argsort(taken, axis=1, kind="stable")[:, : s.num_candidates - step]  # [W, candidates not yet taken]
        shown = np.repeat(taken[:, None], left.shape[1], axis=1)
        np.put_along_axis(shown, left[:, :, None], True, axis=2)
        losses, divergences = s.evaluate(shown)
        best = left[windows, rank(-(divergences if by_divergence else losses))[:, 0]]
        scores[windows, best] = s.max_k - step
    return scores
