"""Selectors that evaluate visible sets exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from olmo_sparsity.selectors.registry import rank, selector

if TYPE_CHECKING:
    from olmo_sparsity.measure.scores import Scores


@selector("unmask-one", sees_target=True, cost="M + 1", num_evaluations=lambda many, k: many + 1)
def unmask_one(s: Scores) -> np.ndarray:
    """How far the loss of the target falls when this candidate alone is unmasked: loss({}) - loss({j}).

    Our reading of Eq. 20 of Golowich et al. (ICML 2025).
    """
    return s.loss_short[:, None] - s.loss_single


@selector("kl", cost="M + 2", num_evaluations=lambda many, k: many + 2)
def kl(s: Scores) -> np.ndarray:
    """How far this candidate alone moves the prediction towards the full-context one: KL(p_all, p_{}) - KL(p_all, p_{j})."""
    return s.kl_short[:, None] - s.kl_single


@selector("mask-one", sees_target=True, cost="M + 1, long ones", num_evaluations=lambda many, k: many + 1)
def mask_one(s: Scores) -> np.ndarray:
    """How far the loss of the target rises when this candidate alone is masked: loss(all but j) - loss(all)."""
    return s.loss_without - s.loss_long[:, None]


def num_steps(many: int, k: int) -> int:
    """The evaluations of a forward selection: one fewer in each step."""
    return k * many - k * (k - 1) // 2


@selector("greedy", sees_target=True, cost="k M - k (k - 1) / 2", num_evaluations=num_steps)
def greedy(s: Scores) -> np.ndarray:
    """Forward selection: each step takes the candidate that lowers loss(J so far + j) most."""
    return _forward_selection(s, by_divergence=False)


@selector("greedy-kl", cost="k M - k (k - 1) / 2 + 1", num_evaluations=lambda many, k: num_steps(many, k) + 1)
def greedy_kl(s: Scores) -> np.ndarray:
    """Forward selection: each step takes the candidate that lowers KL(p_all, p_{J so far + j}) most."""
    return _forward_selection(s, by_divergence=True)


def _forward_selection(s: Scores, *, by_divergence: bool) -> np.ndarray:
    """Score max_k - i for the candidate of step i, 0 for others: gains need not fall, but scores keep the order of the steps."""
    shape = s.num_windows, s.num_candidates
    windows, scores, taken = np.arange(s.num_windows), np.zeros(shape), np.zeros(shape, dtype=bool)
    for step in range(min(s.max_k, s.num_candidates)):
        left = np.argsort(taken, axis=1, kind="stable")[
            :, : s.num_candidates - step
        ]  # candidates not yet taken, [W, N]
        shown = np.repeat(taken[:, None], left.shape[1], axis=1)
        np.put_along_axis(shown, left[:, :, None], True, axis=2)
        losses, divergences = s.evaluate(shown)
        best = left[windows, rank(-(divergences if by_divergence else losses))[:, 0]]
        scores[windows, best], taken[windows, best] = s.max_k - step, True
    return scores
