"""Measures windows: which long-range tokens are influential, and how much loss comes back when they are unmasked.

What is ranked and unmasked are groups of tokens, by default of one each (``olmo_sparsity.measure.visible.window_batch``).

A selector that sees the target gains even where the long-range tokens hold nothing: among M candidates it picks those that
happened to raise the probability of this target. How much its gain overstates what the same choice is worth, its *optimism*, is
measured on *resampled targets*, labels drawn from the prediction of the local tokens alone: the gain of a choice on the label
that it was made for, minus its mean gain on another label of the same prediction, which is -KL(p_{}, p_J).
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
from olmo_sparsity.measure.selection.predictions import Predictions, SetReadings
from olmo_sparsity.measure.selection.scores import ScreeningSettings, WindowScores
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import recent_losses, short_log_probs
from olmo_sparsity.measure.visible.window_batch import CONTEXTS, TokenGroups, WindowBatch
from olmo_sparsity.records.selectors import (
    NO_GROUP,
    NULL_DRAWS,
    SCREENED,
    SELECTORS,
    any_needs_attention,
    by_head,
    names_where,
    needs_of,
    rank,
    share_of_heads,
)
from olmo_sparsity.records.window_input import needs_pass
from olmo_sparsity.text.null_contexts import NullContexts
from olmo_sparsity.text.units import group_numbers

# Purposes of random generators; a change would change the tables.
SCREENING_SAMPLE, RESAMPLED_LABELS = 5, 6
RESAMPLED_CONTROL = "random"  # chooses without the label, so that its optimism must be 0


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
    kl_short_to_sparse_WK: Optional[np.ndarray] = None  # KL(p_{}, p_{J_k}), nats, fp32; of resampled targets only
    num_entries_WK: Optional[np.ndarray] = None  # int64, entries that some head keeps; only of choices by head


@dataclass(frozen=True)
class ResampledInfluence:
    """W windows with one drawn label each in place of the target; losses in nats.

    ``outcomes`` has the selectors that see the target, each of which has chosen anew for the drawn label, and `random`, whose
    choice is that for the target: the same whatever the label is.
    """

    label_ids_W: np.ndarray  # int64
    loss_short_W: np.ndarray
    loss_long_W: np.ndarray
    outcomes: dict[str, SelectorOutcome]


@dataclass(frozen=True)
class WindowInfluence:
    """W windows under one context: losses in nats, and the outcome of every selector by its name."""

    loss_long_W: np.ndarray
    kl_short_W: np.ndarray  # KL(p_all, p_{}), nats, fp32
    groups: TokenGroups  # of the windows under this context
    outcomes: dict[str, SelectorOutcome]
    resampled: list[ResampledInfluence]  # one entry for each drawn label


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
    """Everything measured on the windows of one part; losses and divergences in nats.

    Attributes:
        loss_short_W: the same under both contexts, which differ only in the long-range tokens.
        loss_short_no_gap_W: loss with the local tokens directly behind the anchor, where a training row begins.
        loss_train_len_W: loss with the last ``train_len`` tokens visible, under the real context; None where no training row
            is known.
        loss_train_len_no_gap_W: the same with these tokens directly behind the anchor.
        entropy_short_W: entropy of the short-context prediction.
        kl_short_to_long_W: KL(p_{}, p_all) under the real context.
        contexts: real and null.
        screening: by context; empty where nothing is screened.
    """

    loss_short_W: np.ndarray
    loss_short_no_gap_W: np.ndarray
    loss_train_len_W: Optional[np.ndarray]
    loss_train_len_no_gap_W: Optional[np.ndarray]
    entropy_short_W: np.ndarray
    kl_short_to_long_W: np.ndarray
    contexts: dict[str, WindowInfluence]
    screening: dict[str, ScreeningCheck]


@dataclass(frozen=True)
class _Choice:
    """What a selector chose in all windows, for one of the labels."""

    selector: str
    label: int  # 0: the target
    scores_WI: np.ndarray
    groups_WS: np.ndarray
    entries_WLHS: Optional[np.ndarray] = None  # int64, of choices by head: those of each head, the best first


@dataclass(frozen=True)
class _DistinctSets:
    """The visible sets J_k of several choices, each set of a window once.

    Attributes:
        rows_rS: int64 [r, 1 + k], the index of a window, then the visible groups.
        index_FW: int64, the row of each choice and window.
        is_of_target_r: bool; whether some choice for the target has this set.
        readings: losses and divergences of each row; NaN where not known.
    """

    rows_rS: np.ndarray
    index_FW: np.ndarray
    is_of_target_r: np.ndarray
    readings: SetReadings


def _distinct_sets(choices: Sequence[_Choice], *, k: int, known: SetReadings) -> _DistinctSets:
    """Return the sets J_k with what selectors have evaluated: a single group is not evaluated again.

    Args:
        choices: what was chosen.
        k: number of groups of the visible set.
        known: of single groups, [W * I] and [W * I, A]; NaN where not known.
    """
    num_windows, width = choices[0].scores_WI.shape
    sets_RS = np.concatenate([np.sort(choice.groups_WS[:, :k], axis=1) for choice in choices])
    rows_RS = np.column_stack([np.tile(np.arange(num_windows), len(choices)), sets_RS])
    distinct_rS, index_R = np.unique(rows_RS, axis=0, return_inverse=True)
    index_FW = index_R.reshape(len(choices), num_windows)
    is_of_target_r = np.zeros(len(distinct_rS), dtype=bool)
    is_of_target_r[index_FW[[choice.label == 0 for choice in choices]]] = True
    places_r = distinct_rS[:, 0] * width + distinct_rS[:, 1]
    if k > 1:
        places_r = np.full(len(distinct_rS), -1)  # the last one is not known
    readings = SetReadings(known.losses_RA[places_r], known.kl_R[places_r], known.kl_from_short_R[places_r])
    return _DistinctSets(distinct_rS, index_FW, is_of_target_r, readings)


def _known_singles(scores: Sequence[WindowScores], *, with_kl: bool) -> SetReadings:
    """Return what is known of all single groups, window by window, and behind them an entry that is not known."""
    one = scores[0]
    (num_windows, width), num_labels = one.predictions.all_groups_WI.shape, one.predictions.labels_WA.shape[1]
    known = SetReadings(
        np.full((num_windows * width + 1, num_labels), np.nan, dtype=np.float32),
        *np.full((2, num_windows * width + 1), np.nan, dtype=np.float32),
    )
    for singles in (singles for of_label in scores for singles in of_label.known_singles):
        losses_RA = singles.losses_WIA.reshape(-1, num_labels)
        rows_r = np.flatnonzero(np.isnan(known.losses_RA[:-1, 0]) & ~np.isnan(losses_RA[:, 0]))
        known.losses_RA[rows_r] = losses_RA[rows_r]
        if with_kl:
            assert singles.kl_WI is not None, "the predictions keep divergences"
            known.kl_R[rows_r] = singles.kl_WI.ravel()[rows_r]
        if singles.kl_from_short_WI is not None:
            known.kl_from_short_R[rows_r] = singles.kl_from_short_WI.ravel()[rows_r]
    return known


def _outcomes(
    scores: Sequence[WindowScores], choices: Sequence[_Choice], settings: InfluenceConfig, *, with_kl: bool
) -> list[SelectorOutcome]:
    """Evaluate the sets J_k of every choice, and return what comes of each.

    A set that several choices share is run once, and all labels are read from it. The sets that are chosen for the target run
    first, so that they do not depend on the labels that are drawn.

    Args:
        scores: the windows, an entry for each label.
        choices: what was chosen; the first is for the target.
        settings: which k.
        with_kl: measure KL(p_all, p_{J_k}) of the choices for the target.
    """
    one, known = scores[0], _known_singles(scores, with_kl=with_kl)
    all_sets = [_distinct_sets(choices, k=k, known=known) for k in settings.k]
    for is_for_target in (True, False):
        wanted = []
        for sets in all_sets:
            is_unknown_r = np.isnan(sets.readings.losses_RA[:, 0])
            wanted.append(np.flatnonzero(is_unknown_r & (sets.is_of_target_r | (not is_for_target))))
        asked = [
            (sets.rows_rS[rows_r, 0], sets.rows_rS[rows_r, 1:])
            for sets, rows_r in zip(all_sets, wanted, strict=True)
            if len(rows_r)
        ]
        found = iter(one.predictions.read_groups(asked, with_kl=with_kl and is_for_target))
        for sets, rows_r in zip(all_sets, wanted, strict=True):
            if len(rows_r):
                readings = next(found)
                sets.readings.losses_RA[rows_r] = readings.losses_RA
                sets.readings.kl_R[rows_r] = readings.kl_R
                sets.readings.kl_from_short_R[rows_r] = readings.kl_from_short_R
    outcomes = []
    for number, choice in enumerate(choices):
        rows = [(sets.readings, sets.index_FW[number]) for sets in all_sets]
        is_target = choice.label == 0
        outcomes.append(
            SelectorOutcome(
                scores_WI=choice.scores_WI,
                groups_WS=choice.groups_WS,
                loss_sparse_WK=np.stack([of.losses_RA[index_W, choice.label] for of, index_W in rows], axis=1),
                kl_sparse_WK=np.stack([of.kl_R[index_W] for of, index_W in rows], axis=1)
                if with_kl and is_target
                else None,
                kl_short_to_sparse_WK=None
                if is_target
                else np.stack([of.kl_from_short_R[index_W] for of, index_W in rows], axis=1),
            )
        )
    return outcomes


def _outcome_by_head(
    scores: WindowScores, choice: _Choice, settings: InfluenceConfig, *, with_kl: bool
) -> SelectorOutcome:
    """Evaluate the entries that a selector chose by head, for the target, at every k."""
    entries_WLHS = choice.entries_WLHS
    assert entries_WLHS is not None and choice.label == 0
    readings = scores.predictions.read_entries(entries_WLHS, settings.k, with_kl=with_kl)
    kept = [share_of_heads(entries_WLHS[..., :k], scores.num_long_range) > 0 for k in settings.k]
    return SelectorOutcome(
        scores_WI=choice.scores_WI,
        groups_WS=choice.groups_WS,
        loss_sparse_WK=np.stack([of.losses_RA[:, 0] for of in readings], axis=1),
        kl_sparse_WK=np.stack([of.kl_R for of in readings], axis=1) if with_kl else None,
        num_entries_WK=np.stack([kept_WM.sum(axis=1) for kept_WM in kept], axis=1),
    )


def _evaluated(
    scores: Sequence[WindowScores], choices: Sequence[_Choice], settings: InfluenceConfig, *, with_kl: bool
) -> list[SelectorOutcome]:
    """Like ``_outcomes``, also of choices by head."""
    one_set = [choice for choice in choices if choice.entries_WLHS is None]
    found = iter(_outcomes(scores, one_set, settings, with_kl=with_kl) if one_set else [])
    return [
        next(found) if choice.entries_WLHS is None else _outcome_by_head(scores[0], choice, settings, with_kl=with_kl)
        for choice in choices
    ]


def _chosen(scores: WindowScores, settings: InfluenceConfig, *, selectors: Sequence[str]) -> list[_Choice]:
    """Run selectors for the label of the scores."""
    choices = []
    for name in selectors:
        selector, entries_WLHS = SELECTORS[name], None
        if selector.entries_by_head is None:
            scores_WI = selector.score(scores)
        else:
            entries_WLHS = selector.entries_by_head(scores)
            scores_WI = share_of_heads(entries_WLHS, scores.num_long_range)
        groups_WS = scores.groups.chosen(rank(scores_WI), max(settings.k))
        choices.append(_Choice(name, scores.label, scores_WI, groups_WS, entries_WLHS))
    return choices


def run_selectors(
    scores: WindowScores, settings: InfluenceConfig, *, selectors: Sequence[str], with_kl: bool
) -> dict[str, SelectorOutcome]:
    """Run selectors for the target, and evaluate the sets J_k that they choose.

    Args:
        scores: the windows.
        settings: which k.
        selectors: names of the selectors.
        with_kl: measure KL(p_all, p_{J_k}) beside loss(J_k).
    """
    choices = _chosen(scores, settings, selectors=selectors)
    return dict(zip(selectors, _evaluated([scores], choices, settings, with_kl=with_kl), strict=True))


def measure_context(scores: WindowScores, settings: InfluenceConfig) -> WindowInfluence:
    """Measure windows under one context: L_long, and the scores, the ranking and L_short,sparse(k) of every selector.

    The selectors that see the target run again for every drawn label.
    """
    predictions = scores.predictions
    of_labels = [scores.of_label(label) for label in range(predictions.labels_WA.shape[1])]
    seeing = names_where(lambda selector: selector.sees_target, settings.selectors)
    choices = _chosen(of_labels[0], settings, selectors=settings.selectors)
    unchanged = [choice for choice in choices if choice.selector == RESAMPLED_CONTROL]
    for of_label in of_labels[1:]:
        choices += _chosen(of_label, settings, selectors=seeing)
        choices += [dataclasses.replace(choice, label=of_label.label) for choice in unchanged]
    evaluated = _evaluated(of_labels, choices, settings, with_kl=predictions.with_kl)
    outcomes: list[dict[str, SelectorOutcome]] = [{} for _ in of_labels]
    for choice, outcome in zip(choices, evaluated, strict=True):
        outcomes[choice.label][choice.selector] = outcome
    return WindowInfluence(
        loss_long_W=scores.loss_long_W,
        kl_short_W=scores.kl_short_W,
        groups=scores.groups,
        outcomes=outcomes[0],
        resampled=[
            ResampledInfluence(
                label_ids_W=of_label.labels_W.cpu().numpy(),
                loss_short_W=of_label.loss_short_W,
                loss_long_W=of_label.loss_long_W,
                outcomes=outcomes[of_label.label],
            )
            for of_label in of_labels[1:]
        ],
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
            tokenizer=tokenizer,
            store=null_contexts.windows.store,
        )
    return batches


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


def try_selectors(
    evaluator: Evaluator, null_contexts: NullContexts, *, settings: InfluenceConfig, tokenizer: Tokenizer
) -> None:
    """Run the selectors that can fail on a model or in a user's code on the first window, before anything long.

    Raises:
        UserError: the model cannot give what one needs, or a selector of one's own fails.
    """
    tried = names_where(lambda selector: selector.own or needs_pass(selector.needs), settings.selectors)
    if not tried or len(null_contexts.windows) == 0:
        return
    batch = batches_of_contexts(
        null_contexts,
        np.array([0]),
        seed=settings.seed,
        device=evaluator.model.device,
        unit=settings.unit,
        tokenizer=tokenizer,
    )["real"]
    scores = WindowScores(
        Predictions(
            evaluator,
            batch,
            log_p_short_WV=short_log_probs(evaluator, batch.tokens_WT),
            needs=needs_of(tried),
        ),
        max_k=max(settings.k),
    )
    choosing_by_head = by_head(tried)
    for name in tried:
        if name not in choosing_by_head:
            SELECTORS[name].score(scores)
    run_selectors(scores, settings, selectors=choosing_by_head, with_kl=False)  # not every model runs such sets


def scores_of_contexts(
    evaluator: Evaluator,
    batches: dict[str, WindowBatch],
    *,
    settings: InfluenceConfig,
) -> dict[str, WindowScores]:
    """Return the scores of windows under every context, with the drawn labels; see ``measure_windows``."""
    screening = None if settings.screen is None else ScreeningSettings(settings.screen, settings.ranking)
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
        with_attention=any_needs_attention(settings.selectors)
        or (screening is not None and screening.ranking == "attention"),
        needs=needs_of(settings.selectors),
    )
    null = dataclasses.replace(real, windows=batches["null"], drawn_labels_WA=labels_WA[:, :NULL_DRAWS])
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
) -> PartInfluence:
    """Measure windows under every context.

    Args:
        evaluator: the model.
        batches: the same windows under every context (``batches_of_contexts``).
        settings: what to measure.
        train_len: tokens of a training row; None: not known.
    """
    scores = scores_of_contexts(evaluator, batches, settings=settings)
    real = scores["real"]
    contexts = {context: measure_context(scores[context], settings) for context in scores}
    checks = {}
    if settings.screen is not None:
        checks = {context: check_screening(scores[context], contexts[context], settings=settings) for context in scores}
    short_no_gap_W = loss_of_recent_tokens(real, evaluator.local_len, in_place=False)
    return PartInfluence(
        loss_short_W=real.loss_short_W,
        loss_short_no_gap_W=short_no_gap_W,
        loss_train_len_W=None if train_len is None else loss_of_recent_tokens(real, train_len, in_place=True),
        loss_train_len_no_gap_W=_train_len_no_gap(real, train_len, short_no_gap_W=short_no_gap_W),
        entropy_short_W=real.predictions.entropy_short_W,
        kl_short_to_long_W=real.predictions.kl_short_to_long_W,
        contexts=contexts,
        screening=checks,
    )
