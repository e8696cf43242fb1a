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
from olmo_sparsity.measure.selection.scores import WindowScores
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import damped, recent_losses, short_log_probs
from olmo_sparsity.measure.visible.window_batch import CONTEXTS, TokenGroups, WindowBatch
from olmo_sparsity.records.selectors import (
    NULL_DRAWS,
    SELECTORS,
    any_needs_attention,
    names_where,
    needs_of,
    rank,
)
from olmo_sparsity.records.window_input import needs_pass
from olmo_sparsity.text.null_contexts import NullContexts
from olmo_sparsity.text.units import group_numbers

RESAMPLED_LABELS = 6  # purpose of a random generator; a change would change the tables
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

    scores_WI: np.ndarray  # NaN where a window has no more groups
    groups_WS: np.ndarray  # int64, the S = max k chosen groups, most influential first; -1 where a window has no more
    loss_sparse_WK: np.ndarray  # loss(J_k), nats, fp32
    kl_sparse_WK: Optional[np.ndarray]  # KL(p_all, p_{J_k}), nats, fp32; None where divergences are not measured
    kl_short_to_sparse_WK: Optional[np.ndarray] = None  # KL(p_{}, p_{J_k}), nats, fp32; of resampled targets only


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
    loss_damped_WB: np.ndarray  # of the blends of p_{} and p_all (``DAMPING``), fp32
    kl_damped_WB: np.ndarray  # KL(p_all, blend), nats, fp32
    groups: TokenGroups  # of the windows under this context
    outcomes: dict[str, SelectorOutcome]
    resampled: list[ResampledInfluence]  # one entry for each drawn label


@dataclass(frozen=True)
class PartInfluence:
    """Everything measured on the windows of one part; losses and divergences in nats.

    Attributes:
        loss_short_W: the same under both contexts, which differ only in the long-range tokens.
        loss_last_W: loss with the last n tokens directly behind the anchor, under the real context, by n.
        entropy_short_W: entropy of the short-context prediction.
        kl_short_to_long_W: KL(p_{}, p_all) under the real context.
        contexts: real and null.
    """

    loss_short_W: np.ndarray
    loss_last_W: dict[int, np.ndarray]
    entropy_short_W: np.ndarray
    kl_short_to_long_W: np.ndarray
    contexts: dict[str, WindowInfluence]


@dataclass(frozen=True)
class _Choice:
    """What a selector chose in all windows, for one of the labels."""

    selector: str
    label: int  # 0: the target
    scores_WI: np.ndarray
    groups_WS: np.ndarray


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


def _known_singles(one: WindowScores, *, with_kl: bool) -> SetReadings:
    """Return what is known of all single groups, window by window, and behind them an entry that is not known."""
    predictions = one.predictions
    (num_windows, width), num_labels = one.groups.exists_WI.shape, predictions.labels_WA.shape[1]
    known = SetReadings(
        np.full((num_windows * width + 1, num_labels), np.nan, dtype=np.float32),
        *np.full((2, num_windows * width + 1), np.nan, dtype=np.float32),
    )
    singles = predictions.known_singles
    if singles is not None:
        known.losses_RA[:-1] = singles.losses_WIA.reshape(-1, num_labels)
        if with_kl:
            assert singles.kl_WI is not None, "the predictions keep divergences"
            known.kl_R[:-1] = singles.kl_WI.ravel()
        if singles.kl_from_short_WI is not None:
            known.kl_from_short_R[:-1] = singles.kl_from_short_WI.ravel()
    return known


def _outcomes(
    scores: Sequence[WindowScores], choices: Sequence[_Choice], settings: InfluenceConfig, *, with_kl: bool
) -> list[SelectorOutcome]:
    """Evaluate the sets J_k of every choice, and return what comes of each.

    A set that several choices share is run once, and all labels are read from it. The sets that are chosen for the target run
    first, so that they do not depend on the labels that are drawn.

    Args:
        scores: the windows, an entry for each label.
        choices: what was chosen; the first, if there is one, is for the target.
        settings: which k.
        with_kl: measure KL(p_all, p_{J_k}) of the choices for the target.
    """
    if not choices:
        return []
    one, known = scores[0], _known_singles(scores[0], with_kl=with_kl)
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


def _chosen(scores: WindowScores, settings: InfluenceConfig, *, selectors: Sequence[str]) -> list[_Choice]:
    """Run selectors for the label of the scores."""
    choices = []
    for name in selectors:
        scores_WI = SELECTORS[name].score(scores)
        groups_WS = scores.groups.chosen(rank(scores_WI), max(settings.k))
        choices.append(_Choice(name, scores.label, scores_WI, groups_WS))
    return choices


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
    evaluated = _outcomes(of_labels, choices, settings, with_kl=predictions.with_kl)
    outcomes: list[dict[str, SelectorOutcome]] = [{} for _ in of_labels]
    for choice, outcome in zip(choices, evaluated, strict=True):
        outcomes[choice.label][choice.selector] = outcome
    log_p_long_WV, log_p_short_WV = predictions.log_p_long_WV, predictions.log_p_short_WV
    loss_damped_WB, kl_damped_WB = damped(log_p_long_WV, log_p_short_WV, predictions.windows.targets_W)
    return WindowInfluence(
        loss_long_W=scores.loss_long_W,
        kl_short_W=scores.kl_short_W,
        loss_damped_WB=loss_damped_WB.cpu().numpy(),
        kl_damped_WB=kl_damped_WB.cpu().numpy(),
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


def _loss_last(scores: WindowScores, n: int) -> np.ndarray:
    """Loss with the last n tokens directly behind the anchor, nats, fp32 [W]; all tokens leave no gap, and have run."""
    tokens_WT = scores.windows.tokens_WT
    if n == tokens_WT.shape[1]:
        return scores.loss_long_W
    return recent_losses(scores.evaluator, tokens_WT, targets_W=scores.labels_W, num_visible=n).cpu().numpy()


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
    for name in tried:
        SELECTORS[name].score(scores)


def scores_of_contexts(
    evaluator: Evaluator,
    batches: dict[str, WindowBatch],
    *,
    settings: InfluenceConfig,
) -> dict[str, WindowScores]:
    """Return the scores of windows under every context, with the drawn labels; see ``measure_windows``."""
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
        with_attention=any_needs_attention(settings.selectors),
        needs=needs_of(settings.selectors),
    )
    null = dataclasses.replace(real, windows=batches["null"], drawn_labels_WA=labels_WA[:, :NULL_DRAWS])
    return {
        context: WindowScores(predictions, max_k=max(settings.k))
        for context, predictions in (("real", real), ("null", null))
    }


def measure_windows(
    evaluator: Evaluator,
    batches: dict[str, WindowBatch],
    *,
    settings: InfluenceConfig,
    last_n: Sequence[int],
) -> PartInfluence:
    """Measure windows under every context.

    Args:
        evaluator: the model.
        batches: the same windows under every context (``batches_of_contexts``).
        settings: what to measure.
        last_n: numbers of latest tokens to show alone, ``local_len`` among them.
    """
    scores = scores_of_contexts(evaluator, batches, settings=settings)
    real = scores["real"]
    contexts = {context: measure_context(scores[context], settings) for context in scores}
    return PartInfluence(
        loss_short_W=real.loss_short_W,
        loss_last_W={n: _loss_last(real, n) for n in last_n},
        entropy_short_W=real.predictions.entropy_short_W,
        kl_short_to_long_W=real.predictions.kl_short_to_long_W,
        contexts=contexts,
    )
