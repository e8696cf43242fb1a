"""Selectors: a score for each long-range position; the k highest are J_k, nested by construction.

A selector is a function from scored windows to scores. What several of them need (the single-token unmaskings, say) is
measured once, when the first of them asks, and shared. Legend: W windows, M long-range positions, V vocabulary, N
visible sets of a window.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Optional

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.linear_model import Lasso
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from olmo_sparsity.losses import (
    Evaluator,
    all_but_one_losses,
    gate_gradients,
    log_probs,
    long_range_attention,
    losses_of_masks,
    row_losses,
    single_losses,
    surprisal,
    target_losses,
)

CONTEXTS = ("real", "null")
SCREENED = ("unmask-one", "kl")  # which selectors ``screen`` spares evaluations
LASSO_ALPHA = 0.01  # on standardised masks, as in ContextCite
NUM_BACKWARD = 2  # a backward pass costs about two forward passes


@dataclass(frozen=True)
class Scored:
    """W windows under one context, and what may be asked about them; losses and divergences in nats.

    Attributes:
        evaluator: the model.
        tokens_WT: int64, the windows under this context, without their targets.
        targets_W: int64.
        log_p_short_WV: log-probabilities of the next token with only the local tokens visible.
        window_ids: int64 [W].
        context: ``real`` or ``null``.
        seed: of what is drawn at random.
        max_k: the largest k that will be asked for.
        lasso_masks: random visible sets that ``lasso`` fits.
        with_kl: keep the divergences of the single-token unmaskings beside their losses.
        screen: unmask singly only so many candidates of each window, the best of a cheap ranking; None: all.
        screen_by: that ranking, by ``gradient`` or by ``unmask-one``, evaluated by ``screener``.
        screener: the model that ranks, in lower precision perhaps; None: ``evaluator``.
    """

    evaluator: Evaluator
    tokens_WT: torch.Tensor
    targets_W: torch.Tensor
    log_p_short_WV: torch.Tensor
    window_ids: np.ndarray
    context: str
    seed: int
    max_k: int
    lasso_masks: int = 64
    with_kl: bool = False
    screen: Optional[int] = None
    screen_by: str = "gradient"
    screener: Optional[Evaluator] = None

    @property
    def num_long_range(self) -> int:
        """M."""
        return self.tokens_WT.shape[1] - self.evaluator.local_len

    def generators(self, purpose: int) -> list[np.random.Generator]:
        """One generator a window: a function of seed, purpose, window and context alone."""
        context = CONTEXTS.index(self.context)
        return [np.random.default_rng([self.seed, purpose, int(i), context]) for i in self.window_ids]

    def losses(self, visible_WNS: torch.Tensor) -> np.ndarray:
        """loss(S) of N sets a window, fp32 [W, N]."""
        return target_losses(self.evaluator, self.tokens_WT, self.targets_W, visible_WNS)[0].cpu().numpy()

    def losses_of_rows(self, windows_R: np.ndarray, visible_RS: np.ndarray) -> np.ndarray:
        """loss(S) of any windows' sets, int64 [R], [R, S] -> fp32 [R]."""
        rows = (torch.from_numpy(x).to(self.tokens_WT.device) for x in (windows_R, visible_RS))
        return row_losses(self.evaluator, self.tokens_WT, self.targets_W, *rows)[0].cpu().numpy()

    def subset(self, chosen: np.ndarray) -> Scored:
        """Some of the windows (int64 [chosen]), nothing of them screened."""
        at = torch.from_numpy(chosen).to(self.tokens_WT.device)
        return dataclasses.replace(
            self,
            tokens_WT=self.tokens_WT[at],
            targets_W=self.targets_W[at],
            log_p_short_WV=self.log_p_short_WV[at],
            window_ids=self.window_ids[chosen],
            screen=None,
        )

    @cached_property
    def everything(self) -> torch.Tensor:
        """All long-range positions, int64 [W, M]."""
        return torch.arange(self.num_long_range, device=self.tokens_WT.device).expand(len(self.tokens_WT), -1)

    @cached_property
    def loss_short(self) -> np.ndarray:
        """loss({}), fp32 [W]."""
        return surprisal(self.log_p_short_WV, self.targets_W).cpu().numpy()

    @cached_property
    def log_p_long(self) -> torch.Tensor:
        """Log-probabilities of the next token under full context, fp32 [W, V]."""
        return log_probs(self.evaluator, self.tokens_WT, self.everything)

    @cached_property
    def loss_long(self) -> np.ndarray:
        """loss(all), fp32 [W]."""
        return surprisal(self.log_p_long, self.targets_W).cpu().numpy()

    def _evaluated(self, evaluator: Evaluator, candidates_WJ: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        """loss({j}) and, ``with_kl``, KL(p_all, p_{j}), fp32 [W, M]; NaN for those that are no candidates."""
        reference = self.log_p_long if self.with_kl else None
        measured = single_losses(evaluator, self.tokens_WT, self.targets_W, candidates_WJ, reference)
        found = []
        for values_WJ in measured:
            whole_WM = torch.full(self.everything.shape, torch.nan, device=self.tokens_WT.device)
            found.append(
                (whole_WM if values_WJ is None else whole_WM.scatter(1, candidates_WJ, values_WJ)).cpu().numpy()
            )
        return found[0], found[1]

    @cached_property
    def _all_singles(self) -> tuple[np.ndarray, np.ndarray]:
        return self._evaluated(self.evaluator, self.everything)

    @cached_property
    def gradient(self) -> np.ndarray:
        """Minus the derivative of the loss with respect to a gate on j, at gate 0, fp32 [W, M]."""
        return -self._gate_gradients(self.evaluator, toward_full_context=False)

    def _gate_gradients(self, evaluator: Evaluator, toward_full_context: bool) -> np.ndarray:
        def loss_of(at: slice, logits_wV: torch.Tensor) -> torch.Tensor:
            # KL(p_all, q) and the cross-entropy of q under p_all differ by a constant.
            targets = self.log_p_long[at].exp() if toward_full_context else self.targets_W[at]
            return F.cross_entropy(logits_wV, targets, reduction="sum")

        return gate_gradients(evaluator, self.tokens_WT, loss_of).cpu().numpy()

    def _ranking(self, by_kl: bool) -> np.ndarray:
        """What screens the candidates for the loss, or for the divergence, the lowest being the best; fp32 [W, M]."""
        if self.screen_by != "gradient":
            return self._screening_singles[int(by_kl)]
        if self.screener is None and not by_kl:
            return -self.gradient
        return self._gate_gradients(self.screener or self.evaluator, toward_full_context=by_kl)

    def _screened(self, by_kl: bool) -> tuple[np.ndarray, np.ndarray]:
        """As ``_evaluated``, of the best ``screen`` candidates for the loss, or for the divergence."""
        assert self.screen is not None
        best = rank(-self._ranking(by_kl))[:, : self.screen].copy()
        return self._evaluated(self.evaluator, torch.from_numpy(best).to(self.tokens_WT.device))

    @cached_property
    def _screening_singles(self) -> tuple[np.ndarray, np.ndarray]:
        return self._all_singles if self.screener is None else self._evaluated(self.screener, self.everything)

    @cached_property
    def _best_by_loss(self) -> tuple[np.ndarray, np.ndarray]:
        return self._all_singles if self.screen is None else self._screened(by_kl=False)

    @cached_property
    def _best_by_kl(self) -> tuple[np.ndarray, np.ndarray]:
        assert self.with_kl, "with_kl is set where `kl` is among the selectors"
        return self._all_singles if self.screen is None else self._screened(by_kl=True)

    @property
    def loss_single(self) -> np.ndarray:
        """loss({j}), fp32 [W, M]; NaN where screening left it out."""
        return self._best_by_loss[0]

    @property
    def kl_single(self) -> np.ndarray:
        """KL(p_all, p_{j}), fp32 [W, M]; NaN where screening left it out."""
        return self._best_by_kl[1]

    def known_singles(self) -> np.ndarray:
        """loss({j}) as far as ``loss_single`` and ``kl_single`` have brought it by now, NaN elsewhere; fp32 [W, M]."""
        known = np.full(self.everything.shape, np.nan, dtype=np.float32)
        for name in ("_best_by_loss", "_best_by_kl"):
            if name in self.__dict__:  # where cached_property keeps what it has computed
                known = np.where(np.isnan(known), self.__dict__[name][0], known)
        return known

    @cached_property
    def kl_short(self) -> np.ndarray:
        """KL(p_all, p_{}), fp32 [W]."""
        divergence = self.log_p_long.exp() * (self.log_p_long - self.log_p_short_WV)
        return divergence.sum(dim=1).cpu().numpy()


@dataclass(frozen=True)
class Selector:
    """A scoring function, Scored -> [W, M]; whether the scores depend on the target's identity; and what they cost, in
    forward passes over one row, as a function of (M, max k, lasso masks), nothing being screened."""

    score: Callable[[Scored], np.ndarray]
    sees_target: bool
    num_evaluations: Callable[[int, int, int], int]


def _unmask_one(scored: Scored) -> np.ndarray:
    """loss({}) - loss({j}): the gain of unmasking j alone (our reading of the paper's Eq. 20)."""
    return scored.loss_short[:, None] - scored.loss_single


def _mask_one(scored: Scored) -> np.ndarray:
    """loss(all but j) - loss(all): what hiding j alone costs."""
    losses = all_but_one_losses(scored.evaluator, scored.tokens_WT, scored.targets_W)
    return losses.cpu().numpy() - scored.loss_long[:, None]


def _greedy(scored: Scored) -> np.ndarray:
    """Forward selection: each step takes the position that lowers loss(J so far + j) most (ties: the nearer).

    The position of step i (from 0) scores max_k - i, one that is never taken 0: the gains of the steps need not fall,
    and the scores must keep their order.
    """
    num_windows, num_long_range = len(scored.tokens_WT), scored.num_long_range
    rows = torch.arange(num_windows, device=scored.tokens_WT.device)
    scores = np.zeros((num_windows, num_long_range))
    taken = scored.everything[:, :0]
    left = scored.everything
    for step in range(scored.max_k):
        sets = torch.cat([taken[:, None, :].expand(-1, left.shape[1], -1), left[:, :, None]], dim=2)
        best = torch.from_numpy(rank(-scored.losses(sets))[:, 0].copy()).to(left.device)
        pick = left[rows, best]
        scores[np.arange(num_windows), pick.cpu().numpy()] = scored.max_k - step
        taken = torch.cat([taken, pick[:, None]], dim=1)
        left = left[left != pick[:, None]].view(num_windows, -1)
    return scores


def _kl(scored: Scored) -> np.ndarray:
    """KL(p_all, p_{}) - KL(p_all, p_{j}): how far unmasking j moves the prediction to the full-context one."""
    return scored.kl_short[:, None] - scored.kl_single


def _gradient(scored: Scored) -> np.ndarray:
    """Minus the derivative of the loss with respect to a gate on j, at gate 0: unmask-one to first order."""
    return scored.gradient


def _attention(scored: Scored) -> np.ndarray:
    """Attention of the last token to j under full context, mean over heads and layers."""
    return long_range_attention(scored.evaluator, scored.tokens_WT).cpu().numpy()


def lasso_masks(scored: Scored) -> np.ndarray:
    """bool [W, N, M]: the random visible sets of ``lasso``; every position is visible in half of them."""
    shape = (scored.lasso_masks, scored.num_long_range)
    return np.stack([draw.random(shape) < 0.5 for draw in scored.generators(4)])


def _lasso(scored: Scored) -> np.ndarray:
    """Minus the coefficients of a sparse linear model of the loss over random visible sets (ContextCite, Cohen-Wang et
    al. 2024; they fit the logit of the probability, here it is the loss)."""
    keep = lasso_masks(scored)
    masks = torch.from_numpy(keep).to(scored.tokens_WT.device)
    losses = losses_of_masks(scored.evaluator, scored.tokens_WT, scored.targets_W, masks).cpu().numpy()
    scores = np.empty((len(keep), scored.num_long_range))
    for w, (sets, values) in enumerate(zip(keep.astype(np.float64), losses.astype(np.float64), strict=True)):
        scaler, lasso = StandardScaler(), Lasso(alpha=LASSO_ALPHA)
        make_pipeline(scaler, lasso).fit(sets, values)
        scores[w] = -lasso.coef_ / scaler.scale_
    return scores


def _random(scored: Scored) -> np.ndarray:
    """Uniform numbers, a function of seed, window and context alone."""
    return np.stack([draw.random(scored.num_long_range) for draw in scored.generators(3)])


def _nearest(scored: Scored) -> np.ndarray:
    """The position itself: the nearer to the local context, the higher."""
    num_long_range = scored.num_long_range
    return np.broadcast_to(np.arange(num_long_range, dtype=np.float64), (len(scored.tokens_WT), num_long_range))


SELECTORS: dict[str, Selector] = {
    "unmask-one": Selector(_unmask_one, sees_target=True, num_evaluations=lambda m, k, n: m + 1),
    "kl": Selector(_kl, sees_target=False, num_evaluations=lambda m, k, n: m + 2),
    "gradient": Selector(_gradient, sees_target=True, num_evaluations=lambda m, k, n: 1 + NUM_BACKWARD),
    "attention": Selector(_attention, sees_target=False, num_evaluations=lambda m, k, n: 1),
    "random": Selector(_random, sees_target=False, num_evaluations=lambda m, k, n: 0),
    "nearest": Selector(_nearest, sees_target=False, num_evaluations=lambda m, k, n: 0),
    "mask-one": Selector(_mask_one, sees_target=True, num_evaluations=lambda m, k, n: m + 1),
    "greedy": Selector(_greedy, sees_target=True, num_evaluations=lambda m, k, n: k * m - k * (k - 1) // 2),
    "lasso": Selector(_lasso, sees_target=True, num_evaluations=lambda m, k, n: n),
}


def rank(scores_WM: np.ndarray) -> np.ndarray:
    """int64 [W, M]: positions by falling score; of equal scores the nearer (the larger position) comes first, NaN last."""
    num_long_range = scores_WM.shape[1]
    return num_long_range - 1 - np.argsort(-scores_WM[:, ::-1], axis=1, kind="stable")
