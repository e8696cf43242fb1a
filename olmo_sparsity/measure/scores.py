"""What selectors ask about windows: computed when first asked for, then cached and shared among selectors."""

from __future__ import annotations

import dataclasses
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Literal, Optional

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
from olmo_sparsity.measure.screening import ScreeningSettings
from olmo_sparsity.measure.window_batch import WindowBatch

Criterion = Literal["loss", "kl"]  # what candidates are ranked by: loss of the target, or divergence from full context


@dataclass(frozen=True)
class SingleUnmaskings:
    """What the model predicts under each visible set {j}; NaN where {j} was not evaluated."""

    loss_WM: np.ndarray  # loss({j}), nats, fp32
    kl_WM: np.ndarray  # KL(p_all, p_{j}), nats, fp32


@dataclass(frozen=True)
class WindowScores:
    """What selectors ask about W windows under one context; losses and divergences are in nats.

    Attributes:
        evaluator: the model.
        windows: the windows.
        log_p_short_WV: log-probabilities of the next token with only the local tokens visible. They are the same under
            every context, so the caller computes them.
        max_k: the largest k that will be asked for.
        lasso_masks: the number of random visible sets that ``lasso`` fits.
        with_kl: keep the divergences of the single-token unmaskings beside their losses.
        screening: unmask only some candidates one by one; None: all of them.
    """

    evaluator: Evaluator
    windows: WindowBatch
    _: KW_ONLY
    log_p_short_WV: torch.Tensor
    max_k: int
    lasso_masks: int = 64
    with_kl: bool = False
    screening: Optional[ScreeningSettings] = None
    _singles: dict[Criterion, SingleUnmaskings] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def num_long_range(self) -> int:
        """M, the number of long-range positions."""
        return self.windows.tokens_WT.shape[1] - self.evaluator.local_len

    def losses(self, visible_WNS: torch.Tensor) -> np.ndarray:
        """Return loss(S) of N visible sets per window, fp32 [W, N]."""
        windows = self.windows
        losses_WN, _ = target_losses(
            self.evaluator, windows.tokens_WT, targets_W=windows.targets_W, visible_WNS=visible_WNS
        )
        return losses_WN.cpu().numpy()

    def losses_of_rows(self, windows_R: np.ndarray, visible_RS: np.ndarray) -> np.ndarray:
        """Return loss(S) of visible sets of any windows (indices), int64 [R], [R, S] -> fp32 [R]."""
        losses_R, _ = row_losses(
            self.evaluator,
            self.windows.tokens_WT,
            targets_W=self.windows.targets_W,
            windows_R=torch.from_numpy(windows_R).to(self.windows.device),
            visible_RS=torch.from_numpy(visible_RS).to(self.windows.device),
        )
        return losses_R.cpu().numpy()

    def without_screening(self, chosen_w: np.ndarray) -> WindowScores:
        """Return some of the windows (int64 indices), with an empty cache and nothing screened."""
        rows_w = torch.from_numpy(chosen_w).to(self.windows.device)
        return dataclasses.replace(
            self,
            windows=self.windows.subset(chosen_w),
            log_p_short_WV=self.log_p_short_WV[rows_w],
            screening=None,
        )

    @cached_property
    def all_positions_WM(self) -> torch.Tensor:
        """All long-range positions, int64 [W, M]."""
        return torch.arange(self.num_long_range, device=self.windows.device).expand(len(self.windows), -1)

    @cached_property
    def loss_short_W(self) -> np.ndarray:
        """loss({}), fp32 [W]."""
        return surprisal(self.log_p_short_WV, self.windows.targets_W).cpu().numpy()

    @cached_property
    def log_p_long_WV(self) -> torch.Tensor:
        """Log-probabilities of the next token under full context, fp32 [W, V]."""
        return log_probs(self.evaluator, self.windows.tokens_WT, visible_WS=self.all_positions_WM)

    @cached_property
    def loss_long_W(self) -> np.ndarray:
        """loss(all), fp32 [W]."""
        return surprisal(self.log_p_long_WV, self.windows.targets_W).cpu().numpy()

    @cached_property
    def kl_short_W(self) -> np.ndarray:
        """KL(p_all, p_{}), fp32 [W]."""
        divergence_WV = self.log_p_long_WV.exp() * (self.log_p_long_WV - self.log_p_short_WV)
        return divergence_WV.sum(dim=1).cpu().numpy()

    @cached_property
    def gradient_WM(self) -> np.ndarray:
        """Minus the derivative of the loss with respect to a gate on j, at gate 0, fp32 [W, M]."""
        return -self._gate_gradients(self.evaluator, "loss")

    @property
    def loss_single_WM(self) -> np.ndarray:
        """loss({j}), fp32 [W, M]; NaN where screening left it out."""
        return self._single_unmaskings("loss").loss_WM

    @property
    def kl_single_WM(self) -> np.ndarray:
        """KL(p_all, p_{j}), fp32 [W, M]; NaN where screening left it out."""
        assert self.with_kl, "with_kl must be set where `kl` is among the selectors"
        return self._single_unmaskings("kl").kl_WM

    @property
    def known_loss_single_WM(self) -> np.ndarray:
        """loss({j}) of the sets that have been evaluated so far, NaN elsewhere; fp32 [W, M]. Evaluates nothing."""
        known_WM = np.full(self.all_positions_WM.shape, np.nan, dtype=np.float32)
        criteria: tuple[Criterion, ...] = ("loss", "kl")
        for criterion in criteria:
            if criterion in self._singles:
                known_WM = np.where(np.isnan(known_WM), self._singles[criterion].loss_WM, known_WM)
        return known_WM

    def _single_unmaskings(self, criterion: Criterion) -> SingleUnmaskings:
        """Return the single unmaskings of all candidates, or of those that screening by ``criterion`` chooses."""
        if criterion not in self._singles:
            self._singles[criterion] = (
                self._all_singles if self.screening is None else self._screened(self.screening, criterion)
            )
        return self._singles[criterion]

    @cached_property
    def _all_singles(self) -> SingleUnmaskings:
        return self._unmask_each(self.evaluator, self.all_positions_WM)

    @cached_property
    def _ranker_singles(self) -> SingleUnmaskings:
        assert self.screening is not None
        ranker = self.screening.ranker
        return self._all_singles if ranker is None else self._unmask_each(ranker, self.all_positions_WM)

    def _unmask_each(self, evaluator: Evaluator, candidates_WJ: torch.Tensor) -> SingleUnmaskings:
        losses_WJ, divergences_WJ = single_losses(
            evaluator,
            self.windows.tokens_WT,
            targets_W=self.windows.targets_W,
            candidates_WJ=candidates_WJ,
            reference_WV=self.log_p_long_WV if self.with_kl else None,
        )

        def at_all_positions(values_WJ: Optional[torch.Tensor]) -> np.ndarray:
            values_WM = torch.full(self.all_positions_WM.shape, torch.nan, device=self.windows.device)
            if values_WJ is not None:
                values_WM = values_WM.scatter(1, candidates_WJ, values_WJ)
            return values_WM.cpu().numpy()

        return SingleUnmaskings(at_all_positions(losses_WJ), at_all_positions(divergences_WJ))

    def _screened(self, screening: ScreeningSettings, criterion: Criterion) -> SingleUnmaskings:
        """Unmask one by one the candidates with the lowest estimated loss, or divergence."""
        best_WJ = rank(-self._estimates(screening, criterion))[:, : screening.num_candidates].copy()
        return self._unmask_each(self.evaluator, torch.from_numpy(best_WJ).to(self.windows.device))

    def _estimates(self, screening: ScreeningSettings, criterion: Criterion) -> np.ndarray:
        """Return cheap estimates of the loss, or of the divergence, up to a constant per window; fp32 [W, M]."""
        if screening.ranking == "unmask-one":
            singles = self._ranker_singles
            return singles.loss_WM if criterion == "loss" else singles.kl_WM
        if screening.ranker is None and criterion == "loss":
            return -self.gradient_WM
        return self._gate_gradients(screening.ranker or self.evaluator, criterion)

    def _gate_gradients(self, evaluator: Evaluator, criterion: Criterion) -> np.ndarray:
        def loss_function(rows: slice, logits_wV: torch.Tensor) -> torch.Tensor:
            # KL(p_all, q) and the cross-entropy of q under p_all differ by a constant.
            targets_w = self.windows.targets_W[rows] if criterion == "loss" else self.log_p_long_WV[rows].exp()
            return F.cross_entropy(logits_wV, targets_w, reduction="sum")

        return gate_gradients(evaluator, self.windows.tokens_WT, loss_function=loss_function).cpu().numpy()


def rank(scores_WM: np.ndarray) -> np.ndarray:
    """Return the positions of each window by falling score, int64 [W, M].

    Of equal scores the nearer position (the larger) comes first. NaN comes last.
    """
    num_long_range = scores_WM.shape[1]
    return num_long_range - 1 - np.argsort(-scores_WM[:, ::-1], axis=1, kind="stable")
