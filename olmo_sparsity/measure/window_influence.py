"""Measures windows: which long-range tokens are influential, and how much loss comes back when they are unmasked."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Optional

import numpy as np
import torch

from olmo_sparsity.config import InfluenceConfig
from olmo_sparsity.measure.evaluator import Evaluator
from olmo_sparsity.measure.losses import short_log_probs
from olmo_sparsity.measure.scores import WindowScores, rank
from olmo_sparsity.measure.screening import ScreeningSettings
from olmo_sparsity.measure.selectors import SCORERS, SCREENED
from olmo_sparsity.measure.window_batch import CONTEXTS, WindowBatch
from olmo_sparsity.text.windows import Windows

SCREENING_SAMPLE = 5  # purpose of a random generator; a change would change the tables


@dataclass(frozen=True)
class SelectorOutcome:
    """What one selector chose in W windows."""

    scores_WM: np.ndarray  # NaN where screening left a position out
    positions_WS: np.ndarray  # int64, the S = max k chosen positions, most influential first
    loss_sparse_WK: np.ndarray  # loss(J_k), nats, fp32


@dataclass(frozen=True)
class WindowInfluence:
    """W windows under one context: losses in nats, and the outcome of every selector by its name."""

    loss_long_W: np.ndarray
    loss_single_WM: Optional[np.ndarray]  # loss({j}); None unless ``influence.save_candidates`` asks for it
    outcomes: dict[str, SelectorOutcome]


@dataclass(frozen=True)
class ScreeningCost:
    """What screening lost for one selector, in a sample of w of the W windows."""

    recall_wK: np.ndarray  # share of the exact J_k that was chosen
    gain_lost_wK: np.ndarray  # nats: loss(chosen J_k) - loss(exact J_k)


@dataclass(frozen=True)
class ScreeningCheck:
    """What screening lost under one context, for every screened selector by its name."""

    sample_w: np.ndarray  # int64, indices of the sampled windows
    costs: dict[str, ScreeningCost]


@dataclass(frozen=True)
class PartInfluence:
    """Everything measured on the windows of one part."""

    loss_short_W: np.ndarray  # nats; the same under both contexts, which differ only in the long-range tokens
    contexts: dict[str, WindowInfluence]
    screening: dict[str, ScreeningCheck]  # by context; empty where nothing is screened


def _losses_of_top_k(scores: WindowScores, positions: dict[str, np.ndarray], *, k: int) -> dict[str, np.ndarray]:
    """Return loss(J_k) of every selector, fp32 [W] each.

    Args:
        scores: the windows.
        positions: the chosen positions of every selector, int64 [W, S], most influential first.
        k: size of the visible set.
    """
    num_windows = len(scores.windows)
    sets_RS = np.concatenate([np.sort(positions_WS[:, :k], axis=1) for positions_WS in positions.values()])
    rows_RS = np.column_stack([np.tile(np.arange(num_windows), len(positions)), sets_RS])
    # A set that several selectors chose is evaluated once; a single position not again if a selector has asked for it.
    distinct_rS, index_R = np.unique(rows_RS, axis=0, return_inverse=True)
    losses_r = np.full(len(distinct_rS), np.nan, dtype=np.float32)
    if k == 1:
        losses_r = scores.known_loss_single_WM[distinct_rS[:, 0], distinct_rS[:, 1]]
    unknown_r = np.isnan(losses_r)
    losses_r[unknown_r] = scores.losses_of_rows(distinct_rS[unknown_r, 0], distinct_rS[unknown_r, 1:])
    return dict(zip(positions, losses_r[index_R.reshape(len(positions), num_windows)], strict=True))


def measure_context(scores: WindowScores, settings: InfluenceConfig) -> WindowInfluence:
    """Measure windows under one context: L_long, and the scores, the ranking and L_short,sparse(k) of every selector."""
    scores_WM = {name: SCORERS[name].score(scores) for name in settings.selectors}
    positions_WS = {name: rank(scores_WM[name])[:, : max(settings.k)] for name in settings.selectors}
    losses_by_k = [_losses_of_top_k(scores, positions_WS, k=k) for k in settings.k]
    outcomes = {
        name: SelectorOutcome(
            scores_WM=scores_WM[name],
            positions_WS=positions_WS[name],
            loss_sparse_WK=np.stack([losses[name] for losses in losses_by_k], axis=1),
        )
        for name in settings.selectors
    }
    return WindowInfluence(
        loss_long_W=scores.loss_long_W,
        loss_single_WM=scores.loss_single_WM if settings.save_candidates else None,
        outcomes=outcomes,
    )


def check_screening(scores: WindowScores, measured: WindowInfluence, *, settings: InfluenceConfig) -> ScreeningCheck:
    """Measure a random sample of the windows again without screening, and compare."""
    window_ids = scores.windows.window_ids_W.tolist()
    drawn_W = np.array([np.random.default_rng([settings.seed, SCREENING_SAMPLE, i]).random() for i in window_ids])
    sample_w = np.flatnonzero(drawn_W < settings.screen_sample)
    screened = [name for name in SCREENED if name in settings.selectors]
    if not len(sample_w):
        empty_wK = np.empty((0, len(settings.k)), dtype=np.float32)
        return ScreeningCheck(sample_w, {name: ScreeningCost(empty_wK, empty_wK) for name in screened})
    exact = measure_context(scores.without_screening(sample_w), dataclasses.replace(settings, selectors=screened))
    costs = {}
    for name in screened:
        outcome, exact_outcome = measured.outcomes[name], exact.outcomes[name]
        same_wSS = outcome.positions_WS[sample_w][:, :, None] == exact_outcome.positions_WS[:, None, :]
        common_wSS = same_wSS.cumsum(axis=1).cumsum(axis=2)  # entry [k-1, k-1]: positions that both J_k have
        costs[name] = ScreeningCost(
            recall_wK=np.stack([common_wSS[:, k - 1, k - 1] / k for k in settings.k], axis=1),
            gain_lost_wK=outcome.loss_sparse_WK[sample_w] - exact_outcome.loss_sparse_WK,
        )
    return ScreeningCheck(sample_w, costs)


def batches_of_contexts(
    windows: Windows, window_ids_W: np.ndarray, *, num_long_range: int, seed: int, device: torch.device
) -> dict[str, WindowBatch]:
    """Return the windows with these numbers under every context, on a device."""
    rows_WT = torch.from_numpy(windows.tokens(window_ids_W)).to(device)  # int64, the target last
    tokens_WT, targets_W = rows_WT[:, :-1].contiguous(), rows_WT[:, -1].contiguous()
    null_WT = tokens_WT.clone()
    null_WT[:, :num_long_range] = torch.from_numpy(windows.null_tokens(window_ids_W, num_long_range)).to(device)
    return {
        context: WindowBatch(tokens, targets_W, window_ids_W=window_ids_W, context=context, seed=seed)
        for context, tokens in zip(CONTEXTS, (tokens_WT, null_WT), strict=True)
    }


def measure_windows(
    evaluator: Evaluator,
    batches: dict[str, WindowBatch],
    *,
    settings: InfluenceConfig,
    screening: Optional[ScreeningSettings],
) -> PartInfluence:
    """Measure windows under every context.

    Args:
        evaluator: the model.
        batches: the same windows under every context (``batches_of_contexts``).
        settings: what to measure.
        screening: how candidates are screened; None: not at all.
    """
    log_p_short_WV = short_log_probs(evaluator, batches["real"].tokens_WT)
    scores = {
        context: WindowScores(
            evaluator,
            batch,
            log_p_short_WV=log_p_short_WV,
            max_k=max(settings.k),
            lasso_masks=settings.lasso_masks,
            with_kl="kl" in settings.selectors,
            screening=screening,
        )
        for context, batch in batches.items()
    }
    contexts = {context: measure_context(scores[context], settings) for context in scores}
    checks = {}
    if screening is not None:
        checks = {context: check_screening(scores[context], contexts[context], settings=settings) for context in scores}
    return PartInfluence(scores["real"].loss_short_W, contexts, checks)
