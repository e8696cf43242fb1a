"""The candidate that a selector would choose for each label, over the whole vocabulary, and the optimism of this choice."""

from __future__ import annotations

from typing import Optional

import torch


class BestCandidates:
    """For w windows and every label y: which candidate j has the highest q_j(y), of equal ones the last.

    ``unmask-one`` chooses this candidate at k = 1 where y is the target.
    """

    def __init__(self, log_p_short_wV: torch.Tensor) -> None:
        """Begin with no candidate.

        Args:
            log_p_short_wV: log-probabilities of the short-context prediction p_{}, fp32.
        """
        self._log_p_wV = log_p_short_wV
        self._best_wV = torch.full_like(log_p_short_wV, -torch.inf)
        self._number_wV: Optional[torch.Tensor] = None  # fp32 holds numbers of candidates exactly, and is fast
        self._kl_wV = torch.zeros_like(log_p_short_wV)

    def add(self, log_q_wV: torch.Tensor, kl_w: torch.Tensor) -> None:
        """Add the next candidate of every window: its prediction q, fp32, and KL(p_{}, q), fp32."""
        is_better_wV = log_q_wV >= self._best_wV
        torch.maximum(self._best_wV, log_q_wV, out=self._best_wV)
        self._kl_wV = torch.where(is_better_wV, kl_w[:, None], self._kl_wV)

    def add_rows(
        self, windows_r: torch.Tensor, numbers_r: torch.Tensor, *, log_q_rV: torch.Tensor, kl_r: torch.Tensor
    ) -> None:
        """Add candidates of some windows, in any order.

        Args:
            windows_r: int64, the window of each.
            numbers_r: int64, the number of each: of equal candidates that with the highest is chosen.
            log_q_rV: their predictions, fp32.
            kl_r: KL(p_{}, q), fp32.
        """
        if self._number_wV is None:
            self._number_wV = torch.full_like(self._best_wV, -1.0)
        for window, number, log_q_V, kl in zip(windows_r.tolist(), numbers_r.tolist(), log_q_rV, kl_r, strict=True):
            best_V, number_V = self._best_wV[window], self._number_wV[window]
            is_better_V = (log_q_V > best_V) | ((log_q_V == best_V) & (number > number_V))
            best_V.copy_(torch.maximum(best_V, log_q_V))
            number_V.masked_fill_(is_better_V, number)
            self._kl_wV[window].masked_fill_(is_better_V, kl)

    def optimism(self) -> torch.Tensor:
        """Return the optimism of the choice of one candidate, exact over the vocabulary, nats, fp32 [w].

        It is the mean of log q_j(y) - log p_{}(y) + KL(p_{}, q_j) over labels y drawn from p_{}; j is the candidate chosen for y.
        """
        gains_wV = self._best_wV - self._log_p_wV
        return (self._log_p_wV.exp() * (gains_wV + self._kl_wV)).sum(dim=-1)
