"""Reads from one causal pass what cache policies and selectors of one's own need of every layer and head.

Attention is summed over queries while a layer runs, some queries at a time: the weights of queries by keys are never kept.

Shape letters besides those of the package: G heads that share a head of keys, M long-range tokens.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import KW_ONLY, dataclass, field
from typing import Optional

import torch

from olmo_sparsity.errors import UserError
from olmo_sparsity.model.devices import attention_elements
from olmo_sparsity.records.window_input import OBSERVED_QUERIES


@dataclass
class Observer:
    """Collects from the layers of a causal pass what is needed of B whole windows.

    Attributes:
        needs: of ``olmo_sparsity.records.window_input.OF_PASS``.
        long_range: the long-range tokens, among the tokens of the pass.
        local_len: L, the number of tokens behind them.
        collected: of each need, an entry a layer, fp32, on the CPU.
        num_layers: layers that have been read.
    """

    needs: Collection[str]
    _: KW_ONLY
    long_range: slice
    local_len: int
    collected: dict[str, list[torch.Tensor]] = field(default_factory=dict, init=False)
    num_layers: int = field(default=0, init=False)

    def layer(
        self,
        q_BHTE: torch.Tensor,
        k_BHTE: torch.Tensor,
        v_BHTE: torch.Tensor,
        *,
        scaling: float,
        allowed_BTT: Optional[torch.Tensor] = None,
    ) -> None:
        """Read one layer.

        Args:
            q_BHTE: queries of all tokens, rotated, not scaled.
            k_BHTE: keys of all tokens; several heads of queries may share one.
            v_BHTE: values of all tokens.
            scaling: of the scores.
            allowed_BTT: bool or float, [B or 1, T, T]: what attends to what, where that is less than causal attention; float:
                added to the scores.
        """
        self.num_layers += 1
        self._keep("queries", q_BHTE[:, :, -1])
        self._keep("keys", k_BHTE[:, :, self.long_range])
        self._keep("values", v_BHTE[:, :, self.long_range])
        if "accumulated_attention" in self.needs:
            sums_BHM = self._attention_sums(q_BHTE, k_BHTE, scaling=scaling, allowed_BTT=allowed_BTT)
            self._keep("accumulated_attention", sums_BHM)
        for name, num_queries in (("attention", 1), ("observed_attention", min(OBSERVED_QUERIES, self.local_len))):
            if name in self.needs:
                last_BHQE = q_BHTE[:, :, -num_queries:]
                self._keep(name, self._attention_sums(last_BHQE, k_BHTE, scaling=scaling, allowed_BTT=allowed_BTT))

    def states(self, x_BTD: torch.Tensor) -> None:
        """Read the states before a layer, or behind the last and its norm."""
        self._keep("hidden_states", x_BTD[:, self.long_range])

    def result(self) -> dict[str, torch.Tensor]:
        """Return each need, fp32 [B, layers, ...], on the CPU.

        Raises:
            UserError: the layers have heads of other numbers or widths than one another, so that a need is no one array.
        """
        for name, layers in self.collected.items():
            if len({layer.shape for layer in layers}) > 1:
                raise UserError(
                    f"the layers of this model have {name} of different shapes, which a selector gets as one array; leave out "
                    f"the selectors that need {name}"
                )
        return {name: torch.stack(layers, dim=1) for name, layers in self.collected.items()}

    def _keep(self, name: str, values: torch.Tensor) -> None:
        if name in self.needs:
            self.collected.setdefault(name, []).append(values.detach().float().cpu())

    def _attention_sums(
        self, q_BHQE: torch.Tensor, k_BHTE: torch.Tensor, *, scaling: float, allowed_BTT: Optional[torch.Tensor]
    ) -> torch.Tensor:
        """Return the sum of the attention that the last Q tokens pay to each long-range one, fp32 [B, H, M]."""
        num_rows, num_heads, num_queries, _ = q_BHQE.shape
        num_tokens = k_BHTE.shape[2]
        q_BHGQE = q_BHQE.unflatten(1, (k_BHTE.shape[1], -1)).float() * scaling
        keys_BH1ET = k_BHTE.float().transpose(2, 3)[:, :, None]
        num_long_range = self.long_range.stop - self.long_range.start
        sums_BHM = torch.zeros(num_rows, num_heads, num_long_range, device=k_BHTE.device)
        per_block = max(1, attention_elements(k_BHTE.device) // (num_rows * num_heads * num_tokens))
        first, stop = self.long_range.start, self.long_range.stop
        for begin in range(0, num_queries, per_block):
            size = min(per_block, num_queries - begin)
            num_seen = num_tokens - num_queries + begin + size  # no query of the block sees more
            scores_BHGQK = q_BHGQE[:, :, :, begin : begin + size] @ keys_BH1ET[..., :num_seen]
            if allowed_BTT is not None:
                allowed_B11QK = allowed_BTT[:, None, None, num_seen - size : num_seen, :num_seen]
                if allowed_BTT.dtype == torch.bool:
                    scores_BHGQK.masked_fill_(~allowed_B11QK, -math.inf)
                else:
                    scores_BHGQK += allowed_B11QK
            later_QQ = torch.ones(size, size, dtype=torch.bool, device=k_BHTE.device).triu(1)
            scores_BHGQK[..., num_seen - size :].masked_fill_(later_QQ, -math.inf)
            weights_BHGQM = scores_BHGQK.softmax(dim=-1)[..., first:stop]
            sums_BHM[..., : weights_BHGQM.shape[-1]] += weights_BHGQM.sum(dim=3).flatten(1, 2)
        return sums_BHM
