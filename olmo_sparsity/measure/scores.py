"""What selectors need to know about windows, computed once and shared."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Optional

import numpy as np
import torch
import torch.nn.functional as F

from olmo_sparsity.measure.evaluator import Evaluator
from olmo_sparsity.measure.losses import (
    gate_gradients,
    log_probs,
    row_losses,
    single_losses,
    surprisal,
    target_losses,
)

CONTEXTS = ("real", "null")


@dataclass(frozen=True)
class WindowScores:
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

    def subset(self, chosen: np.ndarray) -> WindowScores:
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


def rank(scores_WM: np.ndarray) -> np.ndarray:
    """int64 [W, M]: positions by falling score; of equal scores the nearer (the larger position) comes first, NaN last."""
    num_long_range = scores_WM.shape[1]
    return num_long_range - 1 - np.argsort(-scores_WM[:, ::-1], axis=1, kind="stable")
