"""The properties that a model must have to be measured, each as a number from a few windows.

Predictions are compared by the expected difference of the loss in nats: the mean of |log p - log q| over tokens drawn from p,
the largest of the windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Optional

import torch

from olmo_sparsity.measure.visibility import (
    Visibility,
    attention_mask,
    compact_rows,
    gate_bias,
    visible_mask,
    with_anchor,
)
from olmo_sparsity.model.causal_model import CausalModel

CHECKED_SET = 8  # visible long-range tokens, as far apart as the window allows
LEAST_EFFECT = 0.1  # of what rounding may cause; where position IDs are ignored, the effect is 0 exactly
FEWEST_TOKENS = 4  # different ones that a window must hold for the checks to tell anything


@dataclass(frozen=True)
class FitCheck:
    """One property of a model, as measured.

    Attributes:
        name: what was measured.
        found: the measured number.
        limit: what ``found`` is compared with.
        at_least: ``found`` must reach the limit; otherwise it must not exceed it.
    """

    name: str
    found: float
    limit: float
    at_least: bool = False

    @property
    def holds(self) -> bool:
        """False also where ``found`` is not a number."""
        return self.found >= self.limit if self.at_least else self.found <= self.limit


def expected_difference(logits_WV: torch.Tensor, others_WV: torch.Tensor) -> float:
    """Return the expected absolute difference of the loss, nats, of the window where it is largest."""
    log_probs_WV, others_WV = logits_WV.float().log_softmax(dim=-1), others_WV.float().log_softmax(dim=-1)
    difference_W = (log_probs_WV.exp() * (log_probs_WV - others_WV).abs()).sum(dim=-1)
    return float(difference_W.max())  # torch's max keeps NaN


def telling_windows(tokens_WT: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Return windows with drawn tokens, always the same ones, in place of each window that tells nothing; int64 [W, T].

    Over equal tokens attention is a mean of equal values: no other position ID, hidden token or sliding window changes it. So a
    window must hold different tokens, and so must every second token of it, which are all that ``effect_of_positions`` runs.
    """
    tells_W = _holds_different(tokens_WT) & _holds_different(tokens_WT.flip(1)[:, ::2])
    shuffled_V = torch.randperm(vocab_size, generator=torch.Generator().manual_seed(0))
    drawn_WT = shuffled_V[torch.arange(tokens_WT.numel()) % vocab_size].view(tokens_WT.shape)
    return torch.where(tells_W[:, None], tokens_WT, drawn_WT.to(tokens_WT.device))


def _holds_different(tokens_WT: torch.Tensor) -> torch.Tensor:
    """Return bool [W], True where ``FEWEST_TOKENS`` tokens of a window differ, or all of a shorter one."""
    changes_W = (tokens_WT.sort(dim=1).values.diff(dim=1) != 0).sum(dim=1)
    return changes_W + 1 >= min(FEWEST_TOKENS, tokens_WT.shape[1])


class CheckedWindows:
    """A model and the windows on which its properties are measured."""

    def __init__(
        self,
        model: CausalModel,
        tokens_WT: torch.Tensor,
        *,
        local_len: int,
        anchor_id: Optional[int],
        tolerance: float,
    ):
        """Choose visible tokens.

        Args:
            model: the model.
            tokens_WT: windows, without targets.
            local_len: L, local tokens of a window.
            anchor_id: the token in front of the windows, or None.
            tolerance: the largest difference that rounding may cause, nats.
        """
        self.model, self.local_len, self.anchor_id, self.tolerance = model, local_len, anchor_id, tolerance
        num_windows, self.full_len = tokens_WT.shape
        num_long_range = self.full_len - local_len
        size = max(1, min(CHECKED_SET, num_long_range // 2))
        visible_S = torch.arange(size, device=tokens_WT.device) * num_long_range // size
        self.visible_WS = visible_S.expand(num_windows, -1)
        self.tokens_WT, self.positions_WT = with_anchor(tokens_WT, anchor_id)
        self.rows_WY, self.row_positions_WY = compact_rows(
            tokens_WT, self.visible_WS, local_len=local_len, anchor_id=anchor_id
        )
        self.visible_WT = visible_mask(
            self.visible_WS, self.full_len, local_len=local_len, has_anchor=anchor_id is not None
        )

    @cached_property
    def masked_WV(self) -> torch.Tensor:
        """Logits by the definition, where hidden tokens are hidden from everyone."""
        return self._masked(self.tokens_WT, "hidden")

    @cached_property
    def compact_WV(self) -> torch.Tensor:
        """Logits of rows that hold the visible tokens only, with gaps in their position IDs."""
        return self.model.last_logits(self.rows_WY, self.row_positions_WY)

    def _masked(self, tokens_WT: torch.Tensor, visibility: Visibility) -> torch.Tensor:
        allowed_WTT = attention_mask(self.visible_WT, local_len=self.local_len, visibility=visibility)
        return self.model.last_logits(tokens_WT, self.positions_WT, bias_BTT=allowed_WTT)

    def effect_of_positions(self) -> FitCheck:
        """Halve the distances in rows of every second token: the prediction must change."""
        num_tokens = self.tokens_WT.shape[1]
        if num_tokens < 3:  # the only distance there is cannot be halved
            near_WY, apart_WY, rows_WY = self.positions_WT, 2 * self.positions_WT, self.tokens_WT
        else:
            apart_WY = self.positions_WT[:, (num_tokens - 1) % 2 :: 2]
            near_WY, rows_WY = apart_WY // 2, self.tokens_WT.gather(1, apart_WY)
        found = expected_difference(self.model.last_logits(rows_WY, apart_WY), self.model.last_logits(rows_WY, near_WY))
        return FitCheck("effect of other position IDs, nats", found, LEAST_EFFECT * self.tolerance, at_least=True)

    def effect_of_hidden_tokens(self) -> FitCheck:
        """Replace the hidden tokens under the mask: the prediction must not change."""
        replaced_WT = torch.where(self.visible_WT, self.tokens_WT, self.tokens_WT.flip(1))
        found = expected_difference(self.masked_WV, self._masked(replaced_WT, "hidden"))
        return FitCheck("effect of hidden tokens, nats", found, self.tolerance)

    def full_context_against_mask(self) -> FitCheck:
        """Compare the model's own attention over whole windows with a causal mask."""
        return FitCheck("full context against a causal mask, nats", self._own_against_causal(None), self.tolerance)

    def attended_tokens(self) -> int:
        """Return the number of most recent tokens over which the model's own attention is that of a causal mask."""
        agree, differ = 1, self.tokens_WT.shape[1]
        while differ - agree > 1:
            middle = (agree + differ) // 2
            if self._own_against_causal(middle) <= self.tolerance:
                agree = middle
            else:
                differ = middle
        return agree

    def _own_against_causal(self, num_tokens: Optional[int]) -> float:
        length = self.tokens_WT.shape[1] if num_tokens is None else num_tokens
        tokens_WT, positions_WT = self.tokens_WT[:, -length:], self.positions_WT[:, -length:]
        causal_TT = torch.ones(length, length, dtype=torch.bool, device=tokens_WT.device).tril()
        bias_WTT = causal_TT.expand(len(tokens_WT), -1, -1)
        return expected_difference(
            self.model.last_logits(tokens_WT, positions_WT, bias_BTT=bias_WTT),
            self.model.last_logits(tokens_WT, positions_WT),
        )

    def compact_against_masked(self) -> FitCheck:
        """Compare rows with gaps in their position IDs with the definition, hidden tokens hidden from everyone."""
        found = expected_difference(self.masked_WV, self.compact_WV)
        return FitCheck("compact against masked (hidden), nats", found, self.tolerance)

    def cached_against_masked(self) -> FitCheck:
        """Compare chosen keys and values of the long-range tokens with the definition, hidden from the local tokens."""
        num_before = self.tokens_WT.shape[1] - self.local_len
        before_WP, local_WL = self.tokens_WT.tensor_split((num_before,), dim=1)
        positions_WP, positions_WL = self.positions_WT.tensor_split((num_before,), dim=1)
        kept_P = self.visible_WT[0, :num_before].nonzero()[:, 0]
        prefix = [
            (k_WHPE[:, :, kept_P.to(k_WHPE.device)], v_WHPE[:, :, kept_P.to(v_WHPE.device)])
            for k_WHPE, v_WHPE in self.model.keys_values(before_WP, positions_WP)
        ]
        logits_WV = self.model.last_logits_after(local_WL, positions_WL, prefix=prefix)
        found = expected_difference(self._masked(self.tokens_WT, "contextual"), logits_WV)
        return FitCheck("compact against masked (contextual), nats", found, self.tolerance)

    def gates_against_masked(self) -> FitCheck:
        """Compare gates, which the gradient needs, with the mask of the definition: gate 0 must hide a token, 1 show it."""
        found = expected_difference(self.masked_WV, self._gated(self._closed_gates()))
        return FitCheck("gates against masked, nats", found, self.tolerance)

    def gradient_of_gates(self) -> FitCheck:
        """Differentiate the probability of the likeliest token by the gates: the gradient must be a number above 0."""
        log_gate_WT = torch.zeros_like(self._closed_gates())
        with torch.enable_grad():
            log_gate_WT.requires_grad_()
            likeliest_W = self._gated(log_gate_WT).float().log_softmax(dim=-1).max(dim=-1).values
            (gradient_WT,) = torch.autograd.grad(likeliest_W.sum(), log_gate_WT)
        found = float(gradient_WT.abs().max())
        return FitCheck("largest derivative by a gate", found, torch.finfo(torch.float32).tiny, at_least=True)

    def _closed_gates(self) -> torch.Tensor:
        return torch.zeros(self.visible_WT.shape, device=self.visible_WT.device).masked_fill(
            ~self.visible_WT, torch.finfo(torch.float32).min
        )

    def _gated(self, log_gate_WT: torch.Tensor) -> torch.Tensor:
        bias_WTT = gate_bias(log_gate_WT, local_len=self.local_len, visibility="hidden")
        return self.model.last_logits(self.tokens_WT, self.positions_WT, bias_BTT=bias_WTT)

    def sum_of_attention(self) -> FitCheck:
        """Add up the attention of the last token: at most 1 (less where a head may attend to nothing)."""
        _, attention_WT = self.model.last_logits_and_attention(self.tokens_WT, self.positions_WT)
        return FitCheck("attention of the last token, sum", float(attention_WT.sum(dim=1).max()), 1.01)
