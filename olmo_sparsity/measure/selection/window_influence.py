"""Measures windows: which long-range tokens are influential, and how much loss comes back when they are unmasked.

What is ranked and unmasked are groups of tokens, by default of one each (``olmo_sparsity.measure.visible.window_batch``).

A selector that sees the target gains even where the long-range tokens hold nothing: among M candidates it picks those that
happened to raise the probability of this target. On a *resampled target*, a label drawn from the prediction of the local tokens
alone, the long-range tokens carry no information, and whatever the selector gains is selection luck.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

import numpy as np
import torch
from tokenizers import Tokenizer

from olmo_sparsity.config import InfluenceConfig
from olmo_sparsity.measure.selection.predictions import Predictions
from olmo_sparsity.measure.selection.scores import WindowScores
from olmo_sparsity.measure.selection.screening import ScreeningSettings
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import recent_losses, short_log_probs
from olmo_sparsity.measure.visible.window_batch import CONTEXTS, TokenGroups, WindowBatch
from olmo_sparsity.records.selectors import NO_GROUP, SCREENED, SELECTORS, any_needs_attention, names_where, rank
from olmo_sparsity.text.null_contexts import NullContexts
from olmo_sparsity.text.units import group_numbers

# Purposes of random generators; a change would change the tables.
SCREENING_SAMPLE, RESAMPLED_LABELS = 5, 6


def draw_labels(log_p_short_WV: torch.Tensor, window_ids_W: np.ndarray, *, seed: int, num_draws: int) -> torch.Tensor:
    """Draw labels from the short-context prediction of each window.

    A label is the winner of an exponential race: with E_v exponential and independent, argmin E_v / p_v has distribution p.
    Unlike a search in cumulative sums, the race hardly depends on the rounding of p, which the size of a forward pass changes.

    Args:
        log_p_short_WV: log-probabilities with only the local tokens visible, fp32.
        window_ids_W: int64, the numbers of the windows.
        seed: draw A of a window is a function of its prediction and (seed, number of the window, A) alone.
        num_draws: A, labels of each window.

    Returns:
        int64 [W, A], on the device of the predictions.
    """
    num_windows, vocab_size = log_p_short_WV.shape
    labels_WA = np.empty((num_windows, num_draws), dtype=np.int64)
    for w, window_id in enumerate(window_ids_W.tolist()):
        log_p_V = log_p_short_WV[w].cpu().numpy()
        for draw in range(num_draws):
            rng = np.random.default_rng([seed, RESAMPLED_LABELS, window_id, draw])
            labels_WA[w, draw] = np.argmax(log_p_V - np.log(rng.standard_exponential(vocab_size)))
    return torch.from_numpy(labels_WA).to(log_p_short_WV.device)


@dataclass(frozen=True)
class SelectorOutcome:
    """What one selector chose in W windows."""

    scores_WI: np.ndarray  # NaN where screening left a group out, and where a window has no more groups
    groups_WS: np.ndarray  # int64, the S = max k chosen groups, most influential first; -1 where a window has no more
    loss_sparse_WK: np.ndarray  # loss(J_k), nats, fp32
    kl_sparse_WK: Optional[np.ndarray]  # KL(p_all, p_{J_k}), nats, fp32; None where divergences are not measured


@dataclass(frozen=True)
class WindowInfluence:
    """W windows under one context: losses in nats, and the outcome of every selector by its name."""

    loss_long_W: np.ndarray
    kl_short_W: np.ndarray  # KL(p_all, p_{}), nats, fp32
    groups: TokenGroups  # of the windows under this context
    loss_single_WI: Optional[np.ndarray]  # loss({j}); None unless ``influence.save_candidates`` asks for it
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
class ResampledInfluence:
    """W windows under the real context with one drawn label each in place of the target; losses in nats.

    ``outcomes`` has the selectors that see the target; each has chosen anew, for the drawn label.
    """

    label_ids_W: np.ndarray  # int64
    loss_short_W: np.ndarray
    loss_long_W: np.ndarray
    outcomes: dict[str, SelectorOutcome]


@dataclass(frozen=True)
class PartInfluence:
    """Everything measured on the windows of one part; losses and divergences in nats.

    Attributes:
        loss_short_W: the same under both contexts, which differ only in the long-range tokens.
        loss_short_no_gap_W: loss with the local tokens directly behind the anchor, where a training row begins.
        loss_train_len_W: loss with the last ``train_len`` tokens visible, under the real context; None where no training row
            is known.
        loss_train_len_no_gap_W: the same with these tokens directly behind the anchor.
        single_luck_W: selection luck of ``unmask-one`` at k = 1; None where that is not measured or candidates are screened.
        contexts: real and null.
        resampled: one entry for each draw.
        mimicry: outcomes of the selectors that can imitate, which choose among the tokens of the null context those that
            imitate the full-context prediction of the real one. Their divergences are from that prediction.
        screening: by context; empty where nothing is screened.
    """

    loss_short_W: np.ndarray
    loss_short_no_gap_W: np.ndarray
    loss_train_len_W: Optional[np.ndarray]
    loss_train_len_no_gap_W: Optional[np.ndarray]
    single_luck_W: Optional[np.ndarray]
    contexts: dict[str, WindowInfluence]
    resampled: list[ResampledInfluence]
    mimicry: dict[str, SelectorOutcome]
    screening: dict[str, ScreeningCheck]


@dataclass(frozen=True)
class DistinctSets:
    """The visible sets J_k of several selectors, each set of a window once.

    Attributes:
        rows_rS: int64 [r, 1 + k], the index of a window, then the visible groups.
        index_W: by selector, the row of each window's J_k.
        losses_r: nats, fp32; NaN where not known.
        divergences_r: KL(p_all, p_{J_k}), nats, fp32; NaN where not known or not measured.
    """

    rows_rS: np.ndarray
    index_W: dict[str, np.ndarray]
    losses_r: np.ndarray
    divergences_r: np.ndarray


def _distinct_sets(scores: WindowScores, groups: dict[str, np.ndarray], *, k: int) -> DistinctSets:
    """Return the sets J_k with what selectors have evaluated: a single group is not evaluated again.

    Args:
        scores: the windows.
        groups: the chosen groups of every selector, int64 [W, S], most influential first.
        k: number of groups of the visible set.
    """
    num_windows = len(scores.windows)
    sets_RS = np.concatenate([np.sort(groups_WS[:, :k], axis=1) for groups_WS in groups.values()])
    rows_RS = np.column_stack([np.tile(np.arange(num_windows), len(groups)), sets_RS])
    distinct_rS, index_R = np.unique(rows_RS, axis=0, return_inverse=True)
    losses_r, divergences_r = np.full((2, len(distinct_rS)), np.nan, dtype=np.float32)
    if k == 1:
        known = scores.known_singles
        losses_r = known.loss_WI[distinct_rS[:, 0], distinct_rS[:, 1]]
        divergences_r = known.kl_WI[distinct_rS[:, 0], distinct_rS[:, 1]]
    index_FW = index_R.reshape(len(groups), num_windows)
    return DistinctSets(distinct_rS, dict(zip(groups, index_FW, strict=True)), losses_r, divergences_r)


def _evaluate_top_k(
    scores: WindowScores, groups: dict[str, np.ndarray], *, settings: InfluenceConfig, with_kl: bool
) -> list[DistinctSets]:
    """Return the sets J_k of every selector, with their losses and divergences, for each k of ``settings``."""
    all_sets = [_distinct_sets(scores, groups, k=k) for k in settings.k]
    incomplete = [sets for sets in all_sets if np.isnan(sets.losses_r).any()]
    unknown = [np.isnan(sets.losses_r) for sets in incomplete]
    rows = [sets.rows_rS[unknown_r] for sets, unknown_r in zip(incomplete, unknown, strict=True)]
    evaluated = scores.evaluate_groups([(rows_RS[:, 0], rows_RS[:, 1:]) for rows_RS in rows], with_kl=with_kl)
    for sets, unknown_r, (losses_r, divergences_r) in zip(incomplete, unknown, evaluated, strict=True):
        sets.losses_r[unknown_r], sets.divergences_r[unknown_r] = losses_r, divergences_r
    return all_sets


def run_selectors(
    scores: WindowScores, settings: InfluenceConfig, *, selectors: Sequence[str], with_kl: bool
) -> dict[str, SelectorOutcome]:
    """Run selectors, and evaluate the sets J_k that they choose.

    Args:
        scores: the windows.
        settings: which k.
        selectors: names of the selectors.
        with_kl: measure KL(p_all, p_{J_k}) beside loss(J_k).
    """
    if not selectors:
        return {}
    scores_WI = {name: SELECTORS[name].score(scores) for name in selectors}
    groups_WS = {name: scores.groups.chosen(rank(scores_WI[name]), max(settings.k)) for name in selectors}
    top = _evaluate_top_k(scores, groups_WS, settings=settings, with_kl=with_kl)
    return {
        name: SelectorOutcome(
            scores_WI=scores_WI[name],
            groups_WS=groups_WS[name],
            loss_sparse_WK=np.stack([sets.losses_r[sets.index_W[name]] for sets in top], axis=1),
            kl_sparse_WK=(
                np.stack([sets.divergences_r[sets.index_W[name]] for sets in top], axis=1) if with_kl else None
            ),
        )
        for name in selectors
    }


def measure_context(scores: WindowScores, settings: InfluenceConfig) -> WindowInfluence:
    """Measure windows under one context: L_long, and the scores, the ranking and L_short,sparse(k) of every selector."""
    with_kl = scores.predictions.with_kl
    outcomes = run_selectors(scores, settings, selectors=settings.selectors, with_kl=with_kl)
    return WindowInfluence(
        loss_long_W=scores.loss_long_W,
        kl_short_W=scores.kl_short_W,
        groups=scores.groups,
        loss_single_WI=scores.loss_single_WI if settings.save_candidates else None,
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
        chosen_wS, exact_wS = outcome.groups_WS[sample_w], exact_outcome.groups_WS
        same_wSS = (chosen_wS[:, :, None] == exact_wS[:, None, :]) & (exact_wS != NO_GROUP)[:, None, :]
        common_wSS = same_wSS.cumsum(axis=1).cumsum(axis=2)  # entry [k-1, k-1]: groups that both J_k have
        size_wS = (exact_wS != NO_GROUP).cumsum(axis=1)  # entry [k-1]: groups of J_k
        costs[name] = ScreeningCost(
            recall_wK=np.stack([common_wSS[:, k - 1, k - 1] / size_wS[:, k - 1] for k in settings.k], axis=1),
            gain_lost_wK=outcome.loss_sparse_WK[sample_w] - exact_outcome.loss_sparse_WK,
        )
    return ScreeningCheck(sample_w, costs)


def batches_of_contexts(
    null_contexts: NullContexts,
    window_ids_W: np.ndarray,
    *,
    seed: int,
    device: torch.device,
    unit: str = "token",
    tokenizer: Tokenizer,
) -> dict[str, WindowBatch]:
    """Return the windows with these numbers under every context, on a device.

    Args:
        null_contexts: all windows, with their null contexts.
        window_ids_W: int64.
        seed: of everything that is drawn at random for the windows.
        device: where the tokens are put.
        unit: what is unmasked at once (``influence.unit``); under each context the text of that context tells the groups.
        tokenizer: of the windows.
    """
    rows_WT = torch.from_numpy(null_contexts.windows.tokens(window_ids_W)).to(device)  # int64, the target last
    null_WT = torch.from_numpy(null_contexts.window_tokens(window_ids_W)).to(device)
    targets_W = rows_WT[:, -1].contiguous()
    batches = {}
    for context, tokens_WT in zip(CONTEXTS, (rows_WT[:, :-1].contiguous(), null_WT[:, :-1].contiguous()), strict=True):
        groups_WM = group_numbers(
            tokenizer, tokens_WT.cpu().numpy(), num_long_range=null_contexts.num_long_range, unit=unit
        )
        batches[context] = WindowBatch(
            tokens_WT,
            targets_W,
            window_ids_W=window_ids_W,
            context=context,
            seed=seed,
            groups=TokenGroups(groups_WM),
        )
    return batches


def measure_resampled(scores: WindowScores, settings: InfluenceConfig, *, label: int) -> ResampledInfluence:
    """Measure windows with a drawn label in place of the target.

    Args:
        scores: the windows under the real context.
        settings: which selectors and k.
        label: which of the labels, from 1.
    """
    of_label = scores.of_label(label)
    selectors = names_where(lambda selector: selector.sees_target, settings.selectors)
    return ResampledInfluence(
        label_ids_W=of_label.labels_W.cpu().numpy(),
        loss_short_W=of_label.loss_short_W,
        loss_long_W=of_label.loss_long_W,
        outcomes=run_selectors(of_label, settings, selectors=selectors, with_kl=False),
    )


def loss_of_recent_tokens(scores: WindowScores, num_visible: int, *, in_place: bool) -> np.ndarray:
    """Return the loss with the last ``num_visible`` tokens visible, all of them at most; nats, fp32 [W].

    What is known already is not run again: L_short in place, and L_long, where all tokens are visible and no gap is left.

    Args:
        scores: the windows under the real context.
        num_visible: how many of the most recent tokens are visible.
        in_place: whether they keep their position IDs at the end of the window (``recent_losses``).
    """
    num_recent = num_visible - scores.evaluator.local_len
    if num_recent == 0 and in_place:
        return scores.loss_short_W
    if num_recent >= scores.num_long_range:
        return scores.loss_long_W
    losses_W = recent_losses(
        scores.evaluator,
        scores.windows.tokens_WT,
        targets_W=scores.labels_W,
        num_visible=num_visible,
        in_place=in_place,
    )
    return losses_W.cpu().numpy()


def _train_len_no_gap(
    scores: WindowScores, train_len: Optional[int], *, short_no_gap_W: np.ndarray
) -> Optional[np.ndarray]:
    """Return the loss of the tokens of a training row directly behind the anchor; None where no row is known."""
    if train_len is None:
        return None
    if train_len == scores.evaluator.local_len:
        return short_no_gap_W
    return loss_of_recent_tokens(scores, train_len, in_place=False)


def _mimics(settings: InfluenceConfig) -> list[str]:
    """Return the measured selectors that can imitate another prediction."""
    return names_where(lambda selector: selector.can_imitate, settings.selectors)


def scores_of_contexts(
    evaluator: Evaluator,
    batches: dict[str, WindowBatch],
    *,
    settings: InfluenceConfig,
    screening: Optional[ScreeningSettings],
) -> dict[str, WindowScores]:
    """Return the scores of windows under every context, with the drawn labels under the real one; see ``measure_windows``."""
    log_p_short_WV = short_log_probs(evaluator, batches["real"].tokens_WT)
    labels_WA = draw_labels(
        log_p_short_WV, batches["real"].window_ids_W, seed=settings.seed, num_draws=settings.resampled_draws
    )
    real = Predictions(
        evaluator,
        batches["real"],
        log_p_short_WV=log_p_short_WV,
        drawn_labels_WA=labels_WA,
        num_lasso_masks=settings.lasso_masks,
        with_kl=True,
        with_luck=screening is None and "unmask-one" in settings.selectors,
        with_attention=any_needs_attention(settings.selectors),
    )
    null = Predictions(
        evaluator,
        batches["null"],
        log_p_short_WV=log_p_short_WV,
        imitated_WV=real.log_p_long_WV if _mimics(settings) else None,
        num_lasso_masks=settings.lasso_masks,
        with_kl=True,
        with_attention=any_needs_attention(settings.selectors),
    )
    return {
        context: WindowScores(predictions, max_k=max(settings.k), screening=screening)
        for context, predictions in (("real", real), ("null", null))
    }


def measure_windows(
    evaluator: Evaluator,
    batches: dict[str, WindowBatch],
    *,
    settings: InfluenceConfig,
    train_len: Optional[int],
    screening: Optional[ScreeningSettings],
) -> PartInfluence:
    """Measure windows under every context.

    Args:
        evaluator: the model.
        batches: the same windows under every context (``batches_of_contexts``).
        settings: what to measure.
        train_len: tokens of a training row; None: not known.
        screening: how candidates are screened; None: not at all.
    """
    scores = scores_of_contexts(evaluator, batches, settings=settings, screening=screening)
    real, null = scores["real"], scores["null"]
    contexts = {context: measure_context(scores[context], settings) for context in scores}
    checks = {}
    if screening is not None:
        checks = {context: check_screening(scores[context], contexts[context], settings=settings) for context in scores}
    short_no_gap_W = loss_of_recent_tokens(real, evaluator.local_len, in_place=False)
    return PartInfluence(
        loss_short_W=real.loss_short_W,
        loss_short_no_gap_W=short_no_gap_W,
        loss_train_len_W=None if train_len is None else loss_of_recent_tokens(real, train_len, in_place=True),
        loss_train_len_no_gap_W=_train_len_no_gap(real, train_len, short_no_gap_W=short_no_gap_W),
        single_luck_W=real.predictions.singles(evaluator).luck_W if real.predictions.with_luck else None,
        contexts=contexts,
        resampled=[measure_resampled(real, settings, label=draw + 1) for draw in range(settings.resampled_draws)],
        mimicry=run_selectors(null.imitating(), settings, selectors=_mimics(settings), with_kl=True),
        screening=checks,
    )
