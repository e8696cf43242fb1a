"""How faithful the scores of a method are to the exact ones of the same window, and what exact scores after a ranking cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np
import torch
from scipy.stats import spearmanr

from benchmarks.long_methods import Outcome
from benchmarks.long_problems import K, Problem
from olmo_sparsity.measure.visible.losses import divergence, surprisal, target_losses
from olmo_sparsity.records.selectors import rank


def chosen(scores_I: np.ndarray, k: int = K) -> list[int]:
    """Return the k groups with the highest scores, the best first; of equal ones the nearer. Those without a score never."""
    ranked_I = rank(scores_I[None])[0]
    return [int(i) for i in ranked_I[:k] if np.isfinite(scores_I[i])]


def recall(scores_I: np.ndarray, exact_I: np.ndarray, k: int = K) -> float:
    """Return the share of the exact J_k that the scores choose."""
    wanted = chosen(exact_I, k)
    return len(set(chosen(scores_I, k)) & set(wanted)) / len(wanted)


def rank_correlation(scores_I: np.ndarray, exact_I: np.ndarray) -> Optional[float]:
    """Return Spearman's rank correlation with the exact scores; None where a group has no score, or all have the same."""
    if not np.isfinite(scores_I).all() or len(set(scores_I.tolist())) < 2 or len(set(exact_I.tolist())) < 2:
        return None
    return float(spearmanr(scores_I, exact_I).statistic)


@dataclass(frozen=True)
class SetQuality:
    """What the model predicts when a set of groups is visible, beside the local tokens; nats."""

    loss: float
    kl: float  # KL(p_all, prediction)


def quality(problem: Problem, groups: list[int]) -> SetQuality:
    """Return the loss of the target with some groups visible, and the divergence from the full-context prediction."""
    positions = problem.groups.positions(np.array([0]), np.array([groups], dtype=np.int64))
    if len(positions) == 0:
        loss = surprisal(problem.log_p_short_1V, problem.targets_1)
        return SetQuality(float(loss), float(divergence(problem.log_p_long_1V, problem.log_p_short_1V)))
    losses_11, divergences_11 = target_losses(
        problem.evaluator,
        problem.tokens_1T,
        targets_W=problem.targets_1,
        visible_WNS=torch.from_numpy(positions)[None, None],
        reference_WV=problem.log_p_long_1V,
    )
    assert divergences_11 is not None
    return SetQuality(float(losses_11), float(divergences_11))


def tokens_of_candidates(problem: Problem, groups: list[int]) -> int:
    """Return the tokens that exact scores of some groups take, without those of what precedes the local tokens.

    An unmasking runs the local tokens again; leaving a sentence out runs all that stands behind it.
    """
    if problem.quantity == "tokens":
        return len(groups) * problem.evaluator.local_len
    ends_I = problem.groups.first_WI[0] + problem.groups.sizes_WI[0]
    return sum(problem.tokens_1T.shape[1] - int(ends_I[i]) for i in groups)


def screened(problem: Problem, ranking: Outcome, *, exact: Outcome, number: int, shares_prefix: bool) -> Outcome:
    """Return the outcome of a ranking that is followed by exact scores of its best groups.

    The exact scores are those of the exact method, and cost their share of its tokens, at its tokens per second.

    Args:
        problem: the window.
        ranking: what ranks.
        exact: the exact method.
        number: N, how many groups are scored.
        shares_prefix: the exact scores go on from keys and values that the ranking has computed.
    """
    best = chosen(ranking.scores_I, number)
    scores_I = np.full(problem.num_groups, np.nan)
    scores_I[best] = exact.scores_I[best]
    prefix = problem.evaluator.window_len(problem.num_long_range)
    tokens = tokens_of_candidates(problem, best) + (0 if shares_prefix else prefix)
    seconds = float(np.median(ranking.seconds)) + tokens * float(np.median(exact.seconds)) / exact.tokens
    return Outcome(scores_I, [seconds], ranking.tokens + tokens)
