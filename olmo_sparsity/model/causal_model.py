"""What the measurements ask of a causal language model, whatever library it comes from.

Rows of a call have the same number of tokens. Position IDs rise along a row and may have gaps; they lie below
``max_position``. The model knows nothing about which tokens are visible: a row holds the tokens that are to be seen, or a bias
says who sees whom (``olmo_sparsity.measure.visible.visibility``).

A layer may see a window of the latest positions only. Then a token attends to another where both what is asked for and the
window, counted in position IDs, allow it.
"""

from __future__ import annotations

from typing import Optional, Protocol

import torch

from olmo_sparsity.model.attribution import AttentionState, LossOfLogits
from olmo_sparsity.model.observation import Observer

KeysValues = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys, which know their positions, and values of each layer, [R, H, P, E] each; H are the heads that carry keys."""


class CausalModel(Protocol):
    """A causal language model. Tokens and positions are int64, logits are of the token that follows the last one."""

    @property
    def vocab_size(self) -> int:
        """V, the width of the logits."""
        ...

    @property
    def device(self) -> torch.device:
        """Where tokens go."""
        ...

    @property
    def max_position(self) -> int:
        """The number of position IDs."""
        ...

    def last_logits(
        self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor, *, bias_BTT: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        """Return the logits [B, V] of the last token.

        Args:
            tokens_BT: token IDs.
            positions_BT: their position IDs.
            bias_BTT: bool (True: the first token may attend to the second) or float (added to the scores; the logits are
                differentiable with respect to it). It is the whole of what is allowed, causality and the token itself
                included. None: every token attends to itself and all earlier ones of its row, across gaps in the positions.
        """
        ...

    def own_last_logits(self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor) -> torch.Tensor:
        """Return the logits [B, V] of the last token of whole texts, under the masks that the model's library makes by itself.

        The position IDs have no gaps.
        """
        ...

    def last_logits_and_attention(
        self,
        tokens_BT: torch.Tensor,
        positions_BT: torch.Tensor,
        *,
        prefix: Optional[KeysValues] = None,
        prefix_positions_BP: Optional[torch.Tensor] = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits [B, V] of the last token under causal attention, and its attention, in one pass.

        The attention is the mean of heads and layers, fp32 [B, T]. With a prefix, keys and values of P tokens that all tokens
        see, and their position IDs, it is [B, P + T].
        """
        ...

    def keys_values(
        self, tokens_BP: torch.Tensor, positions_BP: torch.Tensor, *, allowed_BPP: Optional[torch.Tensor] = None
    ) -> KeysValues:
        """Return the keys and values of all tokens, under causal attention.

        With ``allowed_BPP`` (bool) instead, the first token attends to the second where it is True.
        """
        ...

    def last_logits_after(
        self,
        tokens_BY: torch.Tensor,
        positions_BY: torch.Tensor,
        *,
        prefix: KeysValues,
        prefix_positions_BP: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        """Return the logits [B, V] of the last token, where every token sees all of the prefix.

        Args:
            tokens_BY: token IDs; among themselves they are causal.
            positions_BY: their position IDs.
            prefix: keys and values of at least one token before them, of ``keys_values``.
            prefix_positions_BP: position IDs of these; layers with a window need them.
        """
        ...

    def attention_states(
        self,
        tokens_BY: torch.Tensor,
        positions_BY: torch.Tensor,
        *,
        prefix: Optional[KeysValues],
        loss: LossOfLogits,
    ) -> Optional[list[AttentionState]]:
        """Run rows forward and backward, and return the attention of every layer with its derivatives.

        Args:
            tokens_BY: token IDs; among themselves they are causal.
            positions_BY: their position IDs.
            prefix: keys and values of tokens before them, which all of them see; None: there are none.
            loss: of the logits of the last token.

        Returns:
            One state a layer; None where the attention of the model cannot be read.
        """
        ...

    def observe(self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor, *, observer: Observer) -> None:
        """Run whole windows under causal attention, and let the observer read every layer.

        Raises:
            UserError: the attention of the model is not one that can be read.
        """
        ...

    def in_dtype(self, dtype: torch.dtype) -> CausalModel:
        """Return a copy with weights of another dtype; the model itself where they have it already."""
        ...
