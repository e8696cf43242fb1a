"""Windows -> records: which long-range tokens are influential, and how much loss comes back when they are unmasked.

Legend: W windows of a part, T tokens of a window, M long-range tokens, S set size.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Optional

import numpy as np
import torch

from olmo_sparsity.config import InfluenceConfig
from olmo_sparsity.measure.evaluator import Evaluator
from olmo_sparsity.measure.losses import log_probs
from olmo_sparsity.measure.scores import CONTEXTS, WindowScores, rank
from olmo_sparsity.measure.selectors import SCREENED, SELECTORS
from olmo_sparsity.text.windows import Windows


@dataclass(frozen=True)
class Measured:
    """One context of W windows: losses in nats, and the selections of every selector."""

    loss_long: np.ndarray  # [W]
    loss_single: Optional[np.ndarray]  # [W, M]
    scores: dict[str, np.ndarray]  # [W, M]
    positions: dict[str, np.ndarray]  # [W, max k], most influential first
    loss_sparse: dict[str, np.ndarray]  # [W, number of k]


def _distinct_losses(scored: WindowScores, positions: dict[str, np.ndarray], k: int) -> dict[str, np.ndarray]:
    """loss(J_k) of every selector, fp32 [W] each; a set that several selectors chose is evaluated once, one of a single
    position not again where the selectors have asked for it."""
    num_windows = len(scored.window_ids)
    sets = np.concatenate([np.sort(chosen[:, :k], axis=1) for chosen in positions.values()])
    rows = np.column_stack([np.tile(np.arange(num_windows), len(positions)), sets])
    distinct, which = np.unique(rows, axis=0, return_inverse=True)
    losses = np.full(len(distinct), np.nan, dtype=np.float32)
    if k == 1:
        losses = scored.known_singles()[distinct[:, 0], distinct[:, 1]]
    unknown = np.isnan(losses)
    losses[unknown] = scored.losses_of_rows(distinct[unknown, 0], distinct[unknown, 1:])
    return dict(zip(positions, losses[which.reshape(len(positions), num_windows)], strict=True))


def measure_context(scored: WindowScores, settings: InfluenceConfig) -> Measured:
    """L_long, and for every selector its scores, its ranking and L_short,sparse at every k."""
    scores = {name: SELECTORS[name].score(scored) for name in settings.selectors}
    positions = {name: rank(values)[:, : max(settings.k)] for name, values in scores.items()}
    of_k = [_distinct_losses(scored, positions, k) for k in settings.k]
    loss_sparse = {name: np.stack([losses[name] for losses in of_k], axis=1) for name in positions}
    loss_single = scored.loss_single if settings.save_candidates else None
    return Measured(scored.loss_long, loss_single, scores, positions, loss_sparse)


@dataclass(frozen=True)
class Screening:
    """What screening lost in a sample of V of the windows, under one context."""

    windows: np.ndarray  # int64 [V], indices into the W windows
    recall: dict[str, np.ndarray]  # of each screened selector, [V, number of k]: share of the exact J_k that was chosen
    gain_lost: dict[str, np.ndarray]  # nats, [V, number of k]: L_short,sparse of what was chosen minus of the exact J_k


def check_screening(scored: WindowScores, measured: Measured, settings: InfluenceConfig) -> Screening:
    """Measures a random sample of the windows again, with nothing screened."""
    drawn = np.array([np.random.default_rng([settings.seed, 5, int(i)]).random() for i in scored.window_ids])
    sample = np.flatnonzero(drawn < settings.screen_sample)
    screened = [name for name in SCREENED if name in settings.selectors]
    recall = {name: np.empty((0, len(settings.k)), dtype=np.float32) for name in screened}
    gain_lost = dict(recall)
    if len(sample):
        exact = measure_context(scored.subset(sample), dataclasses.replace(settings, selectors=screened))
        for name in screened:
            chosen = measured.positions[name][sample]
            found = (chosen[:, :, None] == exact.positions[name][:, None, :]).cumsum(axis=1).cumsum(axis=2)
            recall[name] = np.stack([found[:, k - 1, k - 1] / k for k in settings.k], axis=1)
            gain_lost[name] = measured.loss_sparse[name][sample] - exact.loss_sparse[name]
    return Screening(sample, recall, gain_lost)


def measure_windows(
    evaluator: Evaluator,
    screener: Optional[Evaluator],
    windows: Windows,
    chosen: np.ndarray,
    settings: InfluenceConfig,
    device: torch.device,
) -> tuple[np.ndarray, dict[str, Measured], dict[str, Screening]]:
    """(L_short [W], {context: Measured}, {context: Screening}, empty where nothing is screened) of the windows numbered
    ``chosen``; the null context changes only the long-range tokens, so that L_short is the same in both."""
    num_long_range = windows.full_len - evaluator.local_len
    rows = torch.from_numpy(windows.tokens(chosen)).to(device)
    tokens_WT, targets_W = rows[:, :-1].contiguous(), rows[:, -1].contiguous()
    null_WT = tokens_WT.clone()
    null_WT[:, :num_long_range] = torch.from_numpy(windows.null_tokens(chosen, num_long_range)).to(device)
    nothing = torch.zeros(len(chosen), 0, dtype=torch.int64, device=device)
    log_p_short = log_probs(evaluator, tokens_WT, nothing)
    contexts = {
        context: WindowScores(
            evaluator=evaluator,
            tokens_WT=tokens,
            targets_W=targets_W,
            log_p_short_WV=log_p_short,
            window_ids=chosen,
            context=context,
            seed=settings.seed,
            max_k=max(settings.k),
            lasso_masks=settings.lasso_masks,
            with_kl="kl" in settings.selectors,
            screen=settings.screen,
            screen_by=settings.screen_by,
            screener=screener,
        )
        for context, tokens in zip(CONTEXTS, (tokens_WT, null_WT), strict=True)
    }
    measured = {name: measure_context(one, settings) for name, one in contexts.items()}
    screening = {}
    if settings.screen is not None:
        screening = {name: check_screening(one, measured[name], settings) for name, one in contexts.items()}
    return contexts["real"].loss_short, measured, screening
