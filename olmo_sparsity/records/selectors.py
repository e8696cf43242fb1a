"""Selectors: a score for each group of long-range tokens; the k highest are J_k, so J_1, J_2, ... are nested.

A group is one token, unless ``influence.unit`` says otherwise (``olmo_sparsity.measure.visible.window_batch``). Whoever adds a
selector writes its score and its entry here, in ``rules`` or in ``policies``: configuration, engine, cost model, figures, report
and documentation read it from ``SELECTORS``.

Commands read the names of selectors before they print --help, so numpy is imported by the functions that compute with it.

Shape letters: W windows, M long-range positions, I groups of the window with the most, N random visible sets, R rows, S groups of
a set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from olmo_sparsity.records.measured import MeasuredLengths
from olmo_sparsity.records.policies import POLICIES
from olmo_sparsity.records.rules import RULES
from olmo_sparsity.records.selector import CostSettings as CostSettings
from olmo_sparsity.records.selector import Look as Look
from olmo_sparsity.records.selector import ScoredWindows as ScoredWindows
from olmo_sparsity.records.selector import ScoringSize as ScoringSize
from olmo_sparsity.records.selector import Selector as Selector
from olmo_sparsity.records.selector import rank as rank

if TYPE_CHECKING:
    import numpy as np

NO_GROUP = -1  # in a list of groups, where a window has no more
NULL_DRAWS = 1  # of the resampled targets, those that choices are made for under the null context, too: that is a check
LASSO_ALPHA = 0.01  # on standardised masks, as in ContextCite
BACKWARD_COST = 2  # forward passes that a backward pass costs, roughly
RANDOM_SCORES = 3  # purpose of a random generator; a change would change the tables


def _unmask_one(cache: ScoredWindows) -> np.ndarray:
    """Return loss({}) - loss({j}), the gain of unmasking j alone (our reading of the paper's Eq. 20)."""
    return cache.loss_short_W[:, None] - cache.loss_single_WI


def _mask_one(cache: ScoredWindows) -> np.ndarray:
    """Return loss(all but j) - loss(all), what hiding j alone costs."""
    return cache.loss_all_but_one_WI - cache.loss_long_W[:, None]


def _forward_selection(cache: ScoredWindows, *, by_divergence: bool) -> np.ndarray:
    """Take max_k groups, one per step: the one that with those so far has the lowest value (ties: the nearer).

    The group of step i (from 0) scores max_k - i, and one that is never taken 0: the gains of the steps need not fall,
    but the scores must keep the order of the steps.

    Args:
        cache: the windows.
        by_divergence: the value is KL(p_all, p_{J so far + j}); otherwise loss(J so far + j).
    """
    import numpy as np

    groups, num_windows = cache.groups, len(cache.windows)
    is_left_WI = groups.exists_WI.copy()
    scores_WI = np.where(is_left_WI, 0.0, np.nan)
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


def _greedy(cache: ScoredWindows) -> np.ndarray:
    """Forward selection on the loss: each step takes the group that lowers loss(J so far + j) most."""
    return _forward_selection(cache, by_divergence=False)


def _greedy_kl(cache: ScoredWindows) -> np.ndarray:
    """Forward selection on the divergence: each step takes the group that lowers KL(p_all, p_{J so far + j}) most."""
    return _forward_selection(cache, by_divergence=True)


def _greedy_patching(cache: ScoredWindows) -> np.ndarray:
    """Forward selection by attribution patching: rounds of 1, 1, 2, 4, 8, ... groups, each ranked beside those before.

    The group of place i (from 0) scores max_k - i, and one that is not taken 0.
    """
    import numpy as np

    groups = cache.groups
    scores_WI = groups.with_missing(np.zeros((len(cache.windows), groups.num_groups)))
    taken_WS = np.empty((len(cache.windows), 0), dtype=np.int64)
    while (num_taken := taken_WS.shape[1]) < min(cache.max_k, groups.num_groups):
        estimates_WI = cache.patching_beside(taken_WS)
        estimates_WI[scores_WI > 0] = np.nan
        size = min(max(num_taken, 1), cache.max_k - num_taken)
        ranked_WS = rank(-estimates_WI)[:, :size]
        is_left_WS = ~np.isnan(np.take_along_axis(estimates_WI, ranked_WS, axis=1))
        windows_R, places_R = np.nonzero(is_left_WS)
        scores_WI[windows_R, ranked_WS[windows_R, places_R]] = cache.max_k - num_taken - places_R
        taken_WS = np.column_stack([taken_WS, np.where(is_left_WS, ranked_WS, NO_GROUP)])
    return scores_WI


def _num_rounds(max_k: int, num_candidates: int) -> int:
    """Return the number of rounds of ``_greedy_patching``."""
    return 1 + (min(max_k, num_candidates) - 1).bit_length()


def _greedy_patching_tokens(settings: CostSettings, lengths: MeasuredLengths) -> int:
    return _num_rounds(max(settings.k), lengths.num_long_range) * tokens_of_estimates(settings, lengths)


def _forward_selection_cost(size: ScoringSize) -> int:
    """Return the number of evaluations of ``_forward_selection``: one fewer in each step."""
    return size.max_k * size.num_candidates - size.max_k * (size.max_k - 1) // 2


def _forward_selection_tokens(settings: CostSettings, lengths: MeasuredLengths) -> int:
    local, many = lengths.local_len, lengths.num_long_range
    return sum((many - taken) * (local + taken + 1) for taken in range(max(settings.k)))


def _kl(cache: ScoredWindows) -> np.ndarray:
    """Return KL(p_all, p_{}) - KL(p_all, p_{j}): how far unmasking j moves the prediction to the full-context one."""
    return cache.kl_short_W[:, None] - cache.kl_single_WI


def _gradient(cache: ScoredWindows) -> np.ndarray:
    """Return minus the derivative of the loss with respect to gates on j's tokens, at gate 0: unmask-one to first order."""
    return cache.gradient_WI


def tokens_of_estimates(settings: CostSettings, lengths: MeasuredLengths) -> int:
    """Return the tokens of first-order estimates: the local ones back and forth, and the others where no prefix has them."""
    far = 0 if settings.visibility == "contextual" else lengths.num_long_range
    return far + (1 + BACKWARD_COST) * lengths.local_len


def _attention(cache: ScoredWindows) -> np.ndarray:
    """Return the attention of the last token to j's tokens under full context: the mean over heads and layers, and their sum."""
    return cache.groups.sums(cache.predictions.attention_WM.cpu().numpy())


def _attention_tokens(settings: CostSettings, lengths: MeasuredLengths) -> int:
    return 0 if settings.path == "compact" else lengths.full_len  # the compact path's pass of L_long gives it


def _lasso(cache: ScoredWindows) -> np.ndarray:
    """Return minus the coefficients of a sparse linear model of the loss over random visible sets.

    Source: ContextCite (Cohen-Wang et al. 2024), which fits the logit of the probability instead of the loss.
    """
    import numpy as np
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


def _lasso_tokens(settings: CostSettings, lengths: MeasuredLengths) -> int:
    return settings.lasso_masks * (lengths.local_len + lengths.num_long_range // 2)


def _mask_one_tokens(settings: CostSettings, lengths: MeasuredLengths) -> int:
    many = lengths.num_long_range
    return many * (lengths.full_len if settings.path == "masked" else lengths.full_len - many // 2)


def _random(cache: ScoredWindows) -> np.ndarray:
    """Return uniform random numbers, a function of seed, window and context alone."""
    import numpy as np

    scores_WI = np.full((len(cache.windows), cache.groups.num_groups), np.nan)
    generators = cache.windows.generators(RANDOM_SCORES)
    for w, (generator, num_groups) in enumerate(zip(generators, cache.groups.num_groups_W.tolist(), strict=True)):
        scores_WI[w, :num_groups] = generator.random(num_groups)
    return scores_WI


def _nearest(cache: ScoredWindows) -> np.ndarray:
    """Return the number of the group itself: the nearer to the local context, the higher."""
    import numpy as np

    scores_I = np.arange(cache.groups.num_groups, dtype=np.float64)
    return cache.groups.with_missing(np.broadcast_to(scores_I, (len(cache.windows), len(scores_I))))


# In the order of the tables.
SELECTORS: dict[str, Selector] = {
    selector.name: selector
    for selector in (
        Selector(
            name="unmask-one",
            score=_unmask_one,
            sees_target=True,
            meaning="how far the loss of the target falls when this {unit} alone is unmasked",
            definition="loss({}) - loss({j})",
            look=Look("#0072B2", "o", on_light="#004f8f", on_dark="#3d94dc"),
            num_evaluations=lambda size: size.num_candidates + 1,
            cost="M + 1",
            singles="loss",
            is_main=True,
        ),
        Selector(
            name="kl",
            score=_kl,
            sees_target=False,
            meaning="how far this {unit} alone moves the prediction towards the one under full context",
            definition="KL(p_all, p_{}) - KL(p_all, p_{j}): how far j moves the prediction towards the full-context prediction",
            look=Look("#D55E00", "s", on_light="#c94f00", on_dark="#f47b3a"),
            num_evaluations=lambda size: size.num_candidates + 2,
            cost="M + 2",
            singles="kl",
            by_divergence=True,
            is_main=True,
        ),
        Selector(
            name="gradient",
            score=_gradient,
            sees_target=True,
            meaning="first-order estimate of unmask-one, from one backward pass",
            definition="minus the derivative of the loss with respect to a gate on the attention to j, at gate 0: "
            "`unmask-one` to first order",
            look=Look("#882255", "D", on_light="#882255", on_dark="#c05c9a"),
            num_evaluations=lambda size: 1 + BACKWARD_COST,
            cost="3 (one forward, one backward)",
            num_tokens=tokens_of_estimates,
        ),
        Selector(
            name="attention",
            score=_attention,
            sees_target=False,
            meaning="attention that the last token pays to this {unit} under full context, mean over heads and layers",
            definition="attention of the last token to j under full context, mean over heads and layers",
            look=Look("#009E73", "h", on_light="#008f6a", on_dark="#2fc398"),
            num_evaluations=lambda size: 1,
            cost="1",
            num_tokens=_attention_tokens,
            needs_attention=True,
            is_main=True,
        ),
        Selector(
            name="random",
            score=_random,
            sees_target=False,
            meaning="control: a random number",
            definition="a random number",
            look=Look("#000000", "x", on_light="#111111", on_dark="#f2f2f2"),
            num_evaluations=lambda size: 0,
            cost="0",
            is_control=True,
            is_main=True,
        ),
        Selector(
            name="nearest",
            score=_nearest,
            sees_target=False,
            meaning="control: the {units} next to the local context",
            definition="the position: the k tokens next to the local context",
            look=Look("#56B4E9", "^", on_light="#3a95d0", on_dark="#a5dcff"),
            num_evaluations=lambda size: 0,
            cost="0",
            is_control=True,
        ),
        Selector(
            name="mask-one",
            score=_mask_one,
            sees_target=True,
            meaning="how far the loss of the target rises when this {unit} alone is masked",
            definition="loss(all but j) - loss(all)",
            look=Look("#CC79A7", "v", on_light="#b0559a", on_dark="#eaa3cd"),
            num_evaluations=lambda size: size.num_candidates + 1,
            cost="M + 1, long ones",
            num_tokens=_mask_one_tokens,
            on_request=True,
        ),
        Selector(
            name="greedy",
            score=_greedy,
            sees_target=True,
            meaning="forward selection: each step unmasks the {unit} that lowers the loss of the target most",
            definition="forward selection: each step takes the j that lowers loss(J so far + j) most",
            look=Look("#332288", "*", on_light="#332288", on_dark="#a497f5"),
            num_evaluations=_forward_selection_cost,
            cost="k M - k (k - 1) / 2",
            num_tokens=_forward_selection_tokens,
            steps="loss",
            on_request=True,
        ),
        Selector(
            name="greedy-kl",
            score=_greedy_kl,
            sees_target=False,
            meaning="forward selection: each step unmasks the {unit} that moves the prediction most towards the full-context one",
            definition="forward selection: each step takes the j that lowers KL(p_all, p_{J so far + j}) most",
            look=Look("#999933", "p", on_light="#6f6f1f", on_dark="#c9c95a"),
            num_evaluations=lambda size: _forward_selection_cost(size) + 1,
            cost="k M - k (k - 1) / 2 + 1",
            num_tokens=_forward_selection_tokens,
            steps="kl",
            by_divergence=True,
            on_request=True,
        ),
        Selector(
            name="greedy-patching",
            score=_greedy_patching,
            sees_target=False,
            meaning="forward selection in rounds: estimate of how far the {unit} moves the prediction, beside earlier rounds",
            definition="forward selection by attribution patching: rounds of 1, 1, 2, 4, ... take the j that lower KL(p_all, p) "
            "most, to first order, beside those of earlier rounds; under contextual visibility",
            look=Look("#5B7F00", "$g$", on_light="#4d6b00", on_dark="#a9d14a"),
            num_evaluations=lambda size: (1 + BACKWARD_COST) * _num_rounds(size.max_k, size.num_candidates) + 1,
            cost="3 a round + 1",
            num_tokens=_greedy_patching_tokens,
            needs_entries=True,
            by_divergence=True,
            by_name_only=True,
        ),
        Selector(
            name="lasso",
            score=_lasso,
            sees_target=True,
            meaning="weight of the {unit} in a sparse linear model of the loss over random visible sets",
            definition="ContextCite's surrogate: a sparse linear model of the loss over 64 random visible sets "
            "(`influence.lasso_masks`)",
            look=Look("#E69F00", "P", on_light="#a87300", on_dark="#f2b33d"),
            num_evaluations=lambda size: size.lasso_masks,
            cost="64",
            num_tokens=_lasso_tokens,
            on_request=True,
        ),
        *RULES,
        *POLICIES,
    )
}


def names_where(holds: Callable[[Selector], object], names: Iterable[str] = tuple(SELECTORS)) -> list[str]:
    """Return those of the names whose selectors have a property, in their order."""
    return [name for name in names if holds(SELECTORS[name])]


ALL_SELECTORS = tuple(names_where(lambda selector: not selector.by_name_only))  # what ``all`` stands for
CONTROLS = tuple(names_where(lambda selector: selector.is_control))
MAIN_SELECTORS = tuple(names_where(lambda selector: selector.is_main))


def main_among(names: Iterable[str]) -> list[str]:
    """Return those of the names that are shown where there is no room for all: the main ones, and those that were asked for."""
    known = [name for name in names if name in SELECTORS]
    return names_where(lambda selector: selector.is_main or selector.by_name_only, known)


def any_needs_attention(names: Iterable[str]) -> bool:
    """Return whether one of these selectors asks for the attention of the last token."""
    return any(SELECTORS[name].needs_attention for name in names)


def needs_of(names: Iterable[str]) -> frozenset[str]:
    """Return what these selectors need of each window."""
    return frozenset().union(*(SELECTORS[name].needs for name in names))


def any_asks_for_divergences(names: Iterable[str]) -> bool:
    """Return whether one of these selectors asks for the divergences of single unmaskings."""
    return any(SELECTORS[name].singles == "kl" for name in names)


def in_legend_order(names: Iterable[str]) -> list[str]:
    """Return selectors as legends and lists show them: those that see the target, those that do not, controls."""
    among = [selector for selector in SELECTORS.values() if selector.name in set(names)]
    among.sort(key=lambda selector: (selector.is_control, not selector.sees_target))
    return [selector.name for selector in among]
